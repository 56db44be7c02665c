//! What a pass over a Sandbox asks of the API server.

use http::Method;
use serde_json::json;

use crate::world::{PODS, SANDBOXES, World, a_sandbox};

/// A world with one Sandbox, made by the service, in a namespace that is prepared.
async fn with_one() -> World {
    let mut world = World::new(0);
    world.settle().await;
    world.server.put(&format!("{SANDBOXES}/s"), a_sandbox("s"));
    world.see();
    world
}

fn pod_path(world: &World) -> String {
    let uid = world.server.objects("sandboxes")[0]["metadata"]["uid"].as_str().expect("a UID").to_owned();
    format!("{PODS}/seance-{uid}")
}

#[tokio::test]
async fn a_sandbox_gets_one_pod_and_its_uid_is_told_at_once() {
    let mut world = with_one().await;
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.asked(), ["post pods", "patch sandboxes/status"]);
    let pod = &world.server.objects("pods")[0];
    let status = &world.server.objects("sandboxes")[0]["status"];
    assert_eq!(status["podUid"], pod["metadata"]["uid"]);
    assert_eq!(world.condition("s", "Started"), "False Pending");
    world.start_pods();
    world.settle().await;
    assert_eq!(world.condition("s", "Started"), "True Running");
    assert_eq!(world.server.objects("sandboxes")[0]["status"]["nodeName"], "n");
}

/// The Sandbox was seen before its pod was: making it again is refused, and that is as good.
#[tokio::test]
async fn a_pod_that_is_not_seen_yet_is_not_made_twice() {
    let world = with_one().await;
    world.sandbox_passes().await.expect("a pass");
    world.sandbox_passes().await.expect("another, from the same memory");
    assert_eq!(world.server.objects("pods").len(), 1);
    assert_eq!(world.condition("s", "Started"), "False Pending");
}

/// Sandbox 14 and 15: another's pod is neither taken nor touched, whatever its name and labels are.
#[tokio::test]
async fn anothers_pod_of_the_same_name_is_left_alone() {
    let mut world = with_one().await;
    let path = pod_path(&world);
    let name = path.rsplit('/').next().expect("a name");
    let labels = json!({ "seance.dev/sandbox": "s", "app.kubernetes.io/managed-by": "seance-operator" });
    let foreign = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "rooms", "labels": labels },
    });
    world.server.put(&path, foreign.clone());
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.condition("s", "Started"), "False CreateFailed");
    world.server.change(&format!("{SANDBOXES}/s"), &json!({ "spec": { "desired": "Retiring" } }));
    world.say("Released", "NeverConnected");
    world.settle().await;
    assert_eq!(world.server.objects("pods")[0]["metadata"]["labels"], foreign["metadata"]["labels"]);
}

/// Sandbox 22: a quota is told by name, and tried again after a pause, not in a loop.
#[tokio::test]
async fn a_used_up_quota_is_told_and_not_asked_for_again_at_once() {
    let mut world = with_one().await;
    world.server.refuse(
        Method::POST,
        "pods",
        403,
        "pods \"x\" is forbidden: exceeded quota: three, used: pods=3",
    );
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.asked(), ["post pods", "patch sandboxes/status"]);
    assert_eq!(world.condition("s", "Started"), "False QuotaExceeded");
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.asked(), Vec::<String>::new(), "it waits");
    world.server.refuse_nothing();
    let uid = world.server.objects("sandboxes")[0]["metadata"]["uid"].as_str().expect("a UID").to_owned();
    world.context.backoff.forget(&uid);
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.objects("pods").len(), 1);
}

#[tokio::test]
async fn a_pod_is_gone_when_the_api_server_says_so_and_not_a_cache() {
    let mut world = with_one().await;
    world.sandbox_passes().await.expect("a pass");
    world.start_pods();
    world.settle().await;
    let path = pod_path(&world);
    let pod = world.server.objects("pods")[0].clone();
    world.server.remove(&path);
    world.see();
    world.server.put(&path, pod);
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.condition("s", "Finished"), "none none", "the cache was wrong");
    world.server.remove(&path);
    world.settle().await;
    assert_eq!(world.condition("s", "Finished"), "True Deleted");
    assert_eq!(world.server.objects("pods").len(), 0, "and none is made in its place");
}

#[tokio::test]
async fn an_assigned_pod_gets_a_deadline_and_labels() {
    let mut world = with_one().await;
    world.sandbox_passes().await.expect("a pass");
    world.start_pods();
    world.settle().await;
    let session = json!({ "id": "ses_1", "tenant": "acme", "deadline": "2026-01-01T01:00:00Z" });
    world.server.change(&format!("{SANDBOXES}/s"), &json!({ "spec": { "session": session } }));
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.asked(), ["patch pods"]);
    let pod = &world.server.objects("pods")[0];
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 3600);
    assert_eq!(pod["metadata"]["labels"]["seance.dev/tenant"], "acme");
    assert_eq!(pod["metadata"]["labels"]["seance.dev/session"], "ses_1");
    world.settle().await;
}

#[tokio::test]
async fn a_pod_is_deleted_when_it_is_released_and_its_sandbox_after_it() {
    let mut world = with_one().await;
    world.sandbox_passes().await.expect("a pass");
    world.start_pods();
    world.settle().await;
    world.server.change(&format!("{SANDBOXES}/s"), &json!({ "spec": { "desired": "Retiring" } }));
    world.settle().await;
    assert_eq!(world.server.objects("pods").len(), 1, "it was asked, and nobody has answered");
    world.say("Released", "Retired");
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.objects("pods").len(), 0);
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.condition("s", "Finished"), "True Completed");
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.server.objects("sandboxes").len(), 0);
}

#[tokio::test]
async fn a_sandbox_of_no_pool_is_asked_to_go() {
    let mut world = with_one().await;
    let long_ago = json!({ "creationTimestamp": "2026-01-01T00:00:00Z" });
    let change = json!({ "metadata": long_ago, "spec": { "pool": "other" } });
    world.server.change(&format!("{SANDBOXES}/s"), &change);
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.condition("s", "Started"), "False PoolNotFound");
    world.see();
    world.sandbox_passes().await.expect("a pass");
    assert_eq!(world.condition("s", "Finished"), "True NeverStarted");
}
