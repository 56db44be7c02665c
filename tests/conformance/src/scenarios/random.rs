//! Case 12: completed is never seen while a call is in flight, over random programs.

use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};
use futures::StreamExt as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use seance_proto::v1alpha1 as api;

use super::{Stage, program, source, waiting};
use crate::live::Live;
use crate::seen::{self, Seen};

const PROGRAMS: u64 = 1_000;
const SESSIONS: u64 = 8;
/// A program is looked at this often at most; the last window is the longest.
const WINDOWS_MAX: usize = 50;

/// Runs 1,000 random programs in 8 sessions side by side.
pub async fn random_programs(stage: Stage) -> anyhow::Result<()> {
    let sessions = (0..SESSIONS).map(|session| in_session(stage.clone(), session));
    let mut running = futures::stream::iter(sessions).buffer_unordered(SESSIONS as usize);
    while let Some(done) = running.next().await {
        done?;
    }
    Ok(())
}

async fn in_session(stage: Stage, session: u64) -> anyhow::Result<()> {
    let seed = stage.target.seed;
    stage
        .with_session(async |live| {
            for index in (session..PROGRAMS).step_by(SESSIONS as usize) {
                let mut random = StdRng::seed_from_u64(seed.wrapping_add(index));
                let text = random_program(&mut random);
                let note = || format!("seed {seed}, program {index}: {}", text.replace('\n', "⏎"));
                run(live, &mut random, &text).await.with_context(note)?;
            }
            check_events(&live.events().await?).with_context(|| format!("seed {seed}, session {session}"))
        })
        .await
}

/// Runs one program through random windows and looks at every observation.
async fn run(live: &mut Live, random: &mut StdRng, text: &str) -> anyhow::Result<()> {
    let mut step = source(text);
    step.window_ms = Some(random.random_range(0..20));
    let mut seen = live.execute(&step).await?;
    for _ in 0..WINDOWS_MAX {
        check(live, &seen)?;
        let status = seen.observation.as_ref().context("there is no observation")?.status();
        if status != api::ObservationStatus::StillWorking {
            return Ok(());
        }
        let mut step = waiting(program(&seen)?.number);
        step.window_ms = Some(random.random_range(0..2_000));
        seen = live.wait(&step).await?;
    }
    bail!("it is still at work after {WINDOWS_MAX} windows")
}

/// Once a program is over, each of its calls has its fate, and the provider holds none but those
/// that the program aborted.
fn check(live: &Live, seen: &Seen) -> anyhow::Result<()> {
    if let Some(refusal) = &seen.refused {
        bail!("refused: {}", refusal.message);
    }
    let program = program(seen)?;
    let open = |state| matches!(state, api::CallState::Queued | api::CallState::Dispatched);
    if !seen::is_final(program) {
        return Ok(());
    }
    if let Some(call) = program.calls.iter().find(|call| open(call.state())) {
        bail!("{} with a call in flight: {}", seen::state_name(program.state), seen::call_text(call));
    }
    let records = live.provider.as_ref().context("no provider")?.records();
    for record in records.iter().filter(|record| record.program == program.number && record.is_live()) {
        let call = program.calls.iter().find(|call| call.call_id == record.call_id);
        let is_cancelled = call.is_some_and(|call| call.state() == api::CallState::Cancelled);
        ensure!(is_cancelled, "it is over and {} is still with the provider", record.tool);
    }
    Ok(())
}

/// No call's event stands behind the end of its program.
fn check_events(events: &[api::Event]) -> anyhow::Result<()> {
    let mut ended = std::collections::HashSet::new();
    for event in events {
        match &event.kind {
            Some(api::event::Kind::ProgramEnded(_)) => {
                ensure!(ended.insert(event.program_number), "program {} ended twice", event.program_number);
            }
            Some(api::event::Kind::Call(call)) => {
                let late = ended.contains(&event.program_number);
                ensure!(!late, "{} stands behind the end of its program", seen::call_text(call));
            }
            _ => {}
        }
    }
    ensure!(!ended.is_empty(), "the events have no end of a program");
    Ok(())
}

/// A program of calls that are awaited, raced, aborted, forgotten, failed and thrown over.
fn random_program(random: &mut StdRng) -> String {
    let mut text = String::new();
    for _ in 0..random.random_range(1..8) {
        statement(random, &mut text, 0);
    }
    match random.random_range(0..4) {
        0 => text += "return 1",
        1 => text += "return tools.echo({value: 2})",
        2 => text += "tools.count()",
        _ => {}
    }
    text
}

fn call(random: &mut StdRng) -> String {
    match random.random_range(0..5) {
        0 => "tools.count()".to_owned(),
        1 => format!("tools.echo({{value: {}}})", random.random_range(0..100)),
        2 => "tools.fail({message: 'm'}).catch(() => {})".to_owned(),
        _ => format!("tools.sleep({{ms: {}, value: 1}})", random.random_range(0..15)),
    }
}

fn calls(random: &mut StdRng) -> String {
    let n_calls = random.random_range(1..5);
    (0..n_calls).map(|_| call(random)).collect::<Vec<_>>().join(", ")
}

fn statement(random: &mut StdRng, text: &mut String, depth: usize) {
    let kind = random.random_range(0..if depth < 2 { 16 } else { 11 });
    let written = match kind {
        0 => writeln!(text, "await {};", call(random)),
        1 => writeln!(text, "{};", call(random)),
        2 => writeln!(text, "await Promise.all([{}]);", calls(random)),
        3 => writeln!(text, "await Promise.race([{}]);", calls(random)),
        4 => writeln!(text, "Promise.any([{}]);", calls(random)),
        5 => writeln!(text, "text('out');"),
        6 => writeln!(text, "Promise.resolve().then(() => {});", call(random)),
        7 => writeln!(text, "try {{ await tools.fail({{message: 'm'}}) }} catch {{ {} }}", call(random)),
        8 => writeln!(
            text,
            "{{ const c = new AbortController(); tools.sleep({{ms: 40}}, {{signal: c.signal}}).catch(() => {{}}); {}; c.abort() }}",
            call(random)
        ),
        9 => match random.random_range(0..6) {
            0 => writeln!(text, "throw new Error('x');"),
            1 => writeln!(text, "exit();"),
            2 => writeln!(text, "tools.fail({{message: 'nobody looks'}});"),
            3 => writeln!(text, "Promise.reject(new Error('nobody looks'));"),
            _ => writeln!(text, "await null;"),
        },
        10 => writeln!(text, "await {}.then(() => {});", call(random), call(random)),
        11 | 12 => block(random, text, depth, "(async () => {", "})().catch(() => {});"),
        13 => block(random, text, depth, "for (let i = 0; i < 3; i++) {", "}"),
        14 => block(random, text, depth, "await (async () => {", "})();"),
        _ => block(random, text, depth, "try {", "} catch { text('caught') }"),
    };
    written.expect("a string takes any text");
}

fn block(random: &mut StdRng, text: &mut String, depth: usize, begin: &str, end: &str) -> std::fmt::Result {
    writeln!(text, "{begin}")?;
    for _ in 0..random.random_range(1..4) {
        statement(random, text, depth + 1);
    }
    writeln!(text, "{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_program_and_others_give_others() {
        let program = |seed| random_program(&mut StdRng::seed_from_u64(seed));
        assert_eq!(program(7), program(7));
        let different: std::collections::HashSet<String> = (0..100).map(program).collect();
        assert!(different.len() > 90, "{} different programs of 100", different.len());
    }

    #[test]
    fn an_event_of_a_call_behind_its_program_is_found() {
        let event = |kind| api::Event { program_number: 1, kind: Some(kind), ..api::Event::default() };
        let ended = event(api::event::Kind::ProgramEnded(api::Program::default()));
        let call = event(api::event::Kind::Call(api::Call::default()));
        assert!(check_events(&[call.clone(), ended.clone()]).is_ok());
        assert!(check_events(&[ended.clone(), call]).is_err());
        assert!(check_events(&[ended.clone(), ended]).is_err());
        assert!(check_events(&[]).is_err());
    }
}
