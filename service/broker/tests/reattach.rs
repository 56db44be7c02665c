//! A provider is lost and comes back: each call's fate is told apart, and nothing is guessed.

mod support;

use std::time::Duration;

use seance_broker::providers::*;
use support::*;

/// What the provider says of its call when it is back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Says {
    Held,
    Finished,
    Unknown,
    /// It is in none of the lists.
    Nothing,
    /// It doesn't come back; the grace time passes.
    Gone,
    /// A provider attaches that was never there before.
    Stranger,
    /// A client without a stream answers.
    Answered,
}

/// What then happens with the call.
#[derive(Debug, PartialEq)]
enum Then {
    /// The provider that came has it and its result counts.
    StillThere,
    Delivered,
    SentAgain {
        repeated: bool,
    },
    Ends(Outcome),
    EndsAfterGrace(Outcome),
}

/// DESIGN section 3 and 5, as a table: what the provider says, whether the stream had taken the call,
/// whether its tool may be repeated.
#[tokio::test(start_paused = true)]
async fn the_fate_of_each_call_is_told_apart() {
    use Then::*;
    let (once, twice) = (false, true);
    let (taken, not_taken) = (true, false);
    for (says, seen, repeatable, then) in [
        (Says::Held, taken, once, StillThere),
        (Says::Held, taken, twice, StillThere),
        (Says::Finished, taken, once, Delivered),
        (Says::Finished, taken, twice, Delivered),
        (Says::Unknown, taken, once, Ends(Outcome::Unknown)),
        (Says::Unknown, taken, twice, SentAgain { repeated: true }),
        (Says::Nothing, taken, once, SentAgain { repeated: false }),
        (Says::Nothing, taken, twice, SentAgain { repeated: false }),
        (Says::Nothing, not_taken, once, SentAgain { repeated: false }),
        (Says::Gone, taken, once, EndsAfterGrace(Outcome::Unknown)),
        (Says::Gone, taken, twice, EndsAfterGrace(Outcome::Unknown)),
        (Says::Gone, not_taken, once, EndsAfterGrace(Outcome::NoProvider)),
        (Says::Stranger, taken, once, EndsAfterGrace(Outcome::Unknown)),
        (Says::Stranger, taken, twice, SentAgain { repeated: true }),
        (Says::Stranger, not_taken, once, SentAgain { repeated: false }),
        (Says::Answered, taken, once, Delivered),
        (Says::Answered, not_taken, once, Delivered),
    ] {
        let row = format!("{says:?}, taken: {seen}, repeatable: {repeatable}");
        assert_eq!(fate(says, seen, repeatable).await, then, "{row}");
    }
}

async fn fate(says: Says, seen: bool, may_repeat: bool) -> Then {
    let mut session = Session::open(GRACE);
    let mut first = session.attach(serving(&["a"]));
    let dispatch = if may_repeat { repeatable(1, "a") } else { call(1, "a") };
    session.calls.dispatch(dispatch).unwrap();
    if seen {
        next_call(&mut first).await;
    }
    drop(first);
    tokio::time::advance(GRACE / 2).await;
    let back = |attach: Attach| Attach { again: true, ..attach };
    let attach = match says {
        Says::Held => Some(back(Attach { held: vec![call_id(1)], ..serving(&["a"]) })),
        Says::Finished => Some(back(Attach { finished: vec![(call_id(1), text("ok"))], ..serving(&["a"]) })),
        Says::Unknown => Some(back(Attach { unknown: vec![call_id(1)], ..serving(&["a"]) })),
        Says::Nothing => Some(back(serving(&["a"]))),
        Says::Stranger => Some(serving(&["a"])),
        Says::Gone => None,
        Says::Answered => {
            session.providers.answer(session_id(1), call_id(1), text("ok")).unwrap();
            None
        }
    };
    let mut second = attach.map(|attach| session.attach(attach));
    if let Some(answered) = session.answers.try_recv() {
        let delivered = answered.outcome == Outcome::Text("ok".to_owned());
        return if delivered { Then::Delivered } else { Then::Ends(answered.outcome) };
    }
    if let Some(second) = &mut second {
        if let Some(got) = try_next_call(second).await {
            assert_eq!(got.timeout, TIMEOUT - GRACE / 2, "only the time that is left");
            return Then::SentAgain { repeated: got.repeated };
        }
        if second.results().result(call_id(1), text("ok")) == Taken::Delivered {
            return Then::StillThere;
        }
    }
    Then::EndsAfterGrace(session.ended().await.1)
}

async fn try_next_call(provider: &mut Attachment) -> Option<ProviderCall> {
    tokio::select! {
        biased;
        message = provider.next() => match message {
            Ok(ToProvider::Call(call)) => Some(call),
            other => panic!("not a call: {other:?}"),
        },
        () = std::future::ready(()) => None,
    }
}

/// A cut connection is often noticed at one end only.
#[tokio::test(start_paused = true)]
async fn attaching_again_takes_the_place_of_the_old_stream() {
    let mut session = Session::open(GRACE);
    let mut old = session.attach(serving(&["a", "b"]));
    session.calls.dispatch(call(1, "a")).unwrap();
    next_call(&mut old).await;
    let again = |tools: &[&str]| Attach { again: true, held: vec![call_id(1)], ..serving(tools) };
    let conflict = session.providers.attach(session_id(1), again(&["a"])).err();
    assert_eq!(
        conflict,
        Some(AttachError::Conflict { tool: "a".to_owned() }),
        "another set of tools is another provider"
    );
    let new = session.attach(again(&["b", "a"]));
    assert_eq!(old.next().await, Err(StreamEnd::Replaced));
    assert_eq!(old.results().result(call_id(1), text("old")), Taken::NotYours);
    drop(old);
    assert!(session.calls.is_served("a"), "the old stream's end changes nothing");
    assert_eq!(new.results().result(call_id(1), text("new")), Taken::Delivered);
    assert_eq!(session.ended().await, (1, Outcome::Text("new".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_back_learns_what_it_may_forget() {
    let mut session = Session::open(GRACE);
    let mut first = session.attach(serving(&["a"]));
    for number in 1..=3 {
        session.calls.dispatch(call(number, "a")).unwrap();
        next_call(&mut first).await;
    }
    first.results().result(call_id(1), text("recorded"));
    first.results().result(call_id(2), text("not recorded yet"));
    session.calls.recorded(call_id(1));
    drop(first);
    assert_eq!(session.calls.cancel(call_id(3), CancelReason::Stopped), Cancelled::Unknown);
    let finished = [1, 2].map(|number| (call_id(number), text("again"))).to_vec();
    let lists = Attach { again: true, finished, held: vec![call_id(3)], ..serving(&["a"]) };
    let mut second = session.attach(lists);
    assert_eq!(second.next().await, Ok(ToProvider::Recorded { call: call_id(1) }));
    let told = ToProvider::Cancel { call: call_id(3), reason: CancelReason::Stopped };
    assert_eq!(second.next().await, Ok(told));
    assert!(is_quiet(&mut second).await);
    session.calls.recorded(call_id(2));
    assert_eq!(second.next().await, Ok(ToProvider::Recorded { call: call_id(2) }));
    assert_eq!([session.ended().await.0, session.ended().await.0], [1, 2]);
    assert!(session.answers.try_recv().is_none(), "each ended once");
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_earlier_owner_wait_for_their_provider_to_tell() {
    let mut session = Session::open(GRACE);
    for number in [1, 2] {
        session.calls.dispatch(Dispatch { maybe_seen: true, ..call(number, "a") }).unwrap();
    }
    let held = Attach { again: true, held: vec![call_id(1)], ..serving(&["a"]) };
    let mut provider = session.attach(held);
    assert_eq!(next_call(&mut provider).await.id, call_id(2), "it never saw this one");
    provider.results().result(call_id(1), text("held"));
    assert_eq!(session.ended().await, (1, Outcome::Text("held".to_owned())));
}

/// A provider away for longer than the call may take.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_call_goes_on_while_its_provider_is_away() {
    let mut session = Session::open(GRACE);
    let mut first = session.attach(serving(&["a"]));
    session.calls.dispatch(Dispatch { timeout: Duration::from_secs(10), ..call(1, "a") }).unwrap();
    next_call(&mut first).await;
    drop(first);
    assert_eq!(session.ended().await, (1, Outcome::Timeout));
    let lists = Attach { again: true, held: vec![call_id(1)], ..serving(&["a"]) };
    let mut second = session.attach(lists);
    let told = ToProvider::Cancel { call: call_id(1), reason: CancelReason::Stopped };
    assert_eq!(second.next().await, Ok(told));
}

#[tokio::test(start_paused = true)]
async fn only_who_attaches_again_can_tell_of_calls() {
    let session = Session::open(GRACE);
    let lists = Attach { held: vec![call_id(1)], ..serving(&["a"]) };
    let refused = session.providers.attach(session_id(1), lists).err();
    assert!(matches!(refused, Some(AttachError::Invalid(_))), "{refused:?}");
}
