//! Processes that are killed: a program's host, a session's sandbox, the service itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seance_proto::v1alpha1 as api;

use super::{Stage, expect, expect_started, source, started, waiting};
use crate::live::{self, Live};
use crate::provider::Record;
use crate::run::NeedsProcess;
use crate::service::{Process, Service};

const CALL_MAX: Duration = Duration::from_secs(10);
const EVENT_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

fn process(stage: &Stage) -> anyhow::Result<Process> {
    stage.target.process.ok_or_else(|| NeedsProcess.into())
}

/// Kills what has no children of its own: the hosts, of running programs and those made ready.
fn kill_hosts(process: Process) -> anyhow::Result<()> {
    let family = process.descendants();
    let hosts: Vec<i32> =
        family.iter().copied().filter(|pid| Process { pid: *pid }.children().is_empty()).collect();
    ensure!(!hosts.is_empty(), "the service has no hosts");
    kill_all(hosts)
}

fn kill_all(pids: impl IntoIterator<Item = i32>) -> anyhow::Result<()> {
    for pid in pids {
        match kill(Pid::from_raw(pid), Signal::SIGKILL) {
            Ok(()) | Err(nix::Error::ESRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("killing process {pid}")),
        }
    }
    Ok(())
}

/// Waits for an event and gives all so far back.
async fn until_event(
    live: &Live,
    what: &str,
    is_wanted: impl Fn(&api::Event) -> bool,
) -> anyhow::Result<Vec<api::Event>> {
    let deadline = Instant::now() + EVENT_MAX;
    loop {
        let events = live.events().await?;
        if events.iter().any(&is_wanted) {
            return Ok(events);
        }
        if Instant::now() >= deadline {
            let kinds: Vec<_> = events.iter().map(live::event_kind).collect();
            bail!("{what} was not recorded within {EVENT_MAX:?}; the events are {kinds:?}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Case 57, I15, N11.
pub async fn host_killed_in_call(mut stage: Stage) -> anyhow::Result<()> {
    let process = process(&stage)?;
    stage.case.hold = vec!["pay".to_owned()];
    stage
        .with_session(async |live| {
            let text = "text('before'); await tools.pay({amount: 1}); return 'no'";
            expect_started(&live.execute(&started(text)).await?)?;
            let provider = live.provider.as_ref().context("no provider")?;
            provider.until(CALL_MAX, "a call of pay", |records| !records.is_empty()).await?;
            kill_hosts(process)?;
            let seen = live.wait(&waiting(1)).await?;
            expect("the wait", &seen, |e| {
                e.refused = Some("HOST_LOST".to_owned());
                e.grpc = Some("UNAVAILABLE".to_owned());
                e.has = vec!["SIGKILL".to_owned()];
            })?;
            let seen = live.program(&waiting(1), 1).await;
            expect("the program's record", &seen, |e| {
                e.state = Some("lost".to_owned());
                e.reason = Some("HOST_LOST".to_owned());
                e.calls = Some(vec!["pay outcome_unknown".to_owned()]);
            })?;
            let seen = live.execute(&source("return 'next'")).await?;
            expect("the next program", &seen, |e| e.value = Some("\"next\"".to_owned()))?;
            let n_paid = live.provider.as_ref().context("no provider")?.records().len();
            ensure!(n_paid == 1, "pay was called {n_paid} times");
            Ok(())
        })
        .await
}

/// I14.
pub async fn host_killed_between(stage: Stage) -> anyhow::Result<()> {
    let process = process(&stage)?;
    stage
        .with_session(async |live| {
            let seen = live.execute(&source("return 1")).await?;
            expect("the first program", &seen, |e| e.value = Some("1".to_owned()))?;
            kill_hosts(process)?;
            let is_exit = |event: &api::Event| {
                matches!(&event.kind, Some(api::event::Kind::HostExited(exit)) if exit.how.contains("SIGKILL"))
            };
            until_event(live, "the end of a host by SIGKILL", is_exit).await?;
            let seen = live.execute(&source("return 2")).await?;
            expect("the next program", &seen, |e| e.value = Some("2".to_owned()))
        })
        .await
}

/// Case 57: everything below the service is killed between two programs.
pub async fn sandbox_killed_between(stage: Stage) -> anyhow::Result<()> {
    let process = process(&stage)?;
    stage
        .with_session(async |live| {
            let seen = live.execute(&source("return 1")).await?;
            expect("the first program", &seen, |e| e.value = Some("1".to_owned()))?;
            kill_all(process.descendants())?;
            let is_end = |event: &api::Event| matches!(event.kind, Some(api::event::Kind::SandboxEnded(_)));
            until_event(live, "the end of the sandbox", is_end).await?;
            let seen = live.execute(&source("return 2")).await?;
            expect("the next program", &seen, |e| {
                (e.value, e.number) = (Some("2".to_owned()), Some(2));
            })?;
            let sandboxes: BTreeSet<String> = live
                .events()
                .await?
                .into_iter()
                .filter_map(|event| match event.kind {
                    Some(api::event::Kind::SandboxAssigned(assigned)) => Some(assigned.sandbox_id),
                    _ => None,
                })
                .collect();
            ensure!(sandboxes.len() == 2, "the log has {} sandboxes instead of 2", sandboxes.len());
            Ok(())
        })
        .await
}

/// R13: a service of its own is killed with a program running, and started again.
pub async fn service_killed(stage: Stage) -> anyhow::Result<()> {
    let service = Service::start().await?;
    let door = crate::door::Door::connect(&service.address).await?;
    let mut before = stage.clone();
    before.target.door = door;
    before.case.hold = vec!["pay".to_owned()];
    let mut live = before.open().await?;
    let seen = live.execute(&source("text('kept'); return {n: 12345678901234567890n}")).await?;
    expect("the first program", &seen, |e| e.value = Some(r#"{"n":12345678901234567890}"#.to_owned()))?;
    expect_started(&live.execute(&started("await tools.pay({amount: 1})")).await?)?;
    let there = |records: &[Record]| !records.is_empty();
    live.provider.as_ref().context("no provider")?.until(CALL_MAX, "a call of pay", there).await?;
    let service = service.kill_and_start().await?;
    let checked = after_restart(&mut live, &service.address).await;
    let ended = service.end().await;
    checked.and(ended)
}

async fn after_restart(live: &mut Live, address: &str) -> anyhow::Result<()> {
    live.door = crate::door::Door::connect(address).await?;
    let seen = live.program(&waiting(1), 1).await;
    expect("the first program after the restart", &seen, |e| {
        (e.state, e.value) = (Some("completed".to_owned()), Some(r#"{"n":12345678901234567890}"#.to_owned()));
    })?;
    let seen = live.until_ended(&waiting(2), 2).await;
    expect("the program that was running", &seen, |e| {
        e.state = Some("lost".to_owned());
        e.reason = Some("SERVICE_RESTARTED".to_owned());
        e.calls = Some(vec!["pay outcome_unknown".to_owned()]);
    })?;
    let seen = live.execute(&source("return 'after'")).await?;
    expect("the next program", &seen, |e| {
        (e.value, e.number) = (Some("\"after\"".to_owned()), Some(3));
    })?;
    let events = live.events().await?;
    let in_order = events.iter().enumerate().all(|(index, event)| event.sequence == index as u64 + 1);
    ensure!(in_order, "the events' sequences are not 1, 2, 3, …");
    live.clean_up().await
}
