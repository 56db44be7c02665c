//! Requests that are made again.

use seance_core::event::EventKind;
use seance_core::program::ProgramState;
use seance_core::reasons;
use seance_sessions::{ObserveOptions, StopRequest};

use crate::support::store::Fault;
use crate::support::tools::Tools;
use crate::support::{World, key, ms, see, window};

/// Case 82: the same key gives the same program and makes no new call.
#[tokio::test(start_paused = true)]
async fn the_same_key_attaches_to_the_same_program() {
    let world = World::new().await;
    let session = world.open().await;
    let tools = Tools::shared();
    let _serving = world.sessions.providers().attach_local(session, &[], tools.clone()).unwrap();
    let source = "text a; call pay {}; throw x";
    let run = |digest: &'static str| {
        world.execute_with(session, source, key("k", digest), ObserveOptions::default())
    };
    let first = see(run("r").await.unwrap()).await.unwrap();
    let second = see(run("r").await.unwrap()).await.unwrap();
    assert_eq!((first.bytes, first.observation), (second.bytes, second.observation.clone()));
    assert_eq!(tools.seen().len(), 1);
    let error = second.observation.program.error.unwrap();
    assert_eq!((error.effective_calls.len(), error.safe_to_repeat), (1, false));
    let Err(reused) = run("another").await else { panic!("another request has this key") };
    assert_eq!(reused.reason(), reasons::IDEMPOTENCY_KEY_REUSED);
    assert_eq!(world.record(session).await.last_program, 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_key_attaches_to_a_program_that_still_runs() {
    let world = World::new().await;
    let session = world.open().await;
    let run = || world.execute_with(session, "text a; sleep 1000; return 1", key("k", "r"), window(100));
    let first = see(run().await.unwrap()).await.unwrap();
    let second = see(run().await.unwrap()).await.unwrap();
    assert_eq!(first.bytes, second.bytes);
    assert_eq!(world.wait(session).await.unwrap().value(), Some("1"));
}

/// The same key at the same time: one does it, the other is told to come again.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_at_work_is_refused() {
    let world = World::new().await;
    let (one, other) = (world.open().await, world.open().await);
    world.store.set(Fault::Waits);
    let first = world.execute_with(one, "return 1", key("k", "r"), window(100));
    let second = async {
        tokio::time::sleep(ms(10)).await;
        let refused = world.execute_with(other, "return 1", key("k", "r"), window(100)).await;
        world.store.set(Fault::None);
        refused
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(see(first.unwrap()).await.unwrap().value(), Some("1"));
    assert_eq!(second.err().unwrap().reason(), reasons::CONTROL_ACTIVE);
}

/// A request that was told as not acknowledged is done all the same; its key finds it, also while
/// the store is away, and it is never done twice.
#[tokio::test(start_paused = true)]
async fn a_key_outlives_a_store_that_fails() {
    let world = World::new().await;
    let session = world.open().await;
    let run = || world.execute_with(session, "text a; return 1", key("k", "r"), window(60_000));
    world.store.set(Fault::Full);
    assert_eq!(run().await.err().unwrap().reason(), reasons::STORE_FULL);
    assert_eq!(run().await.err().unwrap().reason(), reasons::CONTROL_ACTIVE, "it is still being done");
    world.store.set(Fault::None);
    assert_eq!(world.until_ended(session, 1).await.state, ProgramState::Completed);
    let seen = see(run().await.unwrap()).await.unwrap();
    assert_eq!((seen.output(), seen.observation.program.number.0), ("a", 1));
    assert_eq!(world.record(session).await.last_program, 1);
}

/// The key names the program that was made for it, though another came first.
#[tokio::test(start_paused = true)]
async fn a_key_names_its_own_program() {
    let world = World::new().await;
    let session = world.open().await;
    for n in 1..6_u64 {
        let name = format!("k{n}");
        let source = format!("return {n}");
        let run = || world.execute_with(session, &source, key(&name, &name), window(60_000));
        // The caller goes away in the middle of it, at different points.
        world.store.set(Fault::Waits);
        let dropped = tokio::time::timeout(ms(n % 3), run()).await;
        assert!(dropped.is_err());
        world.store.set(Fault::None);
        world.until_ended(session, n).await;
        let seen = see(run().await.unwrap()).await.unwrap();
        assert_eq!((seen.observation.program.number.0, seen.value()), (n, Some(n.to_string().as_str())));
    }
}

/// Open, stop, close and answers too.
#[tokio::test(start_paused = true)]
async fn other_mutations_take_keys() {
    let world = World::new().await;
    let opened = world.try_open(|open| open.idempotency = key("o", "r")).await.unwrap();
    let again = world.try_open(|open| open.idempotency = key("o", "r")).await.unwrap();
    assert_eq!(opened.id, again.id);
    assert_eq!(world.backend.sandboxes().len(), 1);
    let reused = world.try_open(|open| open.idempotency = key("o", "x")).await.unwrap_err();
    assert_eq!(reused.reason(), reasons::IDEMPOTENCY_KEY_REUSED);

    let session = opened.id;
    world.run_for(session, "text a; hang", 10).await.unwrap();
    let stop = || StopRequest { idempotency: key("s", "r"), ..StopRequest::default() };
    let stopped = world.stop_with(session, stop()).await.unwrap();
    world.run_for(session, "hang", 10).await.unwrap();
    let repeated = world.stop_with(session, stop()).await.unwrap();
    assert_eq!(repeated.program, stopped.program, "a repeated stop is of the same program");
    assert_eq!(world.program(session, 2).await.state, ProgramState::Running);

    let close = || world.sessions.close(&world.tenant, session, None);
    assert_eq!(close().await.unwrap(), close().await.unwrap());
    let closings = world.log(session).await;
    assert_eq!(closings.iter().filter(|e| matches!(e.kind, EventKind::SessionClosing { .. })).count(), 1);
}
