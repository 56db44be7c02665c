//! How sessions end.

use seance_core::event::EventKind;
use seance_core::program::ProgramState;
use seance_core::reasons;
use seance_core::session::SessionState;

use crate::support::backend::Plan;
use crate::support::store::Fault;
use crate::support::{World, ms};

/// A14, A15, A19: close ends everything, may be repeated, and nothing runs after it.
#[tokio::test(start_paused = true)]
async fn close_ends_all_and_may_be_repeated() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "hang", 10).await.unwrap();
    let closed = world.close(session).await.unwrap();
    assert_eq!((closed.state, closed.reason.as_str()), (SessionState::Closed, reasons::CLOSED));
    assert!(world.backend.sandboxes()[0].is_proven());
    let program = world.program(session, 1).await;
    assert_eq!((program.state, program.reason.as_str()), (ProgramState::Terminated, reasons::CLOSED_PROGRAM));
    assert_eq!(world.close(session).await.unwrap().state, SessionState::Closed);
    let error = world.run(session, "return 1").await.unwrap_err();
    assert_eq!(error.reason(), reasons::SESSION_CLOSED);
    assert!(error.to_string().contains(&session.to_string()), "{error}");
    // What it did stays readable.
    assert_eq!(world.wait_at(session, Some(1), None, 0).await.unwrap().state(), ProgramState::Terminated);
}

/// A16: a close that can't be proven says so, and tells the truth each time it is asked again.
#[tokio::test(start_paused = true)]
async fn a_close_without_a_proof_is_an_error_until_there_is_one() {
    let world = World::new().await;
    world.backend.plan(Plan { end: None, ..Plan::good() });
    let session = world.open().await;
    for _ in 0..3 {
        let began = tokio::time::Instant::now();
        let error = world.close(session).await.unwrap_err();
        assert_eq!(error.reason(), reasons::CLEANUP_UNPROVEN);
        assert!(began.elapsed() <= ms(5_100), "{:?}", began.elapsed());
        assert_eq!(world.record(session).await.state, SessionState::Closing);
    }
    assert_eq!(world.run(session, "return 1").await.unwrap_err().reason(), reasons::SESSION_CLOSED);
    world.backend.let_end();
    assert_eq!(world.close(session).await.unwrap().state, SessionState::Closed);
}

/// A16: the sweep goes on when nobody asks.
#[tokio::test(start_paused = true)]
async fn an_unproven_end_is_swept_until_it_is_proven() {
    let world = World::new().await;
    world.backend.plan(Plan { end: Some(ms(200_000)), ..Plan::good() });
    let session = world.open().await;
    assert_eq!(world.close(session).await.unwrap_err().reason(), reasons::CLEANUP_UNPROVEN);
    world.until(session, |kind| matches!(kind, EventKind::SessionClosed)).await;
    assert_eq!(world.close(session).await.unwrap().state, SessionState::Closed);
}

/// A17, A18: a close during another control is refused and yet closes: what was about to start
/// does not.
#[tokio::test(start_paused = true)]
async fn a_refused_close_closes_and_the_pending_start_never_launches() {
    let world = World::with(1, |config| config.idle_timeout = ms(100)).await;
    let session = world.open().await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    world.backend.plan(Plan { delay: ms(5_000), ..Plan::good() });
    let starting = world.execute(session, "text never").await.unwrap();
    assert_eq!(world.close(session).await.unwrap_err().reason(), reasons::CONTROL_ACTIVE);
    let seen = crate::support::see(starting).await.unwrap();
    assert_eq!((seen.state(), seen.output()), (ProgramState::Terminated, ""));
    assert_eq!(world.close(session).await.unwrap().state, SessionState::Closed);
    let log = world.log(session).await;
    assert!(!log.iter().any(|event| matches!(event.kind, EventKind::ProgramStarted { .. })));
    assert_eq!(world.backend.sandboxes().len(), 1, "the claim was dropped with the session");
}

/// A17: however many commands wait, a refused close closes.
#[tokio::test(start_paused = true)]
async fn a_refused_close_gets_through_a_full_queue() {
    let world = World::new().await;
    let session = world.open().await;
    let observer = world.execute(session, "hang").await.unwrap();
    let number = observer.program();
    let readers = (0..40).map(|_| world.sessions.program(&world.tenant, session, number));
    let (closed, _) = tokio::join!(world.close(session), futures::future::join_all(readers));
    assert_eq!(closed.unwrap_err().reason(), reasons::CONTROL_ACTIVE);
    assert_eq!(crate::support::see(observer).await.unwrap().state(), ProgramState::Terminated);
}

/// Case 75: a session that reached its end of life is told as that.
#[tokio::test(start_paused = true)]
async fn a_session_ends_at_its_ttl_and_says_so() {
    let world = World::new().await;
    let session = world.open_with(|open| open.session_ttl = Some(ms(2_000))).await;
    world.run_for(session, "hang", 100).await.unwrap();
    let ended = world.until_ended(session, 1).await;
    assert_eq!(ended.state, ProgramState::Terminated);
    world.until(session, |kind| matches!(kind, EventKind::SessionClosed)).await;
    assert_eq!(world.run(session, "return 1").await.unwrap_err().reason(), reasons::SESSION_EXPIRED);
    let record = world.record(session).await;
    assert_eq!((record.state, record.reason.as_str()), (SessionState::Closed, reasons::SESSION_TTL));
    let nobodys = seance_core::ids::TenantId::try_from("someone-else".to_owned()).unwrap();
    let hidden = world.sessions.get(&nobodys, session).await.unwrap_err();
    assert_eq!(hidden.reason(), reasons::SESSION_NOT_FOUND);
}

/// Shutdown leaves sessions open, tells what ran, and ends every task.
#[tokio::test(start_paused = true)]
async fn shutdown_leaves_sessions_open_and_tells_what_was_lost() {
    let world = World::new().await;
    let (idle, busy) = (world.open().await, world.open().await);
    let observer = world.execute(busy, "text a; hang").await.unwrap();
    let observed = tokio::spawn(crate::support::see(observer));
    world.until(busy, |kind| matches!(kind, EventKind::Output { .. })).await;
    world.sessions.shutdown(ms(10_000)).await;
    let error = observed.await.unwrap().unwrap_err();
    assert_eq!(error.reason(), "SERVICE_STOPPED");
    for session in [idle, busy] {
        assert_eq!(world.record(session).await.state, SessionState::Open);
        let refused = world.run(session, "return 1").await.unwrap_err();
        assert_eq!(refused.reason(), reasons::SERVICE_STOPPING, "an open session is not told as closed");
    }
    assert!(world.backend.sandboxes().iter().all(|sandbox| sandbox.is_proven()));
    assert_eq!(world.try_open(|_| {}).await.unwrap_err().reason(), reasons::SERVICE_STOPPING);

    let next = world.next_start().await;
    assert_eq!(next.run(idle, "return 1").await.unwrap().value(), Some("1"));
    assert_eq!(next.run(busy, "return 2").await.unwrap().value(), Some("2"));
}

/// A shutdown ends sandboxes side by side, not one after the other.
#[tokio::test(start_paused = true)]
async fn shutdown_takes_as_long_as_the_slowest_sandbox() {
    let world = World::new().await;
    for _ in 0..10 {
        world.backend.plan(Plan { end: Some(ms(1_000)), ..Plan::good() });
        world.open().await;
    }
    let began = tokio::time::Instant::now();
    world.sessions.shutdown(ms(60_000)).await;
    assert!(began.elapsed() < ms(1_500), "{:?}", began.elapsed());
}

/// An open that is at work when the service stops ends like the others.
#[tokio::test(start_paused = true)]
async fn an_open_during_shutdown_is_left_too() {
    let world = World::new().await;
    world.backend.plan(Plan { delay: ms(1_000), ..Plan::good() });
    let began = tokio::time::Instant::now();
    let (opened, ()) = tokio::join!(world.try_open(|_| {}), async {
        tokio::time::sleep(ms(10)).await;
        world.sessions.shutdown(ms(60_000)).await;
    });
    assert_eq!(opened.unwrap_err().reason(), reasons::SERVICE_STOPPING);
    assert!(began.elapsed() < ms(5_000), "{:?}", began.elapsed());
    assert!(world.backend.sandboxes().iter().all(|sandbox| sandbox.is_proven()));
}

/// A close while the store is away is not told as done, and is done when it is back.
#[tokio::test(start_paused = true)]
async fn a_close_is_told_only_when_it_is_in_the_store() {
    let world = World::new().await;
    let session = world.open().await;
    world.store.set(Fault::Failed);
    let error = world.close(session).await.unwrap_err();
    assert_eq!(error.reason(), reasons::STORE_UNAVAILABLE);
    assert_eq!(world.record(session).await.state, SessionState::Open);
    world.store.set(Fault::None);
    world.until(session, |kind| matches!(kind, EventKind::SessionClosed)).await;
    assert_eq!(world.close(session).await.unwrap().state, SessionState::Closed);
}
