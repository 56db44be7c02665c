//! The committed definitions are those of the types, and what they refuse is refused.

use std::path::Path;

use kube::core::cel::{validate_cel, validate_cel_update};
use seance_operator_api::{Sandbox, SandboxPool, crds};
use serde_json::{Value, json};

/// What client-side apply can keep in its annotation.
const ANNOTATION_BYTES_MAX: usize = 256 << 10;

#[test]
fn the_committed_definitions_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(crds::FOLDER);
    for file in crds::files() {
        let committed = std::fs::read_to_string(folder.join(&file.name)).unwrap_or_default();
        let remedy = "run `cargo run -p seance-operator-api --example crds`";
        assert!(committed == file.text, "{} isn't that of the types; {remedy}", file.name);
    }
}

#[test]
fn definitions_fit_the_annotation_of_client_side_apply() {
    for crd in crds::definitions() {
        let size = serde_json::to_string(&crd).expect("plain data").len();
        assert!(size < ANNOTATION_BYTES_MAX / 4, "{} has {size} bytes", crd.spec.names.plural);
    }
}

/// Helm would take them for its own; and a number is a number.
#[test]
fn definitions_have_no_template_marks_and_plain_numbers() {
    for file in crds::files() {
        assert!(!file.text.contains("{{") && !file.text.contains("$serde_json"), "{}", file.name);
    }
    let pools = &crds::files()[1].text;
    assert!(pools.contains("default: 86400\n") && pools.contains("maximum: 1000\n"), "{pools}");
}

#[test]
fn several_writers_share_the_lists_by_key() {
    for crd in crds::definitions() {
        let crd = serde_json::to_value(crd).expect("plain data");
        let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        for (list, key) in [("conditions", "type"), ("checks", "name")] {
            let list = &status["properties"][list];
            assert_eq!(list["x-kubernetes-list-type"], "map", "{crd}");
            assert_eq!(list["x-kubernetes-list-map-keys"], json!([key]));
        }
    }
}

fn pool(change: impl FnOnce(&mut Value)) -> SandboxPool {
    let mut pool = json!({
        "apiVersion": "seance.dev/v1alpha1",
        "kind": "SandboxPool",
        "metadata": { "name": "default" },
        "spec": {
            "template": {
                "image": "runner:1",
                "resources": { "limits": { "cpu": 1, "memory": "256Mi", "ephemeralStorage": "64Mi" } },
            },
            "engines": ["javascript"],
            "warm": { "min": 1, "max": 3 },
        },
    });
    change(&mut pool);
    serde_json::from_value(pool).expect("a pool")
}

#[test]
fn what_a_pool_leaves_out_has_a_default() {
    let spec = pool(|_| ()).spec;
    assert_eq!((spec.refill.max_starting, spec.max_warm_age_seconds), (4, 86_400));
    assert_eq!(spec.template.tmp_size.value(), Some(64 << 20));
    assert_eq!(spec.template.resources.limits.cpu.value(), Some(1));
}

#[test]
fn a_pool_with_more_at_least_than_at_most_is_refused() {
    validate_cel(&pool(|_| ())).expect("a good pool");
    let found = validate_cel(&pool(|pool| pool["spec"]["warm"]["min"] = json!(4))).expect_err("min over max");
    assert!(found.to_string().contains("warm.min is over warm.max"), "{found}");
    validate_cel(&pool(|pool| pool["metadata"]["name"] = json!("n".repeat(51)))).expect_err("a long name");
}

#[test]
fn a_pools_engines_stay_and_the_rest_may_change() {
    let old = pool(|_| ());
    let other_engines = pool(|pool| pool["spec"]["engines"] = json!(["javascript", "ruby"]));
    let found = validate_cel_update(&other_engines, &old).expect_err("other engines");
    assert!(found.to_string().contains("engines can't be changed"), "{found}");
    let other_image = pool(|pool| pool["spec"]["template"]["image"] = json!("runner:2"));
    validate_cel_update(&other_image, &old).expect("another image");
}

#[test]
fn required_parts_of_a_pool_are_required() {
    let crd = serde_json::to_value(&crds::definitions()[1]).expect("plain data");
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    assert_eq!(spec["required"], json!(["engines", "template", "warm"]));
    let template = &spec["properties"]["template"];
    assert_eq!(template["required"], json!(["image", "resources"]));
    assert_eq!(template["properties"]["image"]["minLength"], 1);
    let limits = &template["properties"]["resources"]["properties"]["limits"];
    assert_eq!(limits["required"], json!(["cpu", "ephemeralStorage", "memory"]));
    let checks = &spec["properties"]["acceptedChecks"]["items"]["enum"];
    let names = json!(["resolver", "api-server", "metadata", "neighbour", "service-ports", "pids-limit"]);
    assert_eq!(checks, &names);
}

fn sandbox(spec: Value) -> Sandbox {
    serde_json::from_value(json!({
        "apiVersion": "seance.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": { "name": "default-1" },
        "spec": spec,
    }))
    .expect("a sandbox")
}

/// Sandbox 10: an edit can't move a sandbox in use, and sandbox 9: none serves twice.
#[test]
fn a_sandbox_keeps_its_pool_its_session_and_its_end() {
    let session = |id: &str| json!({ "id": id, "tenant": "acme", "deadline": "2026-12-01T00:00:00Z" });
    let free = json!({ "pool": "default", "desired": "Serve" });
    let assigned = json!({ "pool": "default", "desired": "Serve", "session": session("ses_1") });
    let retiring = json!({ "pool": "default", "desired": "Retiring", "session": session("ses_1") });
    let cases = [
        (&free, &assigned, None),
        (&assigned, &retiring, None),
        (&free, &json!({ "pool": "other", "desired": "Serve" }), Some("stays in its pool")),
        (&assigned, &free, Some("one session in its life")),
        (
            &assigned,
            &json!({ "pool": "default", "desired": "Serve", "session": session("ses_2") }),
            Some("one session in its life"),
        ),
        (&retiring, &assigned, Some("doesn't come back")),
    ];
    for (old, new, refusal) in cases {
        let result = validate_cel_update(&sandbox(new.clone()), &sandbox(old.clone()));
        match refusal {
            None => result.expect("a good change"),
            Some(refusal) => {
                let found = result.expect_err(refusal).to_string();
                assert!(found.contains(refusal), "{found}");
            }
        }
    }
}
