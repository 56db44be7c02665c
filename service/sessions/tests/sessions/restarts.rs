//! The next start of the service finds what the last one left.

use seance_core::event::EventKind;
use seance_core::program::{CallState, ProgramState};
use seance_core::reasons;
use seance_core::session::SessionState;

use crate::support::backend::Plan;
use crate::support::tools::Tools;
use crate::support::{World, ms};

/// What ran when the service died is told as lost, with the fates of its calls; nothing is repeated.
#[tokio::test(start_paused = true)]
async fn a_program_that_ran_is_lost_with_the_fates_of_its_calls() {
    let world = World::new().await;
    let session = world
        .open_with(|open| {
            open.limits.insert("max_concurrency".into(), 2);
        })
        .await;
    let tools = Tools::shared();
    let _serving = world.sessions.providers().attach_local(session, &[], tools.clone()).unwrap();
    let source = "text a; call echo {}; send pay {}; send sleep {}; send sleep {}; send sleep {}; hang";
    let first = world.run_for(session, source, 500).await.unwrap();

    let next = world.next_start().await;
    let error = next.wait_at(session, Some(1), Some(first.cursor()), 60_000).await.unwrap_err();
    assert_eq!(error.reason(), reasons::SERVICE_RESTARTED);
    let program = next.program(session, 1).await;
    assert_eq!(program.state, ProgramState::Lost);
    let states: Vec<_> = program.calls.iter().map(|call| call.state).collect();
    use CallState::*;
    assert_eq!(states, [Finished, Finished, OutcomeUnknown, OutcomeUnknown, NotStarted]);
    assert_eq!(next.run(session, "return 1").await.unwrap().value(), Some("1"));
    assert!(tools.seen().iter().all(|(_, repeated)| !repeated));
    let log = next.log(session).await;
    assert!(log.iter().any(|e| matches!(e.kind, EventKind::OwnerChanged { .. })));
}

/// A program that never got a sandbox was not started.
#[tokio::test(start_paused = true)]
async fn a_program_that_waited_for_a_sandbox_was_not_started() {
    let world = World::with(1, |config| config.idle_timeout = ms(100)).await;
    let session = world.open().await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    world.backend.plan(Plan { delay: ms(20_000), ..Plan::good() });
    world.run_for(session, "text never", 10).await.unwrap();
    let next = world.next_start().await;
    let program = next.until_ended(session, 1).await;
    assert_eq!(
        (program.state, program.reason.as_str()),
        (ProgramState::NotStarted, reasons::SERVICE_RESTARTED)
    );
    let error = next.wait_at(session, Some(1), None, 0).await.unwrap_err();
    assert!(error.to_string().contains("never started"), "{error}");
}

/// A close that was not proven when the service died is over when its sandboxes are.
#[tokio::test(start_paused = true)]
async fn a_closing_session_is_closed_by_the_next_start() {
    let world = World::new().await;
    world.backend.plan(Plan { end: None, ..Plan::good() });
    let session = world.open().await;
    assert_eq!(world.close(session).await.unwrap_err().reason(), reasons::CLEANUP_UNPROVEN);
    let next = world.next_start().await;
    next.until(session, |kind| matches!(kind, EventKind::SessionClosed)).await;
    assert_eq!(next.close(session).await.unwrap().state, SessionState::Closed);
}

/// What was observed before stays observed, and cursors stay good.
#[tokio::test(start_paused = true)]
async fn cursors_and_observations_outlive_a_restart() {
    let world = World::new().await;
    let session = world.open().await;
    let first = world.run_for(session, "text a; sleep 200; text b; sleep 5000; return 1", 100).await.unwrap();
    let second = world.wait_at(session, None, None, 500).await.unwrap();
    assert_eq!(second.bytes, b"\nb");
    world.until_ended(session, 1).await;
    let next = world.next_start().await;
    let with = next.wait_at(session, Some(1), Some(first.cursor()), 0).await.unwrap();
    assert_eq!((with.bytes.as_slice(), with.value()), (b"\nb".as_slice(), Some("1")));
    let without = next.wait_at(session, Some(1), None, 0).await.unwrap();
    assert_eq!((without.bytes.as_slice(), without.value()), (b"".as_slice(), Some("1")));
}
