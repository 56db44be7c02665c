//! Sandboxes that come late, not at all, or go; and how many of what there may be.

use seance_core::event::EventKind;
use seance_core::program::ProgramState;
use seance_core::reasons;
use seance_core::sandbox::{BlockReason, ClaimError, EndReason};
use seance_core::session::SessionState;
use seance_sessions::Observed;

use crate::support::backend::Plan;
use crate::support::runner::Greeting;
use crate::support::{World, ms};

/// Case 78 as far as it is built: an idle sandbox goes, the session stays, the next program gets a
/// new one.
#[tokio::test(start_paused = true)]
async fn an_idle_session_gives_its_sandbox_back_and_gets_a_new_one() {
    let world = World::new().await;
    let session = world.open_with(|open| open.idle_timeout = Some(ms(1_000))).await;
    world.run(session, "return 1").await.unwrap();
    let idle = world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    let EventKind::SandboxEnded { sandbox, end } = idle.kind else { unreachable!("it was looked for") };
    assert_eq!(end.reason, EndReason::Idle);
    assert_eq!(world.run(session, "return 2").await.unwrap().value(), Some("2"));
    let sandboxes = world.backend.sandboxes();
    assert_eq!(sandboxes.len(), 2);
    assert_eq!(sandboxes[0].id, sandbox);
    assert!(sandboxes.iter().all(|sandbox| sandbox.sessions() == [session]));
}

/// A program that runs longer than the idle time is never taken for idle.
#[tokio::test(start_paused = true)]
async fn a_running_program_is_not_idle() {
    let world = World::new().await;
    let session = world.open_with(|open| open.idle_timeout = Some(ms(100))).await;
    assert_eq!(world.run(session, "sleep 5000; return 1").await.unwrap().value(), Some("1"));
    assert_eq!(world.backend.sandboxes().len(), 1);
}

/// I14: a sandbox that is lost between programs is told in the log, and the next program runs.
#[tokio::test(start_paused = true)]
async fn a_sandbox_lost_between_programs_is_replaced() {
    let world = World::new().await;
    let session = world.open().await;
    world.run(session, "return 1").await.unwrap();
    world.backend.kill(world.backend.sandboxes()[0].id);
    let ended = world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    let EventKind::SandboxEnded { end, .. } = ended.kind else { unreachable!("it was looked for") };
    assert_eq!(end.reason, EndReason::RunnerExited);
    assert_eq!(world.run(session, "return 2").await.unwrap().value(), Some("2"));
}

/// No sandbox: a program that was accepted never ran, and says so.
#[tokio::test(start_paused = true)]
async fn a_program_without_a_sandbox_never_started() {
    let world = World::new().await;
    let session = world.open_with(|open| open.idle_timeout = Some(ms(100))).await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    let why = ClaimError::StartFailed { message: "no memory".to_owned() };
    world.backend.plan(Plan { error: Some(why), ..Plan::good() });
    let error = world.run(session, "return 1").await.unwrap_err();
    assert_eq!(error.reason(), reasons::NO_SANDBOX);
    assert!(error.to_string().contains("no memory"), "{error}");
    assert_eq!(world.program(session, 1).await.state, ProgramState::NotStarted);
    // A claim that takes longer than it may.
    world.backend.plan(Plan { delay: ms(3_600_000), ..Plan::good() });
    let error = world.run(session, "return 1").await.unwrap_err();
    assert_eq!(error.reason(), reasons::NO_SANDBOX);
    assert_eq!(world.run(session, "return 3").await.unwrap().value(), Some("3"));
}

/// What is in the way of a program's sandbox is the program's reason (sandbox 22).
#[tokio::test(start_paused = true)]
async fn a_program_says_what_was_in_the_way_of_its_sandbox() {
    let world = World::new().await;
    let session = world.open_with(|open| open.idle_timeout = Some(ms(100))).await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    let (reason, message) = (BlockReason::QuotaExceeded, "pods=3".to_owned());
    world.backend.plan(Plan { error: Some(ClaimError::Blocked { reason, message }), ..Plan::good() });
    let error = world.run(session, "return 1").await.unwrap_err();
    assert_eq!(error.reason(), reasons::QUOTA_EXCEEDED);
    let program = world.program(session, 1).await;
    assert_eq!((program.state, program.reason.as_str()), (ProgramState::NotStarted, "QUOTA_EXCEEDED"));
}

/// Sandbox 9: a sandbox that had a session is never used again, and who asked for one sees nothing of
/// it: the next is taken, a few times at most.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_was_used_before_ends_and_the_next_is_taken() {
    let world = World::new().await;
    let old = world.open().await;
    let used = world.backend.sandboxes()[0].id;
    let again = || world.backend.plan(Plan { again: Some(used), ..Plan::good() });
    again();
    let opened = world.open_with(|open| open.idle_timeout = Some(ms(100))).await;
    let [_, refused, taken] = &world.backend.sandboxes()[..] else { panic!("there are three") };
    assert!(refused.is_proven() && refused.sessions().is_empty(), "it saw nothing of the session");
    assert_eq!(taken.sessions(), [opened]);
    // The same where a session needs another.
    world.until(opened, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    again();
    again();
    assert_eq!(world.run(opened, "return 2").await.unwrap().value(), Some("2"));
    let assigned =
        |kind: &EventKind| matches!(kind, EventKind::SandboxAssigned { sandbox } if *sandbox == used);
    assert!(!world.log(opened).await.iter().any(|event| assigned(&event.kind)), "nor is it in the log");
    // Where there are only such, it is said.
    (0..3).for_each(|_| again());
    assert_eq!(world.try_open(|_| {}).await.unwrap_err().reason(), reasons::SANDBOX_UNAVAILABLE);
    assert_eq!(world.run(old, "return 3").await.unwrap().value(), Some("3"), "who has it keeps it");
}

/// Sandbox 7: a queued program tells its place in line when it gets one and when that is another, and
/// none once it runs.
#[tokio::test(start_paused = true)]
async fn a_queued_program_tells_its_place_in_line() {
    let world = World::new().await;
    let session = world.open_with(|open| open.idle_timeout = Some(ms(100))).await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    world.backend.plan(Plan { delay: ms(25_000), position: 4, ..Plan::good() });
    let mut observer = world.execute(session, "sleep 15000; return 1").await.unwrap();
    let (mut told, mut last) = (Vec::new(), None);
    while let Some(message) = observer.next().await {
        match message.unwrap() {
            Observed::Heartbeat { queue_position } => told.push(queue_position),
            Observed::Done(observation) => last = Some(observation),
            Observed::Output { .. } => {}
        }
    }
    assert_eq!(told, [4, 4, 4, 0], "at once, and then in every 10 s of silence");
    assert_eq!(last.unwrap().queue_position, 0);
}

/// The place is in the observation of a window that ends before the program has begun.
#[tokio::test(start_paused = true)]
async fn an_observation_of_a_queued_program_has_its_place_in_line() {
    let world = World::new().await;
    let session = world.open_with(|open| open.idle_timeout = Some(ms(100))).await;
    world.until(session, |kind| matches!(kind, EventKind::SandboxEnded { .. })).await;
    world.backend.plan(Plan { delay: ms(5_000), position: 2, ..Plan::good() });
    let queued = world.run_for(session, "return 1", 1_000).await.unwrap();
    assert_eq!((queued.state(), queued.observation.queue_position), (ProgramState::Queued, 2));
    let done = world.wait(session).await.unwrap();
    assert_eq!((done.value(), done.observation.queue_position), (Some("1"), 0));
}

/// An open that gets no sandbox leaves no session.
#[tokio::test(start_paused = true)]
async fn an_open_without_a_sandbox_leaves_nothing() {
    let world = World::new().await;
    world.backend.plan(Plan { delay: ms(3_600_000), ..Plan::good() });
    assert_eq!(world.try_open(|_| {}).await.unwrap_err().reason(), reasons::SANDBOX_EXHAUSTED);
    let filter = seance_core::store::SessionFilter { n_max: 10, ..Default::default() };
    assert!(world.sessions.list(&world.tenant, filter).await.unwrap().is_empty());
}

/// An open whose runner dies is told at once, one whose runner is silent after its time; neither
/// leaves a session that looks open.
#[tokio::test(start_paused = true)]
async fn an_open_whose_runner_does_not_take_the_session_fails() {
    let world = World::new().await;
    for (greeting, at_most) in [(Greeting::Dies, ms(100)), (Greeting::Silent, ms(31_000))] {
        world.backend.plan(Plan { greeting, ..Plan::good() });
        let began = tokio::time::Instant::now();
        let error = world.try_open(|_| {}).await.unwrap_err();
        assert_eq!(error.reason(), reasons::SANDBOX_UNAVAILABLE);
        assert!(began.elapsed() < at_most, "{greeting:?}: {:?}", began.elapsed());
    }
    let filter = seance_core::store::SessionFilter { n_max: 10, ..Default::default() };
    let left = world.sessions.list(&world.tenant, filter).await.unwrap();
    assert!(left.iter().all(|session| session.state == SessionState::Closed));
    assert!(world.backend.sandboxes().iter().all(|sandbox| sandbox.is_proven()));
}

/// A session that is closed while its sandbox is got drops the claim.
#[tokio::test(start_paused = true)]
async fn an_engine_below_the_wanted_version_fails_the_first_program() {
    let world = World::new().await;
    let session = world.open_with(|open| open.min_version = "9.0".to_owned()).await;
    let seen = world.run(session, "return 1").await.unwrap();
    let error = seen.observation.program.error.unwrap();
    assert_eq!(error.code, reasons::ENGINE_TOO_OLD);
    assert!(error.message.contains("1.2.3") && error.message.contains("9.0"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_no_more_sessions_and_programs_than_it_may() {
    let world = World::with(1, |config| {
        config.max_sessions = 2;
        config.max_running = 1;
    })
    .await;
    let (one, other) = (world.open().await, world.open().await);
    assert_eq!(world.try_open(|_| {}).await.unwrap_err().reason(), reasons::TOO_MANY_SESSIONS);
    let both = tokio::join!(world.execute(one, "sleep 100"), world.execute(other, "sleep 100"));
    let refused = [both.0.as_ref().err(), both.1.as_ref().err()];
    let [None, Some(error)] = refused else { panic!("one of the two at the same time runs") };
    assert_eq!(error.reason(), reasons::TOO_MANY_SESSIONS);
    drop(both);
    world.until_ended(one, 1).await;
    assert_eq!(world.run(other, "return 1").await.unwrap().value(), Some("1"));
    world.close(one).await.unwrap();
    world.open().await;
}
