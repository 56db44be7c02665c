use serde_json::{Value, json};

use super::*;

fn pool(namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> SandboxPool {
    let mut pool = json!({
        "apiVersion": "seance.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": { "name": name, "namespace": namespace, "generation": 2 },
        "spec": {
            "engines": ["javascript"],
            "warm": { "min": 2, "max": 8 },
            "template": { "image": "i", "resources": {
                "limits": { "cpu": "1", "memory": "192Mi", "ephemeralStorage": "64Mi" },
            } },
        },
    });
    change(&mut pool);
    serde_json::from_value(pool).expect("a pool")
}

fn with_ready(status: &str, reason: &str, n_warm: i32) -> SandboxPool {
    pool("boxes", "js", |pool| {
        let at = "2026-01-01T00:00:00Z";
        let ready = json!({
            "type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": at,
        });
        let (desired, generation) = (2, 2);
        pool["status"] = json!({
            "observedGeneration": generation, "desired": desired, "warm": n_warm, "conditions": [ready],
        });
    })
}

fn refused(pools: Vec<SandboxPool>, name: Option<&str>, namespace: Option<&str>) -> String {
    choose(pools, name, namespace).expect_err("there is no such pool").to_string()
}

#[test]
fn the_only_pool_with_javascript_is_measured() {
    let python = pool("boxes", "py", |pool| pool["spec"]["engines"] = json!(["python"]));
    let left = pool("boxes", "bench-1", |pool| pool["metadata"]["labels"] = json!({ LABEL: "1" }));
    let chosen = choose(vec![python, pool("boxes", "js", |_| ()), left], None, None).expect("there is one");
    assert_eq!(chosen.name_any(), "js");
}

#[test]
fn pools_that_are_missing_or_several_are_told() {
    assert!(refused(vec![], None, Some("boxes")).contains("no SandboxPool in namespace boxes"));
    let one = || pool("boxes", "js", |_| ());
    let unknown = refused(vec![one()], Some("x"), None);
    assert!(unknown.contains("no SandboxPool \"x\" in the cluster; there are: boxes/js"), "{unknown}");
    let several = refused(vec![one(), pool("other", "js", |_| ())], None, None);
    assert!(several.contains("--pool and --sandbox-namespace: boxes/js, other/js"), "{several}");
    let python = pool("boxes", "py", |pool| pool["spec"]["engines"] = json!(["python"]));
    assert!(refused(vec![python], None, None).contains("the bench runs JavaScript"));
    let named = choose(vec![one(), pool("boxes", "big", |_| ())], Some("big"), None).expect("it is named");
    assert_eq!(named.name_any(), "big");
}

#[test]
fn a_pool_that_is_not_ready_is_waited_for_only_where_that_helps() {
    assert_eq!(readiness(&with_ready("True", reason::WARM, 2)), Readiness::Ready(2));
    let filling = readiness(&with_ready("False", reason::FILLING, 1));
    assert!(
        matches!(&filling, Readiness::NotYet(why) if why.contains("Filling (1 of 2 warm, 0 starting) m")),
        "{filling:?}"
    );
    let quota = readiness(&with_ready("False", reason::QUOTA_EXCEEDED, 0));
    assert!(matches!(&quota, Readiness::Never(why) if why.contains("docs/runbook.md")), "{quota:?}");
    let unseen = readiness(&pool("boxes", "js", |_| ()));
    assert!(matches!(unseen, Readiness::NotYet(_)), "{unseen:?}");
    let none = readiness(&pool("boxes", "js", |pool| pool["spec"]["warm"] = json!({ "min": 0, "max": 0 })));
    assert!(matches!(&none, Readiness::Never(why) if why.contains("warm.min")), "{none:?}");
}

#[test]
fn a_small_pool_is_opened_fewer_at_one_time() {
    let opens: Vec<_> = [0, 1, 2, 8, 20, 59, 60, 1000].map(opens_of).into();
    assert_eq!(opens, [1, 1, 1, 6, 16, 49, 50, 50]);
}

#[test]
fn only_a_session_that_asks_for_the_memory_gets_a_cold_one() {
    let model = pool("boxes", "js", |_| ());
    let large = pool("boxes", "large", |pool| {
        pool["spec"]["template"]["resources"]["limits"]["memory"] = json!("1Gi");
    });
    let (cold, asked) = cold(&model, &[model.clone(), large], "team-a", "1").expect("a pool");
    assert_eq!((cold.name_any(), cold.namespace()), ("bench-1".to_owned(), Some("boxes".to_owned())));
    assert_eq!(cold.spec.tenants, ["team-a"]);
    assert_eq!((cold.spec.warm.min, cold.spec.warm.max), (0, 0));
    let memory = |pool: &SandboxPool| pool.spec.template.resources.limits.memory.value();
    assert_eq!(memory(&cold), Some(1025 << 20));
    assert_eq!(asked + MEMORY_RESERVE_BYTES, 1025 << 20);
    let requests = &cold.spec.template.resources.requests;
    assert_eq!(requests.memory.as_ref().map(Quantity::as_str), Some("192Mi"), "nodes need no more for it");
    let huge = pool("boxes", "huge", |pool| {
        pool["spec"]["template"]["resources"]["limits"]["memory"] = json!("64Gi");
    });
    let refused = super::cold(&model, &[huge], "team-a", "1").expect_err("too much");
    assert!(refused.to_string().contains("--only"));
}
