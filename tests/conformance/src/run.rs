//! Runs rows: several at one time, those that assert times alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;

use crate::case::Case;
use crate::door::Door;
use crate::plan::{Entry, Work};
use crate::report::{Row, State};
use crate::scenarios::{self, Stage};
use crate::service::Process;
use crate::steps;

/// Rows at one time, on a machine with two cores and more.
const AT_ONE_TIME: usize = 6;
/// The same where each session starts a pod: that takes more of a processor than any row, and the rows
/// that look at the time would see nothing else.
const AT_ONE_TIME_IN_PODS: usize = 2;
/// A row may take this long.
const ROW_MAX: Duration = Duration::from_secs(170);
/// The door of this run.
const DOOR: &str = "grpc";

/// What rows run against.
#[derive(Clone)]
pub struct Target {
    /// The way in.
    pub door: Door,
    /// How the service makes sandboxes: "local" or "kubernetes".
    pub backend: &'static str,
    /// The service's process, where it is known.
    pub process: Option<Process>,
    /// The service's log, where it is known.
    pub log: Option<std::path::PathBuf>,
    /// The seed of the property tests.
    pub seed: u64,
}

/// A row kills or looks at parts of the service, which are not known here.
#[derive(Debug)]
pub struct NeedsProcess;

impl std::fmt::Display for NeedsProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it kills parts of the service and needs --service-pid")
    }
}

impl std::error::Error for NeedsProcess {}

/// Runs all rows and gives them back in their order. `progress` is told of each and how
/// long it took.
pub async fn rows(
    target: &Target,
    entries: Vec<Entry>,
    mut progress: impl FnMut(&Row, Duration),
) -> Vec<Row> {
    let n_entries = entries.len();
    let indexed = entries.into_iter().enumerate();
    let (alone, together): (Vec<_>, Vec<_>) = indexed.partition(|(_, entry)| is_alone(entry));
    let mut done = BTreeMap::new();
    let some = if target.backend == "kubernetes" { AT_ONE_TIME_IN_PODS } else { AT_ONE_TIME };
    for (at_one_time, batch) in [(some, together), (1, alone)] {
        let running = batch.into_iter().map(|(index, entry)| async move {
            let began = Instant::now();
            (index, row(target, entry).await, began.elapsed())
        });
        let mut running = futures::stream::iter(running).buffer_unordered(at_one_time);
        while let Some((index, row, took)) = running.next().await {
            progress(&row, took);
            done.insert(index, row);
        }
    }
    debug_assert_eq!(done.len(), n_entries, "every entry gives one row");
    done.into_values().collect()
}

fn is_alone(entry: &Entry) -> bool {
    matches!(&entry.work, Work::Run(blocks) if blocks.iter().any(|case| case.alone))
}

async fn row(target: &Target, entry: Entry) -> Row {
    let Entry { id, language, work } = entry;
    let (state, note) = match work {
        Work::Later(note) => (State::Unbuilt, note),
        Work::Run(blocks) => match blocks_hold(target, &blocks, &language).await {
            Ok(()) => (State::Held, String::new()),
            Err(error) if error.is::<NeedsProcess>() => (State::Unbuilt, NeedsProcess.to_string()),
            Err(error) => (State::Failed, one_line(&format!("{error:#}"))),
        },
    };
    Row { id, language, door: DOOR.to_owned(), state, note }
}

async fn blocks_hold(target: &Target, blocks: &[Case], language: &str) -> anyhow::Result<()> {
    let run = async {
        for case in blocks {
            block_holds(target, case, language).await.with_context(|| case.what.clone())?;
        }
        Ok(())
    };
    tokio::time::timeout(ROW_MAX, run).await.with_context(|| format!("it took over {ROW_MAX:?}"))?
}

async fn block_holds(target: &Target, case: &Case, language: &str) -> anyhow::Result<()> {
    let Some(name) = &case.scenario else {
        return steps::run(&target.door, target.process.as_ref(), case, language).await;
    };
    let scenario = scenarios::find(name).with_context(|| format!("no scenario is named {name}"))?;
    scenario(Stage { target: target.clone(), case: case.clone(), language: language.to_owned() }).await
}

/// A note on one line, not longer than a reader takes.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(1_500) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
