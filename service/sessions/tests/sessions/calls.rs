//! Tool calls from a program to whoever answers.

use seance_broker::providers::{Attach, Content, ToProvider, ToolResult};
use seance_core::event::EventKind;
use seance_core::ids::{CallId, ProgramNumber};
use seance_core::program::{CallState, ProgramState};
use seance_core::reasons;
use seance_sessions::{ObserveOptions, Status};

use crate::support::store::Fault;
use crate::support::tools::Tools;
use crate::support::{World, ms, see};

/// Case 12: a completed program has no call at work, whatever its host says.
#[tokio::test(start_paused = true)]
async fn a_completed_program_has_no_call_at_work() {
    let world = World::new().await;
    let session = world.open().await;
    let seen = world.run(session, "send sleep 60000; send echo; leave 1").await.unwrap();
    assert_eq!((seen.state(), seen.value()), (ProgramState::Completed, Some("1")));
    let calls = &seen.observation.program.calls;
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| call.state.is_final()), "{calls:?}");
}

/// Case 55: a stop reaches the tool, and the call is told as cancelled.
#[tokio::test(start_paused = true)]
async fn a_stop_reaches_the_tool() {
    let world = World::new().await;
    let session = world.open().await;
    let tools = Tools::shared();
    let _serving = world.sessions.providers().attach_local(session, &[], tools.clone()).unwrap();
    world.run_for(session, "call sleep {\"ms\":60000}", 100).await.unwrap();
    let began = tokio::time::Instant::now();
    let stopped = world.stop(session).await.unwrap();
    assert_eq!(stopped.status, Status::Terminated);
    assert_eq!(stopped.program.calls[0].state, CallState::Cancelled);
    assert!(began.elapsed() < ms(200), "{:?}", began.elapsed());
    assert_eq!(tools.cancelled(), [stopped.program.calls[0].id]);
}

/// Case 57, I15: a lost host leaves calls whose outcome is unknown, and nothing is repeated.
#[tokio::test(start_paused = true)]
async fn a_lost_host_is_an_error_with_the_fate_of_its_calls() {
    let world = World::new().await;
    let session = world.open().await;
    let tools = Tools::shared();
    let _serving = world.sessions.providers().attach_local(session, &[], tools.clone()).unwrap();
    let error =
        world.run(session, "call echo; send sleep {\"ms\":60000}; sleep 100; die SIGKILL").await.unwrap_err();
    assert_eq!(error.reason(), reasons::HOST_LOST);
    assert!(error.to_string().contains("SIGKILL"), "{error}");
    let program = world.program(session, 1).await;
    assert_eq!(program.state, ProgramState::Lost);
    let states: Vec<_> = program.calls.iter().map(|call| call.state).collect();
    assert_eq!(states, [CallState::Finished, CallState::OutcomeUnknown]);
    // I14: the session goes on.
    assert_eq!(world.run(session, "return 1").await.unwrap().value(), Some("1"));
    assert_eq!(tools.seen().len(), 2);
    let again = world.wait_at(session, Some(1), None, 0).await.unwrap_err();
    assert_eq!(again.reason(), reasons::HOST_LOST);
}

/// Case 57: the same when the whole sandbox goes, for each way it can.
#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_told_by_its_reason() {
    let world = World::new().await;
    let session = world.open().await;
    for (n, (how, reason)) in
        [("link", "LINK_LOST"), ("memory", "OUT_OF_MEMORY"), ("protocol", "PROTOCOL_BROKEN")]
            .iter()
            .enumerate()
    {
        let error = world.run(session, &format!("send pay; sleep 10; cut {how}")).await.unwrap_err();
        assert_eq!(error.reason(), *reason);
        let program = world.program(session, 2 * n as u64 + 1).await;
        assert_eq!((program.state, program.calls[0].state), (ProgramState::Lost, CallState::OutcomeUnknown));
        assert_eq!(world.run(session, "return 1").await.unwrap().value(), Some("1"));
    }
    assert_eq!(world.backend.sandboxes().len(), 4);
}

/// Case 76: a call is in the log when its provider gets it, and with its program.
#[tokio::test(start_paused = true)]
async fn a_call_is_in_the_log_before_its_provider_has_it() {
    let world = World::new().await;
    let session = world.open().await;
    let mut provider = world.sessions.providers().attach(session, Attach::default()).unwrap();
    let observer = world.execute(session, "call pay {\"n\":1}; return 1").await.unwrap();
    let Ok(ToProvider::Call(call)) = provider.next().await else { panic!("a call comes first") };
    let made = world.log(session).await.into_iter().find_map(|event| match event.kind {
        EventKind::CallMade(record) => Some((event.program, record)),
        _ => None,
    });
    let (program, record) = made.expect("it is in the log");
    assert_eq!((program, record.id, record.state), (Some(ProgramNumber(1)), call.id, CallState::Dispatched));
    provider.results().result(call.id, Content::Value("2".to_owned()).into());
    assert_eq!(see(observer).await.unwrap().value(), Some("1"));
    assert!(matches!(provider.next().await, Ok(ToProvider::Recorded { .. })));
}

/// A call that may have an effect waits for the log; one that has none does not.
#[tokio::test(start_paused = true)]
async fn only_repeatable_calls_run_ahead_of_the_log() {
    let world = World::new().await;
    let session = world.open().await;
    let tools = Tools::shared();
    let _serving = world.sessions.providers().attach_local(session, &[], tools.clone()).unwrap();
    world.run_for(session, "sleep 100; send look; send pay; hang", 10).await.unwrap();
    world.store.set(Fault::Waits);
    tokio::time::sleep(ms(1_000)).await;
    let seen: Vec<u64> = tools.seen().iter().map(|(call, _)| call.number).collect();
    assert_eq!(seen, [1], "only look may run before it is in the log");
    world.store.set(Fault::None);
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(tools.seen().len(), 2);
}

/// An unexpected failure of a tool ends the program; its cause stays in the log of the service.
#[tokio::test(start_paused = true)]
async fn an_unexpected_failure_ends_the_program_and_leaks_nothing() {
    let world = World::new().await;
    let session = world.open().await;
    let _serving = world.sessions.providers().attach_local(session, &[], Tools::shared()).unwrap();
    let seen = world.run(session, "try 0; send boom; try 1; return 1").await.unwrap();
    assert_eq!(seen.state(), ProgramState::Error);
    let error = seen.observation.program.error.unwrap();
    assert_eq!(error.code, reasons::INTERNAL_PROGRAM);
    assert!(!error.message.contains("the cause"), "{}", error.message);
}

fn pending() -> ObserveOptions {
    ObserveOptions { return_on_pending_call: true, ..ObserveOptions::default() }
}

fn value(json: &str) -> ToolResult {
    Content::Value(json.to_owned()).into()
}

/// A simple client: the window ends on a call that nobody serves, and an answer goes back.
#[tokio::test(start_paused = true)]
async fn a_pending_call_ends_the_window_and_can_be_answered() {
    let world = World::new().await;
    let session = world.open().await;
    let began = tokio::time::Instant::now();
    let source = "text a; call pay {\"amount\":5}; text b; return 1";
    let seen = see(world.execute_with(session, source, None, pending()).await.unwrap()).await.unwrap();
    assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
    assert_eq!((seen.observation.status, seen.output()), (Status::StillWorking, "a"));
    let [call] = &seen.observation.pending_calls[..] else { panic!("one call waits") };
    assert_eq!(call.tool, "pay");
    let answer = |call| world.sessions.answer(&world.tenant, session, call, value("true"), None);
    answer(call.id).await.unwrap();
    assert_eq!(answer(call.id).await.unwrap_err().reason(), reasons::CALL_NOT_PENDING);
    let done = world.wait_at(session, Some(1), None, 60_000).await.unwrap();
    assert_eq!((done.output(), done.value()), ("b", Some("1")));
    assert_eq!(done.observation.program.calls[0].state, CallState::Finished);
    let unknown = CallId { session, program: ProgramNumber(1), number: 99 };
    assert_eq!(answer(unknown).await.unwrap_err().reason(), reasons::CALL_NOT_PENDING);
    let unknown = CallId { session, program: ProgramNumber(9), number: 1 };
    assert_eq!(answer(unknown).await.unwrap_err().reason(), reasons::CALL_NOT_FOUND);
}

/// A call that a provider serves does not end the window, and can't be answered past it.
#[tokio::test(start_paused = true)]
async fn a_served_call_is_its_providers_to_answer() {
    let world = World::new().await;
    let session = world.open().await;
    let mut provider = world.sessions.providers().attach(session, Attach::default()).unwrap();
    let observer = world.execute_with(session, "call pay; return 1", None, pending()).await.unwrap();
    let seeing = tokio::spawn(see(observer));
    let Ok(ToProvider::Call(call)) = provider.next().await else { panic!("a call comes first") };
    let refused = world.sessions.answer(&world.tenant, session, call.id, value("1"), None).await;
    assert_eq!(refused.unwrap_err().reason(), reasons::CALL_NOT_PENDING);
    provider.results().result(call.id, value("2"));
    assert_eq!(seeing.await.unwrap().unwrap().state(), ProgramState::Completed);
}

/// An answer that comes while its program is ended is not told as recorded.
#[tokio::test(start_paused = true)]
async fn an_answer_that_loses_against_a_stop_is_told_so() {
    let world = World::new().await;
    let session = world.open().await;
    let observer = world.execute_with(session, "call pay", None, pending()).await.unwrap();
    let call = see(observer).await.unwrap().observation.pending_calls[0].id;
    world.store.set(Fault::Waits);
    let stop = world.stop(session);
    let answer = async {
        tokio::time::sleep(ms(100)).await;
        let answering = world.sessions.answer(&world.tenant, session, call, value("1"), None);
        let (answered, ()) = tokio::join!(answering, async {
            tokio::time::sleep(ms(100)).await;
            world.store.set(Fault::None);
        });
        answered
    };
    let (stopped, answered) = tokio::join!(stop, answer);
    assert_eq!(stopped.unwrap().program.calls[0].state, CallState::Cancelled);
    assert_eq!(answered.unwrap_err().reason(), reasons::CALL_NOT_PENDING);
}

/// No provider within the grace time: the call was not started, and the program can catch that.
#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_serves_is_not_started() {
    let world = World::new().await;
    let session = world
        .open_with(|open| {
            open.limits.insert("provider_grace_ms".into(), 500);
        })
        .await;
    let seen = world.run(session, "call pay").await.unwrap();
    let error = seen.observation.program.error.unwrap();
    assert!(error.message.contains(reasons::NO_PROVIDER), "{}", error.message);
    assert!(error.safe_to_repeat, "nothing happened");
    assert_eq!(seen.observation.program.calls[0].state, CallState::NotStarted);
}

/// The tools of every catalog that a session's programs bring can be served.
#[tokio::test(start_paused = true)]
async fn tools_of_a_programs_own_catalog_are_served_too() {
    let world = World::new().await;
    let session = world.open().await;
    let _rest = world.sessions.providers().attach_local(session, &[], Tools::shared()).unwrap();
    let tools = vec![crate::support::tools::tool("other", false)];
    let request = seance_sessions::ExecuteRequest {
        source: "call other {}; return 1".into(),
        catalog: Some(seance_sessions::CatalogSource::Inline(
            seance_core::catalog::Catalog::new(tools).unwrap(),
        )),
        ..Default::default()
    };
    let options = ObserveOptions::default();
    let observer = world.sessions.execute(&world.tenant, session, request, options).await.unwrap();
    assert_eq!(see(observer).await.unwrap().value(), Some("1"));
    // The next program has the session's catalog again.
    let seen = world.run(session, "call other {}").await.unwrap();
    assert!(seen.observation.program.error.unwrap().message.contains(reasons::UNKNOWN_TOOL));
    assert_eq!(world.run(session, "call echo {}; return 2").await.unwrap().value(), Some("2"));
}

/// I4, I5, case 54: the wall limit counts from execute, and needs no observer.
#[tokio::test(start_paused = true)]
async fn the_wall_limit_ends_a_program_that_nobody_observes() {
    let world = World::new().await;
    let session = world
        .open_with(|open| {
            open.limits.insert("wall_ms".into(), 1_000);
        })
        .await;
    let began = tokio::time::Instant::now();
    world.run_for(session, "text a; hang", 10).await.unwrap();
    let ended = world.until_ended(session, 1).await;
    assert!(began.elapsed() < ms(2_000), "{:?}", began.elapsed());
    assert_eq!(ended.state, ProgramState::Error);
    // It is news once, and stays readable by number.
    let seen = world.wait(session).await.unwrap();
    assert_eq!(world.wait(session).await.unwrap_err().reason(), reasons::NO_ACTIVE_PROGRAM);
    assert_eq!(world.wait_at(session, Some(1), None, 0).await.unwrap().observation, seen.observation);
    let error = seen.observation.program.error.unwrap();
    assert_eq!(error.code, reasons::WALL_LIMIT);
    assert!(error.message.contains("timed out"), "{}", error.message);
    // I4: waiting does not reset it.
    let began = tokio::time::Instant::now();
    world.run_for(session, "hang", 600).await.unwrap();
    let seen = world.wait(session).await.unwrap();
    assert_eq!(seen.state(), ProgramState::Error);
    assert!(began.elapsed() < ms(1_500), "{:?}", began.elapsed());
}
