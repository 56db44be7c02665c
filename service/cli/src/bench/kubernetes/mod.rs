//! `seance bench --kubernetes`: an installed chart, seen as a caller over gRPC and by the objects of its
//! cluster.
//!
//! Everything is made under the label [`LABEL`] (sessions: [`SESSION_LABEL`]) with the run as its value,
//! and taken away at the end, after a failure and after an interrupt too.

mod counts;
mod figures;
mod floors;
mod made;
mod objects;
mod place;
mod pods;
mod pools;
mod rights;

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::caller::Caller;
use super::report::Report;
use crate::args::{Bench, Connection};
use crate::client::{Client, EXIT_STOPPED, Exit};
use figures::FIGURES;
use floors::Floors;
use made::Made;
use place::Place;
use pools::{OPENS, opens_of};

/// What pods and pools of the bench are labelled with.
pub const LABEL: &str = "seance.dev/bench";
/// What its sessions are labelled with.
pub const SESSION_LABEL: &str = "seance-bench";

/// What is measured.
pub struct World {
    /// A caller of the service.
    pub caller: Caller,
    /// The pool, and what surrounds it.
    pub place: Place,
    /// All that the bench makes.
    pub made: Made,
}

/// Measures and prints.
pub async fn bench(connection: &Connection, bench: &Bench, json: bool) -> Result<ExitCode> {
    let known: Vec<_> = FIGURES.iter().flat_map(|group| group.names).copied().collect();
    let mut report = Report::new(bench, json, &known)?;
    let mut signals = Signals::new()?;
    let run = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
    let labels = HashMap::from([(SESSION_LABEL.to_owned(), run.clone())]);
    let caller = Caller { client: Client::connect(connection).await?, labels };
    let place = Place::find(bench).await?;
    rights::check(&place, &report).await?;
    eprintln!("measuring pool {} in {}", place.pool, place.sandboxes);
    let made = Made::new(run, caller.clone(), &place);
    let world = World { caller, place, made };
    let measured = tokio::select! {
        measured = measure(&world, &mut report) => measured,
        () = signals.next() => {
            eprintln!("seance: interrupted; what the bench made is taken away, which a second interrupt cuts short");
            Err(Exit(EXIT_STOPPED, "interrupted".to_owned()).into())
        }
    };
    let taken_away = tokio::select! {
        taken_away = world.made.take_away() => taken_away,
        () = signals.next() => Err(world.made.left()),
    };
    report.finish();
    // What went wrong first explains the rest.
    match (measured, taken_away) {
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}"))),
        (measured, taken_away) => measured.and(taken_away).map(|()| ExitCode::SUCCESS),
    }
}

async fn measure(world: &World, report: &mut Report) -> Result<()> {
    let n_warm = world.place.until_warm(&[]).await?;
    if opens_of(n_warm) < OPENS {
        let n_opens = opens_of(n_warm);
        eprintln!(
            "{n_warm} sandboxes are warm, so that {n_opens} sessions are opened in a row, not {OPENS} of 60"
        );
    }
    world.check_installation().await?;
    let floors = Floors::measure(world, report.effort).await?;
    for group in FIGURES {
        if report.wants_any(group.names) {
            report.measure(group, world, &floors).await?;
        }
    }
    Ok(())
}

/// Signals to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind| signal(kind).context("can't take signals");
        Ok(Self { interrupt: of(SignalKind::interrupt())?, terminate: of(SignalKind::terminate())? })
    }

    /// The next one. Cancel-safe.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
