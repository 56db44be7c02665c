//! A store that is full, away, or does not know what it wrote.

use seance_core::event::EventKind;
use seance_core::ids::EventSeq;
use seance_core::reasons;
use seance_core::session::SessionState;
use seance_sessions::Status;

use crate::support::store::Fault;
use crate::support::tools::Tools;
use crate::support::{World, ms};

/// A full store refuses new work, and nothing that was acknowledged is lost.
#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_new_work_and_recovers() {
    let world = World::new().await;
    let session = world.open().await;
    let idle = world.open().await;
    let first =
        world.run_for(session, "text a; sleep 2000; text b; sleep 2000; text c", 1_000).await.unwrap();
    world.store.set(Fault::Full);
    let seen = world.wait_at(session, None, Some(first.cursor()), 2_000).await.unwrap();
    assert_eq!((seen.observation.status, seen.output()), (Status::StillWorking, ""));
    assert_eq!(world.run(idle, "return 1").await.unwrap_err().reason(), reasons::STORE_FULL);
    assert_eq!(world.try_open(|_| {}).await.unwrap_err().reason(), reasons::STORE_FULL);
    assert!(world.backend.sandboxes().last().unwrap().is_proven(), "the sandbox of no session ended");
    tokio::time::sleep(ms(60_000)).await;
    world.store.set(Fault::None);
    let rest = world.wait_at(session, Some(1), Some(first.cursor()), 60_000).await.unwrap();
    assert_eq!((rest.observation.status, rest.bytes), (Status::Completed, b"\nb\nc".to_vec()));
}

/// A23: windows end while the store is away, also for programs that wait to be told to stop.
#[tokio::test(start_paused = true)]
async fn callers_are_told_while_the_store_is_away() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "text a; sleep 10; text b; hang", 0).await.unwrap();
    for fault in [Fault::Failed, Fault::Waits] {
        world.store.set(fault);
        tokio::time::sleep(ms(200)).await;
        let began = tokio::time::Instant::now();
        let seen = world.wait_at(session, None, None, 1_000).await.unwrap();
        assert_eq!(seen.observation.status, Status::StillWorking);
        assert!(began.elapsed() < ms(1_500), "{fault:?}: {:?}", began.elapsed());
    }
    world.store.set(Fault::Failed);
    let began = tokio::time::Instant::now();
    assert_eq!(world.stop(session).await.unwrap_err().reason(), reasons::STORE_UNAVAILABLE);
    assert!(began.elapsed() < ms(3_000), "{:?}", began.elapsed());
    world.store.set(Fault::None);
    assert_eq!(world.until_ended(session, 1).await.reason, reasons::STOPPED, "it was still done");
}

/// A write that the store says failed and that was done is not done twice, nor is the session lost.
#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_found_out() {
    let world = World::new().await;
    let session = world.open().await;
    let tools = Tools::shared();
    let _serving = world.sessions.providers().attach_local(session, &[], tools.clone()).unwrap();
    world.run_for(session, "text a; sleep 1000; call pay {}; text b; return 1", 100).await.unwrap();
    world.store.set(Fault::Lies);
    tokio::time::sleep(ms(1_200)).await;
    world.store.set(Fault::None);
    let seen = world.wait_at(session, Some(1), None, 60_000).await.unwrap();
    assert_eq!((seen.value(), seen.bytes.as_slice()), (Some("1"), b"\nb".as_slice()));
    assert_eq!(tools.seen().len(), 1);
    let log = world.log(session).await;
    assert!(log.iter().zip(1..).all(|(event, n)| event.seq == EventSeq(n)));
    assert_eq!(world.run(session, "return 2").await.unwrap().value(), Some("2"));
}

/// A session that another owner took over is let go of at once: its sandbox ends, and its callers
/// are told to connect again.
#[tokio::test(start_paused = true)]
async fn a_session_with_another_owner_is_let_go() {
    let world = World::new().await;
    let session = world.open().await;
    let observer = world.execute(session, "text a; sleep 1000; text b; hang").await.unwrap();
    let next = world.next_start().await;
    let error = crate::support::see(observer).await.unwrap_err();
    assert_eq!(error.reason(), reasons::SERVICE_STOPPING);
    assert_eq!(world.run(session, "return 1").await.unwrap_err().reason(), reasons::SERVICE_STOPPING);
    assert!(world.backend.sandboxes()[0].is_proven());
    assert_eq!(next.run(session, "return 1").await.unwrap().value(), Some("1"));
    assert_eq!(next.close(session).await.unwrap().state, SessionState::Closed);
    let log = next.log(session).await;
    assert!(log.iter().zip(1..).all(|(event, n)| event.seq == EventSeq(n)));
    assert_eq!(log.iter().filter(|e| matches!(e.kind, EventKind::ProgramEnded(_))).count(), 2);
}
