//! What execute, wait and follow give, and when.

use std::time::Duration;

use seance_core::event::EventKind;
use seance_core::ids::EventSeq;
use seance_core::program::ProgramState;
use seance_core::reasons;
use seance_sessions::{Observed, Status};

use crate::support::{World, ms, see, window};

/// A4, A5, case 10: wait goes on where the observation before ended, and does nothing to the program.
#[tokio::test(start_paused = true)]
async fn wait_returns_only_new_output_and_the_final_result_stays_readable() {
    let world = World::new().await;
    let session = world.open().await;
    let first = world.run_for(session, "text a; sleep 3000; text b; return 7", 1_000).await.unwrap();
    assert_eq!((first.observation.status, first.output()), (Status::StillWorking, "a"));
    let second = world.wait(session).await.unwrap();
    assert_eq!((second.observation.status, second.output()), (Status::Completed, "b"));
    assert_eq!(second.value(), Some("7"));
    let usage = second.observation.program.usage;
    assert!((3_000_000..3_200_000).contains(&usage.wall_us), "wait prolonged it: {usage:?}");
    // A10: without a number there is nothing to wait for; with it the same result again.
    let error = world.wait(session).await.unwrap_err();
    assert_eq!(error.reason(), reasons::NO_ACTIVE_PROGRAM);
    let again = world.wait_at(session, Some(1), None, 0).await.unwrap();
    assert_eq!((again.output(), again.value()), ("b", Some("7")));
    let unknown = world.wait_at(session, Some(9), None, 0).await.unwrap_err();
    assert_eq!(unknown.reason(), reasons::PROGRAM_NOT_FOUND);
}

/// H7, A5: separators stand between text calls, never for standard output, however it is observed.
#[tokio::test(start_paused = true)]
async fn output_of_several_observations_is_that_of_one() {
    let world = World::new().await;
    let source = "text a; out x; text ; sleep 2000; text b; sleep 2000; out y; text c";
    let session = world.open().await;
    let whole = world.run(session, source).await.unwrap();
    assert_eq!(whole.output(), "ax\n\nby\nc");
    assert_eq!(whole.bytes, b"ax\n\nby\nc");

    let mut pieces = vec![world.run_for(session, source, 1_000).await.unwrap()];
    while pieces.last().unwrap().observation.status == Status::StillWorking {
        pieces.push(world.wait_at(session, Some(2), None, 1_000).await.unwrap());
    }
    assert!(pieces.len() > 3, "there was one observation a second");
    let streamed: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes.clone()).collect();
    assert_eq!(streamed, whole.bytes);
    let mut joined = String::new();
    for piece in &pieces {
        joined.push_str(if piece.observation.separated { "\n" } else { "" });
        joined.push_str(piece.output());
    }
    assert_eq!(joined, whole.output());
}

/// Case 13: with the same cursor the same bytes, without one it goes on, the end is repeatable.
#[tokio::test(start_paused = true)]
async fn the_same_cursor_gives_the_same_bytes() {
    let world = World::new().await;
    let session = world.open().await;
    let first =
        world.run_for(session, "text a; sleep 2000; text b; sleep 2000; text c", 1_000).await.unwrap();
    let lost = world.wait_at(session, None, Some(first.cursor()), 2_000).await.unwrap();
    let repeated = world.wait_at(session, None, Some(first.cursor()), 0).await.unwrap();
    assert_eq!((&lost.bytes, lost.cursor()), (&repeated.bytes, repeated.cursor()));
    assert_eq!(lost.bytes, b"\nb");
    let n_events = world.log(session).await.len();
    world.wait_at(session, None, Some(lost.cursor()), 0).await.unwrap();
    assert_eq!(world.log(session).await.len(), n_events, "asking for nothing new left an event");
    let rest = world.wait(session).await.unwrap();
    assert_eq!(rest.bytes, b"\nc");
    let final_again = world.wait_at(session, Some(1), None, 0).await.unwrap();
    assert_eq!((final_again.bytes, final_again.observation), (rest.bytes, rest.observation));
    let from_cursor = world.wait_at(session, Some(1), Some(lost.cursor()), 0).await.unwrap();
    assert_eq!(from_cursor.bytes, b"\nc");

    let elsewhere = world.open().await;
    world.run(elsewhere, "text z").await.unwrap();
    let foreign = world.wait_at(elsewhere, Some(1), Some(first.cursor()), 0).await.unwrap_err();
    assert_eq!(foreign.reason(), reasons::INVALID_CURSOR);
}

/// A5: what was observed is not given again, though the store is behind.
#[tokio::test(start_paused = true)]
async fn an_observation_counts_before_it_is_in_the_store() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "text a; sleep 5000; text b", 1_000).await.unwrap();
    world.store.set(crate::support::store::Fault::Waits);
    let nothing = world.wait_at(session, None, None, 0).await.unwrap();
    assert_eq!(nothing.bytes, b"", "the output of the first observation came again");
    world.store.set(crate::support::store::Fault::None);
    assert_eq!(world.wait(session).await.unwrap().bytes, b"\nb");
}

/// A23: a window ends as soon as the program does, and at its end whatever the program does.
#[tokio::test(start_paused = true)]
async fn windows_end_with_the_program_or_with_their_time() {
    let world = World::new().await;
    let session = world.open().await;
    let began = tokio::time::Instant::now();
    world.run(session, "sleep 100").await.unwrap();
    assert!(began.elapsed() < ms(200), "it waited on for {:?}", began.elapsed());

    let began = tokio::time::Instant::now();
    let hour = world.run_for(session, "hang", 3_600_000).await.unwrap();
    assert_eq!(hour.observation.status, Status::StillWorking);
    assert!((ms(60_000)..ms(60_100)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// A23: a program that never stops writing does not keep a window open.
#[tokio::test(start_paused = true)]
async fn a_flood_of_output_ends_no_later() {
    let world = World::new().await;
    let session = world.open().await;
    world.store.set_random(7, 0);
    let began = tokio::time::Instant::now();
    let first = world.run_for(session, "flood 4000 abcdefgh", 100).await.unwrap();
    assert_eq!(first.observation.status, Status::StillWorking);
    assert!(began.elapsed() < ms(600), "the window took {:?}", began.elapsed());
    world.store.heal();
    let mut bytes = first.bytes;
    bytes.extend(world.wait(session).await.unwrap().bytes);
    assert_eq!(bytes, b"abcdefgh".repeat(4_000));
}

/// I7: a closed stream only detaches; the program goes on, and so does the output.
#[tokio::test(start_paused = true)]
async fn a_dropped_observer_leaves_the_program_running() {
    let world = World::new().await;
    let session = world.open().await;
    let mut observer = world.execute(session, "text a; sleep 1000; text b; return 1").await.unwrap();
    assert!(matches!(observer.next().await, Some(Ok(Observed::Output { .. }))));
    drop(observer);
    let seen = world.wait(session).await.unwrap();
    assert_eq!((seen.output(), seen.value()), ("a\nb", Some("1")));
}

#[tokio::test(start_paused = true)]
async fn a_silent_program_sends_heartbeats() {
    let world = World::new().await;
    let session = world.open().await;
    let mut observer = world.execute(session, "sleep 25000").await.unwrap();
    for _ in 0..2 {
        assert!(matches!(observer.next().await, Some(Ok(Observed::Heartbeat { .. }))));
    }
    assert!(matches!(observer.next().await, Some(Ok(Observed::Done(_)))));
    assert!(observer.next().await.is_none());
}

/// Output that comes after a program's end is no output of it, nor of the next.
#[tokio::test(start_paused = true)]
async fn output_after_the_end_is_dropped() {
    let world = World::new().await;
    let session = world.open().await;
    let seen = world.run(session, "out a; late b").await.unwrap();
    assert_eq!(seen.bytes, b"a");
    assert_eq!(world.run(session, "out c").await.unwrap().bytes, b"c");
    let outputs = world.log(session).await;
    assert_eq!(outputs.iter().filter(|e| matches!(e.kind, EventKind::Output { .. })).count(), 2);
}

/// Case 76: followers see all there is, live, and end with the session.
#[tokio::test(start_paused = true)]
async fn followers_see_every_event_and_the_end() {
    let world = World::new().await;
    let session = world.open().await;
    let sessions = world.sessions.clone();
    let tenant = world.tenant.clone();
    let following = tokio::spawn(async move {
        let mut follower = sessions.follow(&tenant, session, EventSeq::FIRST, false).await.unwrap();
        let mut seen = Vec::new();
        while let Some(event) = follower.next().await.unwrap() {
            seen.push((*event).clone());
        }
        seen
    });
    world.run(session, "text a; text b").await.unwrap();
    world.close(session).await.unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(1), following).await.expect("it ended").unwrap();
    assert_eq!(seen, world.log(session).await);
    assert_eq!(seen.last().map(|event| &event.kind), Some(&EventKind::SessionClosed));

    let mut until_now = world.sessions.follow(&world.tenant, session, EventSeq(3), true).await.unwrap();
    let mut rest = Vec::new();
    while let Some(event) = until_now.next().await.unwrap() {
        rest.push((*event).clone());
    }
    assert_eq!(rest, seen[2..]);
}

#[tokio::test(start_paused = true)]
async fn follow_until_now_ends_while_the_program_goes_on() {
    let world = World::new().await;
    let session = world.open().await;
    world.run_for(session, "text a; hang", 100).await.unwrap();
    let last = world.record(session).await.last_seq;
    let mut follower = world.sessions.follow(&world.tenant, session, EventSeq(1), true).await.unwrap();
    let mut n = 0;
    while let Some(event) = follower.next().await.unwrap() {
        n += 1;
        assert_eq!(event.seq, EventSeq(n));
    }
    assert!(n >= last.0, "it ended at {n} of {last}");
}

/// A session that is closed under an observer tells it so.
#[tokio::test(start_paused = true)]
async fn an_observer_sees_the_end_that_a_close_brings() {
    let world = World::new().await;
    let session = world.open().await;
    let observer = world.execute(session, "text a; hang").await.unwrap();
    let refused = world.close(session).await.unwrap_err();
    assert_eq!(refused.reason(), reasons::CONTROL_ACTIVE);
    let seen = see(observer).await.unwrap();
    assert_eq!((seen.state(), seen.output()), (ProgramState::Terminated, "a"));
    assert_eq!(seen.observation.program.reason, reasons::CLOSED_PROGRAM);
}

/// A22: sessions do not wait for each other.
#[tokio::test(start_paused = true)]
async fn sessions_run_side_by_side() {
    let world = World::new().await;
    let began = tokio::time::Instant::now();
    let mut all = Vec::new();
    for n in 0..20 {
        let session = world.open().await;
        let observer = world.execute(session, &format!("sleep 1000; return {n}")).await.unwrap();
        all.push(see(observer));
    }
    let seen = futures::future::join_all(all).await;
    for (n, seen) in seen.into_iter().enumerate() {
        assert_eq!(seen.unwrap().value(), Some(n.to_string().as_str()));
    }
    assert!(began.elapsed() < ms(1_500), "{:?}", began.elapsed());
}

/// M: the budget shapes the observation, the chunks stay whole.
#[tokio::test(start_paused = true)]
async fn a_budget_cuts_the_observation_and_not_the_chunks() {
    let world = World::new().await;
    let session = world.open().await;
    let mut options = window(60_000);
    options.max_output_tokens = 2;
    let observer = world.execute_with(session, "flood 100 0123456789", None, options).await.unwrap();
    let seen = see(observer).await.unwrap();
    assert_eq!(seen.bytes, b"0123456789".repeat(100));
    assert_eq!(seen.observation.cut, Some((250, 248)));
    assert!(seen.output().len() < 100);
}
