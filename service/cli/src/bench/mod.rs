//! `seance bench`: what sessions cost, each figure beside a floor of the same run: on this machine, or,
//! with `--kubernetes`, with the service and the pools of an installed chart.
//!
//! A figure alone says little: machines differ, and so do moments. The floor is the least that the
//! same work could cost here and now, such as a bare commit to the same disk. docs/benchmark.md says how
//! each is measured.

mod caller;
mod figures;
mod floors;
mod interpreted;
mod kubernetes;
mod process;
mod report;
mod world;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{Bench, Connection};
use figures::FIGURES;
use floors::Floors;
use report::Report;
use world::World;

/// Measures and prints.
pub async fn bench(connection: &Connection, bench: Bench, json: bool) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        eprintln!("seance: this is a debug build; its figures say nothing about a release");
    }
    if bench.kubernetes {
        return kubernetes::bench(connection, &bench, json).await;
    }
    local(&bench, json).await
}

async fn local(bench: &Bench, json: bool) -> Result<ExitCode> {
    let known: Vec<_> = FIGURES.iter().flat_map(|group| group.names).copied().collect();
    let mut report = Report::new(bench, json, &known)?;
    let world = World::start(&[]).await?;
    figures::until_warm(&world).await;
    let floors = Floors::measure(&world, report.effort).await?;
    for group in FIGURES {
        if report.wants_any(group.names) {
            figures::until_warm(&world).await;
            report.measure(group, &world, &floors).await?;
        }
    }
    world.stop().await;
    report.finish();
    Ok(ExitCode::SUCCESS)
}
