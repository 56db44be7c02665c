//! Callers that wait for a sandbox: what is made for them, and what they are told when none will come.

use std::time::Duration;

use seance_core::sandbox::{ClaimError, ClaimRequest, SandboxBackend};
use seance_operator_api::is_true;
use seance_operator_api::sandbox::{Desired, condition_type, reason};

use crate::cluster::client::{Client, Credential, hello};
use crate::cluster::{Objects, Runner, World, sandbox_id, uid};
use crate::request;
use crate::testee::{self, DEADLINE};

/// When none is warm a Sandbox is made for the caller, and given to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_made_for_a_caller_that_waits() {
    let world = World::new().await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let claim = world.backend.claim(request());
    let operator = async {
        world.objects.until_that(|objects| !objects.names().is_empty()).await;
        let name = world.objects.names().remove(0);
        world.objects.change(&name, |sandbox| {
            sandbox.status.get_or_insert_default().pod_uid = Some(uid(1));
        });
        Runner::start(&world.files, &uid(1), world.link(), "")
    };
    let (claimed, _runner) = tokio::join!(claim, operator);
    assert_eq!(Some(claimed.expect("it was made").id), sandbox_id(&uid(1)));
    assert_eq!(world.objects.names().len(), 1, "one caller, one Sandbox");
}

/// What keeps a pod from starting reaches the caller that waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_told_what_keeps_its_sandbox_from_starting() {
    let world = World::new().await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let claim = world.backend.claim(ClaimRequest { wait: Duration::from_secs(2), ..request() });
    let operator = async {
        world.objects.until_that(|objects| !objects.names().is_empty()).await;
        let name = world.objects.names().remove(0);
        world.objects.say(&name, condition_type::STARTED, "False", reason::started::UNSCHEDULABLE, "no node");
    };
    let (claimed, ()) = tokio::join!(claim, operator);
    let Err(ClaimError::Blocked { reason, message }) = claimed else { panic!("{claimed:?}") };
    assert_eq!((reason.name(), message.as_str()), ("UNSCHEDULABLE", "no node"));
    for (change, what) in [
        (ClaimRequest { engine: "ruby".to_owned(), ..request() }, "engine"),
        (ClaimRequest { memory_bytes: 1 << 40, ..request() }, "memory"),
    ] {
        let refused = world.backend.claim(change).await;
        assert!(
            matches!(&refused, Err(ClaimError::NoPool { message }) if message.contains(what)),
            "{refused:?}"
        );
    }
}

/// What no try can bring is told at once, also to those who come later (sandbox 22, 31).
#[tokio::test(flavor = "multi_thread")]
async fn what_will_never_come_is_told_at_once() {
    let world = World::new().await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let patient = || ClaimRequest { wait: Duration::from_secs(3600), ..request() };
    let operator = async {
        world.objects.until_that(|objects| !objects.names().is_empty()).await;
        let name = world.objects.names().remove(0);
        let (type_, why) = (condition_type::STARTED, reason::started::IMAGE_PULL_FAILED);
        world.objects.say(&name, type_, "False", why, "InvalidImageName: runner:");
    };
    let first = async { tokio::join!(world.backend.claim(patient()), operator).0 };
    let told = tokio::time::timeout(DEADLINE, first).await.expect("long before its time is over");
    let second = tokio::time::timeout(DEADLINE, world.backend.claim(patient())).await.expect("at once");
    for claimed in [told, second] {
        let Err(ClaimError::Blocked { reason, .. }) = claimed else { panic!("{claimed:?}") };
        assert_eq!(reason.name(), "IMAGE_PULL_FAILED");
    }
    assert_eq!(world.objects.names().len(), 1, "no second Sandbox is made for what can't be");
}

/// Sandbox 22: a pool whose template was mended. The sandbox of the old one is stuck for good, and whoever
/// comes before the operator has replaced it waits for the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_an_old_template_does_not_end_the_wait_for_a_new_one() {
    let world = World::new().await;
    let generation = |seen: i64| {
        move |pool: &mut serde_json::Value| {
            pool["metadata"]["generation"] = 2.into();
            pool["status"] = serde_json::json!({ "observedGeneration": seen });
        }
    };
    world.add_pool("small", generation(1)).await;
    world.objects.add_sandbox("sandbox-1", "small", &uid(1));
    let (type_, why) = (condition_type::STARTED, reason::started::IMAGE_PULL_FAILED);
    world.objects.say("sandbox-1", type_, "False", why, "InvalidImageName: runner:");
    let mut claim =
        Box::pin(world.backend.claim(ClaimRequest { wait: Duration::from_secs(3600), ..request() }));
    let operator = async {
        world.objects.change("sandbox-1", |sandbox| sandbox.spec.desired = Desired::Retiring);
        world
            .objects
            .until("sandbox-1", condition_type::RELEASED, "True", reason::released::NEVER_CONNECTED)
            .await;
        world.objects.add_pool("small", generation(2));
        world.pod(2, "small", world.link())
    };
    let _runner = tokio::select! {
        claimed = &mut claim => panic!("it was not waited for: {claimed:?}"),
        runner = operator => runner,
    };
    let claimed = tokio::time::timeout(DEADLINE, claim).await.expect("in time");
    assert_eq!(Some(claimed.expect("there is a new one").id), sandbox_id(&uid(2)));
}

fn starting(objects: &Objects) -> Vec<String> {
    let is_ready = |name: &str| {
        let sandbox = objects.get(name).expect("none goes here");
        is_true(sandbox.conditions(), condition_type::READY)
    };
    objects.names().into_iter().filter(|name| !is_ready(name)).collect()
}

/// Sandbox 7: however many callers wait, no more are on their way for them than may be, and the next is
/// made when one of them serves.
#[tokio::test(flavor = "multi_thread")]
async fn many_callers_do_not_have_as_many_sandboxes_made_at_one_time() {
    const N_CALLERS: u32 = 6;
    let world = World::with(|config| config.cold_starts_max = 2).await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let patient = || ClaimRequest { wait: Duration::from_secs(3600), ..request() };
    let claims = futures::future::join_all((0..N_CALLERS).map(|_| world.backend.claim(patient())));
    let operator = async {
        let mut serving = tokio::task::JoinSet::new();
        for n in 1..=N_CALLERS {
            let n_left = usize::try_from(N_CALLERS - n + 1).expect("it is small");
            world.objects.until_that(|objects| starting(objects).len() == n_left.min(2)).await;
            let name = starting(&world.objects).remove(0);
            world.objects.change(&name, |sandbox| {
                sandbox.status.get_or_insert_default().pod_uid = Some(uid(n));
            });
            let dialled = Client::dial(&world.files, world.link(), Credential::of_pod(n), hello()).await;
            serving.spawn(dialled.expect("its pod is known").serve());
            world.objects.until(&name, condition_type::READY, "True", reason::ready::SERVING).await;
        }
        serving
    };
    let both = async { tokio::join!(claims, operator) };
    let (claimed, _serving) = tokio::time::timeout(DEADLINE, both).await.expect("each gets one in its time");
    claimed.into_iter().for_each(|claimed| drop(claimed.expect("one was made for it")));
    assert_eq!(world.objects.names().len(), 6);
}

/// Sandbox 7, 22: as many as may be on their way are stuck for good: nobody waits for those that would come
/// after them.
#[tokio::test(flavor = "multi_thread")]
async fn callers_behind_what_will_never_come_are_told_too() {
    let world = World::with(|config| config.cold_starts_max = 2).await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let patient = || ClaimRequest { wait: Duration::from_secs(3600), ..request() };
    let claims = futures::future::join_all((0..10).map(|_| world.backend.claim(patient())));
    let operator = async {
        world.objects.until_that(|objects| objects.names().len() == 2).await;
        for name in world.objects.names() {
            let (type_, why) = (condition_type::STARTED, reason::started::IMAGE_PULL_FAILED);
            world.objects.say(&name, type_, "False", why, "InvalidImageName: runner:");
        }
    };
    let both = async { tokio::join!(claims, operator).0 };
    for claimed in tokio::time::timeout(DEADLINE, both).await.expect("long before their time is over") {
        let Err(ClaimError::Blocked { reason, .. }) = claimed else { panic!("it was made") };
        assert_eq!(reason.name(), "IMAGE_PULL_FAILED");
    }
    assert_eq!(world.objects.names().len(), 2);
}

/// Sandbox 22: a quota that three pods fit in. Those three serve, and the others are told by name long
/// before their time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_serves_those_that_fit_and_tells_the_others_early() {
    let world = World::new().await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let patient = || ClaimRequest { wait: Duration::from_secs(3600), ..request() };
    let claims = futures::future::join_all((0..10).map(|_| world.backend.claim(patient())));
    let operator = async {
        world.objects.until_that(|objects| objects.names().len() == 10).await;
        let mut serving = tokio::task::JoinSet::new();
        for (n, name) in (1..).zip(world.objects.names()) {
            if n > 3 {
                let (type_, why) = (condition_type::STARTED, reason::started::QUOTA_EXCEEDED);
                world.objects.say(&name, type_, "False", why, "exceeded quota: pods=3");
                continue;
            }
            world.objects.change(&name, |sandbox| {
                sandbox.status.get_or_insert_default().pod_uid = Some(uid(n));
            });
            let dialled = Client::dial(&world.files, world.link(), Credential::of_pod(n), hello()).await;
            serving.spawn(dialled.expect("its pod is known").serve());
        }
        serving
    };
    let both = async { tokio::join!(claims, operator) };
    let (claimed, _serving) = tokio::time::timeout(DEADLINE, both).await.expect("nobody waits for its time");
    let (served, refused): (Vec<_>, Vec<_>) = claimed.into_iter().partition(Result::is_ok);
    assert_eq!(served.len(), 3, "{refused:?}");
    for claimed in refused {
        let Err(ClaimError::Blocked { reason, message }) = claimed else { panic!("it was refused") };
        assert_eq!((reason.name(), message.as_str()), ("QUOTA_EXCEEDED", "exceeded quota: pods=3"));
    }
}

/// Sandbox 22: pods that end as soon as they begin aren't made again and again for one caller.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_end_before_they_serve_are_not_made_without_end() {
    let world = World::new().await;
    world.add_pool("small", |pool| pool["spec"]["coldStart"] = "Allowed".into()).await;
    let claim = world.backend.claim(ClaimRequest { wait: Duration::from_secs(3600), ..request() });
    let operator = async {
        for n in 0.. {
            world.objects.until_that(|objects| objects.names().len() > n).await;
            for name in world.objects.names() {
                if world.objects.get(&name).is_some_and(|sandbox| sandbox.status.is_none()) {
                    world.objects.finish(&name, reason::finished::RUNNER_FAILED, "it ended with status 1");
                }
            }
        }
    };
    let told = async {
        tokio::select! {
            claimed = claim => claimed,
            () = operator => unreachable!("it makes pods end for as long as some are made"),
        }
    };
    let told = tokio::time::timeout(DEADLINE, told).await.expect("long before its time is over");
    let Err(ClaimError::StartFailed { message }) = told else { panic!("{told:?}") };
    assert!(message.contains("status 1"), "{message}");
    assert_eq!(world.objects.names().len(), 3);
}

/// Sandbox 7: everybody in line knows the place, which is fair between tenants and moves.
#[tokio::test(flavor = "multi_thread")]
async fn those_in_line_are_told_their_place_as_it_moves() {
    let world = World::new().await;
    world.add_pool("small", |_| {}).await;
    let waiting = |tenant: &str| {
        let tenant = tenant.parse().expect("a tenant");
        let request = ClaimRequest { tenant, position: Default::default(), ..request() };
        (request.position.clone(), Box::pin(world.backend.claim(request)))
    };
    // Each joins when it is first looked at.
    let (a1, claim_a1) = waiting("a");
    let (a2, mut claim_a2) = waiting("a");
    let (b1, mut claim_b1) = waiting("b");
    let mut claim_a1 = Some(claim_a1);
    assert!(futures::poll!(claim_a1.as_mut().expect("it is there")).is_pending());
    assert!(futures::poll!(&mut claim_a2).is_pending());
    assert_eq!((a1.get(), a2.get(), b1.get()), (1, 2, 0));
    assert!(futures::poll!(&mut claim_b1).is_pending());
    testee::eventually(|| (a1.get(), b1.get(), a2.get()) == (1, 2, 3)).await;
    drop(claim_a1);
    testee::eventually(|| (a1.get(), b1.get(), a2.get()) == (0, 1, 2)).await;
    let _runner = world.pod(1, "small", world.link());
    let claimed = tokio::time::timeout(DEADLINE, claim_b1).await.expect("in time");
    assert_eq!(Some(claimed.expect("it is next").id), sandbox_id(&uid(1)));
    testee::eventually(|| (b1.get(), a2.get()) == (0, 1)).await;
}
