//! Calls reach whoever serves their tool, and end once: with a result, a timeout, a cancel, or
//! because nobody came.

mod support;

use std::sync::Arc;
use std::time::Duration;

use seance_broker::providers::*;
use support::*;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// D16, D17: the canonical name and the id reach the provider, and the result comes back.
#[tokio::test(start_paused = true)]
async fn a_call_goes_to_the_provider_of_its_tool_and_its_result_comes_back() {
    let mut session = Session::open(GRACE);
    let mut first = session.attach(serving(&["get-user"]));
    let mut rest = session.attach(serving(&[]));
    let traced = Dispatch { traceparent: Some("00-aa-bb-01".into()), ..call(1, "get-user") };
    session.calls.dispatch(traced).unwrap();
    session.calls.dispatch(call(2, "other")).unwrap();
    let got = next_call(&mut first).await;
    assert_eq!((got.id, &*got.tool, &*got.arguments), (call_id(1), "get-user", r#"{"n":1}"#));
    assert_eq!(
        (got.traceparent.as_deref(), got.timeout, got.repeated),
        (Some("00-aa-bb-01"), TIMEOUT, false)
    );
    assert_eq!(next_call(&mut rest).await.id, call_id(2));
    assert_eq!(first.results().result(call_id(1), text("a")), Taken::Delivered);
    assert_eq!(session.ended().await, (1, Outcome::Text("a".to_owned())));
    assert!(is_quiet(&mut first).await, "not recorded yet");
    session.calls.recorded(call_id(1));
    assert_eq!(first.next().await, Ok(ToProvider::Recorded { call: call_id(1) }));
}

#[tokio::test(start_paused = true)]
async fn one_provider_serves_a_tool() {
    let session = Session::open(GRACE);
    session.calls.declare_tools(["b", "a", "c"].map(Arc::from));
    let rest = session.attach(serving(&[]));
    assert_eq!(rest.tools(), ["b", "a", "c"]);
    let first = session.attach(serving(&["a"]));
    assert_eq!(first.tools(), ["a"]);
    let refused = |tools: &[&str]| session.providers.attach(session_id(1), serving(tools)).err().unwrap();
    assert_eq!(refused(&["c", "a"]), AttachError::Conflict { tool: "a".to_owned() });
    assert_eq!(refused(&[]), AttachError::Conflict { tool: "*".to_owned() });
    assert_eq!(refused(&["d"]), AttachError::UnknownTool { tool: "d".to_owned() });
    drop(first);
    assert_eq!(session.attach(serving(&["c", "a"])).tools(), ["a", "c"]);
    assert!(session.calls.is_served("a"), "the rest is served");
    drop(rest);
    assert!(!session.calls.is_served("a"));
    let nowhere = session.providers.attach(session_id(2), serving(&[])).err();
    assert_eq!(nowhere, Some(AttachError::NoSession));
}

/// A tenant that declares without end doesn't fill the service; what is served stays.
#[tokio::test]
async fn declarations_are_bounded_and_the_oldest_make_room() {
    let session = Session::open(GRACE);
    let declare = |name: &str, n: usize| {
        session.calls.declare_tools((0..n).map(|n| Arc::from(format!("{name}{n}"))));
    };
    declare("old", 10);
    let served = session.attach(serving(&["old3"]));
    for round in 0..5 {
        declare(&format!("{round}-"), DECLARED_MAX / 2);
    }
    let rest = session.attach(serving(&[]));
    assert_eq!(rest.tools().len(), DECLARED_MAX - 1, "all that are held but the one that is served");
    let refused = session.providers.attach(session_id(1), serving(&["old4"])).err();
    assert_eq!(refused, Some(AttachError::UnknownTool { tool: "old4".to_owned() }));
    drop(served);
    session.attach(serving(&["old3"]));
    declare("old", 10);
    session.attach(serving(&["old4"]));
}

/// A call that its stream could not send after all was never with the provider.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_sent_is_not_started() {
    let mut session = Session::open(GRACE);
    let mut first = session.attach(serving(&["a"]));
    session.calls.dispatch(call(1, "a")).unwrap();
    session.calls.dispatch(call(2, "a")).unwrap();
    assert_eq!(next_call(&mut first).await.id, call_id(1));
    first.results().not_sent(call_id(1));
    assert_eq!(first.results().result(call_id(1), text("a")), Taken::NotYours);
    assert_eq!(next_call(&mut first).await.id, call_id(2));
    drop(first);
    assert_eq!(session.ended().await, (1, Outcome::NoProvider));
    assert_eq!(session.ended().await, (2, Outcome::Unknown));

    session.calls.dispatch(repeatable(3, "a")).unwrap();
    let mut first = session.attach(serving(&["a"]));
    next_call(&mut first).await;
    first.results().not_sent(call_id(3));
    drop(first);
    let mut second = session.attach(serving(&["a"]));
    assert!(!next_call(&mut second).await.repeated, "nobody had it");
    drop(second);
    let mut third = session.attach(serving(&["a"]));
    assert!(next_call(&mut third).await.repeated);
    third.results().not_sent(call_id(3));
    drop(third);
    assert_eq!(session.ended().await, (3, Outcome::Unknown), "the second had it");
}

/// A provider that did not begin says so: it is no failure that may have taken effect.
#[tokio::test]
async fn a_provider_can_say_that_it_did_not_begin() {
    let mut session = Session::open(GRACE);
    let mut provider = session.attach(serving(&["a"]));
    session.calls.dispatch(call(1, "a")).unwrap();
    next_call(&mut provider).await;
    let result = Content::NotStarted("no such command".to_owned()).into();
    assert_eq!(provider.results().result(call_id(1), result), Taken::Delivered);
    assert_eq!(session.ended().await, (1, Outcome::NotStarted));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_provider_for_the_grace_time_and_is_then_not_started() {
    let mut session = Session::open(GRACE);
    let began = Instant::now();
    session.calls.dispatch(call(1, "a")).unwrap();
    session.calls.dispatch(call(2, "b")).unwrap();
    tokio::time::advance(GRACE - Duration::from_secs(1)).await;
    let mut late = session.attach(serving(&["b"]));
    let got = next_call(&mut late).await;
    assert_eq!((got.id, got.timeout), (call_id(2), TIMEOUT), "the time counts from here");
    assert_eq!(session.ended().await, (1, Outcome::NoProvider));
    assert_eq!(began.elapsed().as_secs(), GRACE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn without_grace_a_call_that_no_one_serves_ends_at_once() {
    let mut session = Session::open(Duration::ZERO);
    session.calls.dispatch(call(1, "a")).unwrap();
    assert_eq!(session.answers.try_recv().unwrap().outcome, Outcome::NoProvider);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_times_out_and_its_provider_is_told() {
    let mut session = Session::open(GRACE);
    let mut provider = session.attach(serving(&["a"]));
    let began = Instant::now();
    session.calls.dispatch(call(1, "a")).unwrap();
    next_call(&mut provider).await;
    session.calls.dispatch(call(2, "a")).unwrap();
    let mut ends = [session.ended().await, session.ended().await];
    ends.sort_by_key(|(number, _)| *number);
    // The stream never took the second: it provably didn't start.
    assert_eq!(ends, [(1, Outcome::Timeout), (2, Outcome::NotStarted)]);
    assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    let told = ToProvider::Cancel { call: call_id(1), reason: CancelReason::Timeout };
    assert_eq!(provider.next().await, Ok(told));
    assert!(is_quiet(&mut provider).await, "the second is never sent");
    // K14, I12: what comes late is dropped.
    assert_eq!(provider.results().result(call_id(1), text("late")), Taken::Late);
    assert!(session.answers.try_recv().is_none());
}

/// Case 55: the cancel is there for the stream at once; the clock does not move.
#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_the_provider_and_says_what_the_call_came_to() {
    let mut session = Session::open(GRACE);
    let mut provider = session.attach(serving(&["a"]));
    for number in 1..=2 {
        session.calls.dispatch(call(number, "a")).unwrap();
    }
    session.calls.dispatch(call(3, "unserved")).unwrap();
    next_call(&mut provider).await;
    let began = Instant::now();
    let cancel = |number| session.calls.cancel(call_id(number), CancelReason::Stopped);
    assert_eq!(
        [1, 2, 3, 4].map(cancel),
        [Cancelled::Told, Cancelled::NotStarted, Cancelled::NotStarted, Cancelled::Over]
    );
    let told = ToProvider::Cancel { call: call_id(1), reason: CancelReason::Stopped };
    assert_eq!(provider.next().await, Ok(told));
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(is_quiet(&mut provider).await);
    assert!(session.answers.try_recv().is_none(), "a cancelled call has no answer");
}

#[tokio::test(start_paused = true)]
async fn results_that_nobody_waits_for_are_dropped() {
    let mut session = Session::open(GRACE);
    let mut provider = session.attach(serving(&["a"]));
    let other = session.attach(serving(&["b"]));
    session.calls.dispatch(call(1, "a")).unwrap();
    session.calls.dispatch(call(2, "a")).unwrap();
    next_call(&mut provider).await;
    assert_eq!(other.results().result(call_id(1), text("stolen")), Taken::NotYours);
    assert_eq!(provider.results().result(call_id(2), text("guessed")), Taken::NotYours, "not taken yet");
    assert_eq!(provider.results().result(call_id(1), text("first")), Taken::Delivered);
    assert_eq!(provider.results().result(call_id(1), text("second")), Taken::Late);
    assert_eq!(provider.results().result(call_id(77), text("never")), Taken::Late);
    assert_eq!(session.ended().await, (1, Outcome::Text("first".to_owned())));
    assert!(session.answers.try_recv().is_none());
}

/// A provider that doesn't read holds up nobody but itself.
#[tokio::test(start_paused = true)]
async fn a_slow_provider_never_holds_up_others() {
    let mut session = Session::open(GRACE);
    let _slow = session.attach(serving(&["slow"]));
    let mut quick = session.attach(serving(&["quick"]));
    for number in 1..CALLS_MAX as u64 {
        session.calls.dispatch(call(number, "slow")).unwrap();
    }
    let last = CALLS_MAX as u64;
    session.calls.dispatch(call(last, "quick")).unwrap();
    assert_eq!(session.calls.dispatch(call(last + 1, "quick")), Err(DispatchError::Full));
    assert_eq!(session.calls.dispatch(call(last, "quick")), Err(DispatchError::Duplicate));
    next_call(&mut quick).await;
    quick.results().result(call_id(last), text("ok"));
    assert_eq!(session.ended().await, (last, Outcome::Text("ok".to_owned())));
    session.calls.dispatch(call(last + 1, "quick")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_stream_answers_calls_that_no_provider_has() {
    let mut session = Session::open(GRACE);
    let answer =
        |session: &Session, number| session.providers.answer(session_id(1), call_id(number), text("posted"));
    session.calls.dispatch(call(1, "a")).unwrap();
    session.calls.dispatch(call(2, "b")).unwrap();
    let mut provider = session.attach(serving(&["b"]));
    assert_eq!(answer(&session, 1), Ok(()));
    assert_eq!(answer(&session, 1), Err(AnswerError::NotPending), "the first answer wins");
    assert_eq!(answer(&session, 2), Err(AnswerError::Served));
    next_call(&mut provider).await;
    assert_eq!(answer(&session, 2), Err(AnswerError::Served));
    assert_eq!(answer(&session, 3), Err(AnswerError::NotFound));
    let elsewhere = session.providers.answer(session_id(2), call_id(1), text("x"));
    assert_eq!(elsewhere, Err(AnswerError::NotFound));
    drop(provider);
    assert_eq!(answer(&session, 2), Ok(()), "its provider is lost");
    assert_eq!(session.ended().await.0, 1);
    assert_eq!(session.ended().await, (2, Outcome::Text("posted".to_owned())));
}

/// Case 81: 3,000,000 characters pass both ways.
#[tokio::test(start_paused = true)]
async fn large_arguments_and_results_pass_whole() {
    let mut session = Session::open(GRACE);
    let mut provider = session.attach(serving(&["echo"]));
    let large = format!(r#"{{"value":"{}"}}"#, "x".repeat(3_000_000));
    session.calls.dispatch(Dispatch { arguments: large.as_str().into(), ..call(1, "echo") }).unwrap();
    let got = next_call(&mut provider).await;
    let content = Content::Value(got.arguments.to_string());
    assert_eq!(provider.results().result(got.id, content.into()), Taken::Delivered);
    assert_eq!(session.ended().await, (1, Outcome::Value(large)));
}

#[tokio::test(start_paused = true)]
async fn closing_a_session_tells_every_provider_and_ends_its_streams() {
    let session = Session::open(GRACE);
    let mut provider = session.attach(serving(&["a"]));
    let mut idle = session.attach(serving(&["b"]));
    session.calls.dispatch(call(1, "a")).unwrap();
    next_call(&mut provider).await;
    session.calls.dispatch(call(2, "a")).unwrap();
    let waits = tokio::spawn(async move { idle.next().await });
    tokio::task::yield_now().await;
    let Session { providers, calls, mut answers } = session;
    let fates = calls.close();
    assert_eq!(fates, [(call_id(1), Cancelled::Told), (call_id(2), Cancelled::NotStarted)]);
    let told = ToProvider::Cancel { call: call_id(1), reason: CancelReason::SessionClosed };
    assert_eq!(provider.next().await, Ok(told));
    assert_eq!(provider.next().await, Err(StreamEnd::SessionClosed));
    assert_eq!(waits.await.unwrap(), Err(StreamEnd::SessionClosed));
    assert_eq!(provider.results().result(call_id(1), text("late")), Taken::Late);
    assert_eq!(answers.recv().await, None);
    let again = providers.attach(session_id(1), serving(&[])).err();
    assert_eq!(again, Some(AttachError::NoSession));
}

struct Echo;

#[async_trait::async_trait]
impl ToolHandler for Echo {
    async fn call(&self, call: LocalCall) -> ToolResult {
        Content::Value(call.call.arguments.to_string()).into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_this_process_that_is_ready_answers_within_the_dispatch() {
    let mut session = Session::open(GRACE);
    session.calls.dispatch(call(1, "echo")).unwrap();
    let attached = session.local(&["echo"], Echo);
    assert_eq!(session.answers.try_recv().unwrap().call, call_id(1), "it had waited");
    session.calls.dispatch(call(2, "echo")).unwrap();
    assert_eq!(session.answers.try_recv().unwrap().outcome, Outcome::Value(r#"{"n":2}"#.to_owned()));
    drop(attached);
    assert!(!session.calls.is_served("echo"));
}

/// Waits for its cancellation and tells the test of it.
struct Patient(mpsc::UnboundedSender<u64>);

#[async_trait::async_trait]
impl ToolHandler for Patient {
    async fn call(&self, call: LocalCall) -> ToolResult {
        call.cancelled.cancelled().await;
        self.0.send(call.call.id.number).expect("the test receives");
        text("too late")
    }
}

/// Case 55, and the timeout, for tools of this process.
#[tokio::test(start_paused = true)]
async fn a_cancel_and_a_timeout_reach_a_tool_of_this_process() {
    let mut session = Session::open(GRACE);
    let (sender, mut told) = mpsc::unbounded_channel();
    let _attached = session.local(&["wait"], Patient(sender));
    session.calls.dispatch(call(1, "wait")).unwrap();
    session.calls.dispatch(call(2, "wait")).unwrap();
    let began = Instant::now();
    assert_eq!(session.calls.cancel(call_id(1), CancelReason::Aborted), Cancelled::Told);
    assert_eq!(told.recv().await, Some(1));
    assert!(began.elapsed() < Duration::from_millis(200));
    assert_eq!(session.ended().await, (2, Outcome::Timeout));
    assert_eq!(told.recv().await, Some(2));
    session.calls.local_calls_ended().await;
    assert!(session.answers.try_recv().is_none(), "late results are dropped");
}

struct Deaf;

#[async_trait::async_trait]
impl ToolHandler for Deaf {
    async fn call(&self, _: LocalCall) -> ToolResult {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_ignores_its_cancellation_is_dropped_after_the_grace() {
    let session = Session::open(GRACE);
    let _attached = session.local(&[], Deaf);
    session.calls.dispatch(call(1, "any")).unwrap();
    session.calls.cancel(call_id(1), CancelReason::Stopped);
    let began = Instant::now();
    session.calls.local_calls_ended().await;
    assert_eq!(began.elapsed().as_secs(), LOCAL_CANCEL_GRACE.as_secs());
}

struct Panics;

#[async_trait::async_trait]
impl ToolHandler for Panics {
    async fn call(&self, call: LocalCall) -> ToolResult {
        if call.call.id.number == 2 {
            tokio::task::yield_now().await;
        }
        panic!("secret {}", call.call.id.number)
    }
}

/// D10, case 43: the program gets none of the text.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_tool_is_an_unexpected_failure_whose_text_stays_with_us() {
    let mut session = Session::open(GRACE);
    let _attached = session.local(&["boom"], Panics);
    for number in [1, 2] {
        session.calls.dispatch(call(number, "boom")).unwrap();
        let (_, outcome) = session.ended().await;
        let Outcome::Failure(text) = &outcome else { panic!("{outcome:?}") };
        assert!(text.contains("secret"), "{text}");
        let shown = outcome.error().unwrap();
        assert!(shown.code == "internal" && !shown.message.contains("secret"), "{shown:?}");
    }
}
