//! Execute, wait, stop and close against each other.

use seance_core::event::EventKind;
use seance_core::program::ProgramState;
use seance_core::reasons;
use seance_sessions::{Status, StopRequest};

use crate::support::backend::Plan;
use crate::support::store::Fault;
use crate::support::{World, ms, see};

/// A6: stop ends the program and gives its last output.
#[tokio::test(start_paused = true)]
async fn stop_ends_the_program_and_gives_what_is_left_of_its_output() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "text a; sleep 500; text b; hang", 100).await.unwrap();
    tokio::time::sleep(ms(1_000)).await;
    let stopped = world.stop(session).await.unwrap();
    assert_eq!((stopped.status, stopped.output.as_str()), (Status::Terminated, "b"));
    assert_eq!(stopped.program.reason, reasons::STOPPED);
    // A11: the session takes the next program.
    assert_eq!(world.run(session, "return 2").await.unwrap().value(), Some("2"));
}

/// A7: a natural end is never lost to a stop.
#[tokio::test(start_paused = true)]
async fn stop_of_a_finished_program_tells_how_it_finished() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "sleep 500; text x; return 1", 100).await.unwrap();
    tokio::time::sleep(ms(1_000)).await;
    let request = StopRequest { program: Some(seance_core::ids::ProgramNumber(1)), ..StopRequest::default() };
    let stopped = world.stop_with(session, request).await.unwrap();
    assert_eq!((stopped.status, stopped.output.as_str()), (Status::Completed, "x"));
}

/// A8: nothing active is an error.
#[tokio::test(start_paused = true)]
async fn wait_and_stop_without_a_program_are_errors() {
    let world = World::new().await;
    let session = world.open().await;
    assert_eq!(world.wait(session).await.unwrap_err().reason(), reasons::NO_ACTIVE_PROGRAM);
    assert_eq!(world.stop(session).await.unwrap_err().reason(), reasons::NO_ACTIVE_PROGRAM);
    world.run(session, "return 1").await.unwrap();
    assert_eq!(world.wait(session).await.unwrap_err().reason(), reasons::NO_ACTIVE_PROGRAM);
    assert_eq!(world.stop(session).await.unwrap_err().reason(), reasons::NO_ACTIVE_PROGRAM);
}

/// A9: a second execute leaves the first alone.
#[tokio::test(start_paused = true)]
async fn a_second_execute_is_refused_and_the_first_completes() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "sleep 1000; return 1", 10).await.unwrap();
    let refused = world.run(session, "return 2").await.unwrap_err();
    assert_eq!(refused.reason(), reasons::PROGRAM_ACTIVE);
    assert_eq!(world.wait(session).await.unwrap().value(), Some("1"));
    assert_eq!(world.record(session).await.last_program, 1);
}

/// A12: of overlapping controls one runs, and the refused ones do nothing.
#[tokio::test(start_paused = true)]
async fn overlapping_controls_are_refused_without_an_effect() {
    let world = World::new().await;
    let session = world.open().await;
    let observer = world.execute(session, "sleep 1000; return 1").await.unwrap();
    assert_eq!(world.wait(session).await.unwrap_err().reason(), reasons::CONTROL_ACTIVE);
    assert_eq!(world.stop(session).await.unwrap_err().reason(), reasons::CONTROL_ACTIVE);
    assert_eq!(world.run(session, "return 2").await.unwrap_err().reason(), reasons::CONTROL_ACTIVE);
    let seen = see(observer).await.unwrap();
    assert_eq!((seen.state(), seen.value()), (ProgramState::Completed, Some("1")));
    assert_eq!(world.record(session).await.last_program, 1);
}

/// A12: the control of an execute whose caller has gone is held until its program is accepted.
#[tokio::test(start_paused = true)]
async fn an_abandoned_execute_keeps_its_control_until_it_is_done() {
    let world = World::new().await;
    let session = world.open().await;
    world.store.set(Fault::Waits);
    let dropped = tokio::time::timeout(ms(10), world.execute(session, "text a; return 1")).await;
    assert!(dropped.is_err(), "the store takes nothing");
    let refused = world.run(session, "return 2").await.unwrap_err();
    assert_eq!(refused.reason(), reasons::CONTROL_ACTIVE);
    world.store.set(Fault::None);
    assert_eq!(world.until_ended(session, 1).await.state, ProgramState::Completed);
    assert_eq!(world.run(session, "return 2").await.unwrap().value(), Some("2"));
}

/// A13: a stop while execute is starting is refused, and execute finishes.
#[tokio::test(start_paused = true)]
async fn stop_during_the_start_is_refused_and_the_start_goes_on() {
    let world = World::with(1, |config| config.idle_timeout = ms(100)).await;
    let session = world.open().await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    world.backend.plan(Plan { delay: ms(5_000), ..Plan::good() });
    let starting = world.execute(session, "return 1").await.unwrap();
    assert_eq!(world.stop(session).await.unwrap_err().reason(), reasons::CONTROL_ACTIVE);
    assert_eq!(see(starting).await.unwrap().value(), Some("1"));
}

/// A stop of a program that still waits for its sandbox ends it; the sandbox serves the next.
#[tokio::test(start_paused = true)]
async fn a_queued_program_stops_at_once() {
    let world = World::with(1, |config| config.idle_timeout = ms(100)).await;
    let session = world.open().await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    world.backend.plan(Plan { delay: ms(5_000), ..Plan::good() });
    let queued = world.run_for(session, "return 1", 10).await.unwrap();
    assert_eq!(queued.state(), ProgramState::Queued);
    assert_eq!(world.stop(session).await.unwrap().status, Status::Terminated);
    assert_eq!(world.run(session, "return 2").await.unwrap().value(), Some("2"));
    assert_eq!(world.backend.sandboxes().len(), 2);
}

/// A stop that comes while the program is being started never overtakes the order to run.
#[tokio::test(start_paused = true)]
async fn a_stop_never_passes_the_start() {
    let world = World::new().await;
    let session = world.open().await;
    for n in 1..20 {
        let started = world.run_for(session, "hang", 0).await.unwrap();
        assert_eq!(started.observation.status, Status::StillWorking);
        let stopped = world.stop(session).await.unwrap();
        assert_eq!((stopped.status, stopped.program.number.0), (Status::Terminated, n));
    }
}

/// on_disconnect = STOP: the program of a caller that is gone ends, and says why.
#[tokio::test(start_paused = true)]
async fn an_abandoned_program_is_stopped_where_its_caller_wanted_that() {
    let world = World::new().await;
    let session = world.open().await;
    let observer = world.execute(session, "hang").await.unwrap();
    let program = observer.program();
    drop(observer);
    world.sessions.stop_abandoned(&world.tenant, session, program).await;
    let ended = world.until_ended(session, 1).await;
    assert_eq!((ended.state, ended.reason.as_str()), (ProgramState::Terminated, reasons::DISCONNECTED));
    // Asked about a program that has ended it does nothing.
    world.run_for(session, "sleep 100; return 1", 10).await.unwrap();
    world.sessions.stop_abandoned(&world.tenant, session, program).await;
    assert_eq!(world.wait(session).await.unwrap().value(), Some("1"));
}

/// I10, as ruled: stop doesn't wait for providers, and does not hang on a runner that is deaf.
#[tokio::test(start_paused = true)]
async fn stop_is_bounded_by_the_cleanup_time() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "deaf; sleep 3600000", 100).await.unwrap();
    let began = tokio::time::Instant::now();
    let stopped = world.stop(session).await.unwrap();
    assert_eq!(stopped.status, Status::Terminated);
    assert!((ms(5_000)..ms(5_500)).contains(&began.elapsed()), "{:?}", began.elapsed());
    // The sandbox that did not do what it was asked is never used again.
    assert_eq!(world.run(session, "return 1").await.unwrap().value(), Some("1"));
    assert_eq!(world.backend.sandboxes().len(), 2);
}
