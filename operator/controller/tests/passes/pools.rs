//! What a pass over a pool asks of the API server.

use http::Method;
use serde_json::json;

use crate::world::{POOL, World};

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/rooms/networkpolicies";

#[tokio::test]
async fn a_namespace_has_its_policies_before_anything_is_made_in_it() {
    let world = World::new(2);
    world.pool_pass().await.expect("a pass");
    let order = [
        "patch networkpolicies",
        "patch networkpolicies",
        "patch serviceaccounts",
        "patch configmaps",
        "post sandboxes",
        "post sandboxes",
        "patch sandboxpools/status",
    ];
    assert_eq!(world.server.asked(), order);
}

#[tokio::test]
async fn without_its_policies_a_namespace_gets_no_sandboxes_and_no_pods() {
    let mut world = World::new(2);
    world.server.put(&format!("{}/s", crate::world::SANDBOXES), crate::world::a_sandbox("s"));
    world.server.refuse(Method::PATCH, "networkpolicies", 403, "not allowed");
    world.see();
    world.pool_pass().await.expect("it waits");
    world.sandbox_passes().await.expect("they wait");
    assert_eq!(world.server.asked(), ["patch networkpolicies", "patch sandboxpools/status", "post events"]);
    assert_eq!(world.pool_condition("Ready"), "False NamespaceNotPrepared");
    let [event] = &world.server.objects("events")[..] else { panic!("one event") };
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("NamespaceNotPrepared")));
    assert_eq!(event["regarding"]["kind"], "SandboxPool");
    world.see();
    world.pool_pass().await.expect("it waits");
    assert!(!world.server.asked().contains(&"post events".to_owned()), "the same is not told again");
}

/// A cache that lags makes no second sandbox for the same want.
#[tokio::test]
async fn what_was_made_and_is_not_seen_yet_is_not_made_again() {
    let world = World::new(2);
    for _ in 0..5 {
        world.pool_pass().await.expect("a pass");
    }
    assert_eq!(world.server.objects("sandboxes").len(), 2);
}

/// Issue: nothing is written in an idle minute.
#[tokio::test]
async fn a_pool_at_rest_is_not_written() {
    let mut world = World::new(2);
    world.settle().await;
    world.start_pods();
    world.say("Ready", "Serving");
    world.settle().await;
    assert_eq!(world.pool_condition("Ready"), "True Warm");
    for _ in 0..3 {
        world.see();
        world.pool_pass().await.expect("a pass");
        world.sandbox_passes().await.expect("passes");
    }
    assert_eq!(world.server.asked(), Vec::<String>::new());
}

/// Sandbox 41: a policy of ours that somebody made wider or took away is put right.
#[tokio::test]
async fn a_policy_that_was_changed_is_put_right() {
    let mut world = World::new(0);
    world.settle().await;
    let path = format!("{POLICIES}/seance-sandboxes-link");
    world.server.change(&path, &json!({ "spec": { "egress": [{}] } }));
    world.see();
    world.pool_pass().await.expect("a pass");
    assert_eq!(world.server.asked(), ["patch networkpolicies"]);
    world.server.remove(&path);
    world.see();
    world.pool_pass().await.expect("a pass");
    assert_eq!(world.server.asked(), ["patch networkpolicies"]);
}

#[tokio::test]
async fn a_new_image_replaces_warm_sandboxes_and_asks_the_old_ones_to_go_last() {
    let mut world = World::new(1);
    world.settle().await;
    world.start_pods();
    world.say("Ready", "Serving");
    world.settle().await;
    world.server.change(POOL, &json!({ "spec": { "template": { "image": "runner:2" } } }));
    world.settle().await;
    let desired = |world: &World| -> Vec<String> {
        let all = world.server.objects("sandboxes");
        let mut all: Vec<String> =
            all.iter().map(|sandbox| sandbox["spec"]["desired"].as_str().unwrap_or("").to_owned()).collect();
        all.sort();
        all
    };
    assert_eq!(desired(&world), ["Serve", "Serve"], "the new one comes first");
    world.start_pods();
    world.say("Ready", "Serving");
    world.settle().await;
    assert_eq!(desired(&world), ["Retiring", "Serve"]);
    assert_eq!(world.server.objects("pods").len(), 2, "nobody has released the old one");
}

#[tokio::test]
async fn a_template_that_can_not_be_makes_nothing_and_is_told() {
    let mut world = World::new(1);
    world.server.change(POOL, &json!({ "spec": { "template": { "tmpSize": "1Gi" } } }));
    world.see();
    world.pool_pass().await.expect("a pass");
    assert_eq!(world.pool_condition("Ready"), "False InvalidTemplate");
    assert_eq!(world.server.objects("sandboxes").len(), 0);
}
