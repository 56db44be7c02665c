//! Walks through a case's steps and says the first thing that is not as expected.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use seance_proto::v1alpha1 as api;

use crate::case::{Action, Case, Step};
use crate::door::{self, Door};
use crate::fixtures;
use crate::live::{self, Live};
use crate::provider::Record;
use crate::seen::{self, Seen};
use crate::service::Process;

/// A step may take this long: the longest window and then some.
const STEP_MAX: Duration = Duration::from_secs(75);
/// A call may take this long to reach the provider.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Runs a case's steps in `language` and closes what it opened. The error is the note.
pub async fn run(door: &Door, process: Option<&Process>, case: &Case, language: &str) -> anyhow::Result<()> {
    let mut sessions = BTreeMap::new();
    let walked = walk(door, process, case, language, &mut sessions).await;
    let mut closed = Ok(());
    for live in sessions.values_mut() {
        let cleaned = tokio::time::timeout(STEP_MAX, live.clean_up()).await;
        closed = closed.and(cleaned.context("closing at the end took too long").and_then(|done| done));
    }
    walked.and(closed)
}

async fn walk(
    door: &Door,
    process: Option<&Process>,
    case: &Case,
    language: &str,
    sessions: &mut BTreeMap<String, Live>,
) -> anyhow::Result<()> {
    for (index, step) in case.steps.iter().enumerate() {
        let action = step.action()?;
        let named = || format!("step {} ({action:?}{})", index + 1, source_note(step));
        let before = process.map(Process::resident_bytes).transpose()?;
        let stepping = take(door, case, language, step, action, sessions);
        let mut seen = tokio::time::timeout(STEP_MAX, stepping)
            .await
            .with_context(|| format!("it took over {STEP_MAX:?}"))
            .and_then(|seen| seen)
            .with_context(named)?;
        if let (Some(before), Some(process)) = (before, process) {
            seen.service_grew = Some(process.resident_bytes()?.saturating_sub(before));
        }
        if let Some(provider) = sessions.get(&step.on).and_then(|live| live.provider.as_ref()) {
            // A provider is told of a cancellation beside the observation; the times are asserted apart.
            let n_told = step.expect.cancelled.as_ref().map_or(0, Vec::len);
            let told =
                |records: &[Record]| records.iter().filter(|r| r.cancelled.is_some()).count() >= n_told;
            provider.until(CALL_MAX, "the cancellation", told).await.with_context(named)?;
            seen.records = provider.records();
        }
        let wrong = seen::mismatches(&step.expect, &seen);
        if !wrong.is_empty() {
            bail!("{}: {}", named(), wrong.join("; "));
        }
    }
    Ok(())
}

async fn take(
    door: &Door,
    case: &Case,
    language: &str,
    step: &Step,
    action: Action,
    sessions: &mut BTreeMap<String, Live>,
) -> anyhow::Result<Seen> {
    match action {
        Action::Describe => return describe(door, case).await,
        Action::Engines => return Ok(engines(door).await),
        Action::Info => return Ok(info(door).await),
        _ => {}
    }
    let mut opened = None;
    if !sessions.contains_key(&step.on) {
        match live::open(door, case, language).await? {
            Ok((live, seen)) => {
                sessions.insert(step.on.clone(), live);
                opened = Some(seen);
            }
            Err(refusal) if action == Action::Open => {
                return Ok(Seen { refused: Some(refusal), ..Seen::default() });
            }
            Err(refusal) => bail!("opening: {}", refusal.message),
        }
    }
    let live = sessions.get_mut(&step.on).expect("it was there or was just put there");
    let seen = on_session(live, step, action, opened).await?;
    live.remember(step, &seen);
    Ok(seen)
}

async fn on_session(
    live: &mut Live,
    step: &Step,
    action: Action,
    opened: Option<Seen>,
) -> anyhow::Result<Seen> {
    match action {
        Action::Open => opened.context("it was open already"),
        Action::Execute => live.execute(step).await,
        Action::Begin => live.begin(step).await,
        Action::BeginWait => live.begin_wait(step).await,
        Action::Join => live.join().await,
        Action::Cut => live.cut().await.map(|()| Seen::default()),
        Action::Wait => live.wait(step).await,
        Action::Stop => live.stop(step).await,
        Action::Close => live.close(step).await,
        Action::Program => Ok(live.program(step, step.program.unwrap_or_default()).await),
        Action::Get => Ok(live.get(step).await),
        Action::Answer => live.answer(step).await,
        Action::UntilCall => until_call(live, step).await,
        Action::UntilEnded => Ok(live.until_ended(step, step.until_ended.unwrap_or_default()).await),
        Action::UntilClosed => Ok(live.until_closed(step).await),
        Action::Events => events(live).await,
        Action::Describe | Action::Engines | Action::Info => bail!("it has no session"),
    }
}

async fn until_call(live: &Live, step: &Step) -> anyhow::Result<Seen> {
    let tool = step.until_call.as_deref().unwrap_or_default();
    let provider = live.provider.as_ref().context("no provider is attached")?;
    let there = |records: &[Record]| records.iter().any(|record| record.tool == tool);
    provider.until(CALL_MAX, &format!("a call of {tool}"), there).await?;
    Ok(Seen::default())
}

async fn events(live: &Live) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    match live.events().await {
        Ok(events) => {
            let in_order = events.iter().enumerate().all(|(index, event)| event.sequence == index as u64 + 1);
            anyhow::ensure!(in_order, "the events' sequences are not 1, 2, 3, …");
            seen.events = Some(events.iter().map(|event| live::event_kind(event).to_owned()).collect());
        }
        Err(status) => seen.refused = Some(door::refusal(&status)),
    }
    Ok(seen)
}

async fn describe(door: &Door, case: &Case) -> anyhow::Result<Seen> {
    let request = api::DescribeRequest {
        engine: case.engine.clone().unwrap_or_else(|| "javascript".to_owned()),
        catalog: Some(live::inline(fixtures::catalog(case.fixtures.as_deref(), &case.tools)?)),
        engine_options: case.options.clone(),
    };
    let sent = Instant::now();
    let mut seen = door::answered(door.engines().describe(request).await, |seen, response| {
        seen.aliases = response.aliases.into_iter().map(|alias| alias.alias).collect();
        (seen.text, seen.declarations) = (response.instructions, response.declarations);
    });
    seen.elapsed = sent.elapsed();
    Ok(seen)
}

async fn engines(door: &Door) -> Seen {
    door::answered(door.engines().list(api::ListEnginesRequest {}).await, |seen, response| {
        let line = |e: &api::Engine| {
            let state = if e.available { "available" } else { "unavailable" };
            format!("{} {state} {} {}", e.name, e.languages.join(","), e.options.join(","))
        };
        seen.text = response.engines.iter().map(line).collect::<Vec<_>>().join("\n");
    })
}

async fn info(door: &Door) -> Seen {
    door::answered(door.server().get_info(api::GetInfoRequest {}).await, |seen, response| {
        seen.limits = response.limits.iter().map(|limit| (limit.name.clone(), limit.default_value)).collect();
        seen.text = format!("backend {} tenant {}", response.backend, response.tenant);
    })
}

/// The source of a step in a note, on one line and not too long.
pub fn source_note(step: &Step) -> String {
    let Some(source) = step.execute.as_ref().or(step.begin.as_ref()) else { return String::new() };
    let line = source.trim().replace('\n', "⏎");
    let cut: String = line.chars().take(160).collect();
    format!(" `{cut}{}`", if cut.len() < line.len() { "…" } else { "" })
}
