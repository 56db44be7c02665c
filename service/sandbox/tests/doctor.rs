//! What `seance doctor --kubernetes` finds, against an API server that says what a test puts into it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use seance_sandbox::kubernetes::doctor::{ExamineError, Finding, Outcome, examine};
use serde_json::{Value, json};

/// Answers by path; what isn't there is 404, and what is `null` is 403.
fn client(answers: BTreeMap<&'static str, Value>) -> Client {
    let answers = Arc::new(answers);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answers = Arc::clone(&answers);
        async move {
            let path = request.uri().path().to_owned();
            let refused = |code: u16, reason: &str| {
                let message = "you may not";
                (code, json!({ "kind": "Status", "code": code, "reason": reason, "message": message }))
            };
            let (code, answer) = match answers.get(path.as_str()) {
                Some(Value::Null) => refused(403, "Forbidden"),
                Some(answer) => (200, answer.clone()),
                None => refused(404, "NotFound"),
            };
            let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).expect("a status");
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "default")
}

fn list(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn pool(name: &str, status: Value) -> Value {
    json!({
        "apiVersion": "seance.dev/v1alpha1", "kind": "SandboxPool",
        "metadata": { "name": name, "namespace": "boxes" },
        "spec": {
            "template": {
                "image": "runner", "runtimeClassName": "gvisor",
                "resources": { "limits": { "cpu": "1", "memory": "512Mi", "ephemeralStorage": "1Gi" } },
            },
            "engines": ["javascript"], "warm": { "min": 1, "max": 1 },
        },
        "status": status,
    })
}

const SERVER: [&str; 3] = ["/version", "/api/v1/nodes", "/apis/storage.k8s.io/v1/storageclasses"];
const POOLS: &str = "/apis/seance.dev/v1alpha1/sandboxpools";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A cluster that has all it needs, but for Seance.
fn cluster() -> BTreeMap<&'static str, Value> {
    let version = json!({
        "major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    });
    let node = json!({ "metadata": { "name": "one" } });
    let class = json!({
        "metadata": { "name": "fast", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": "x",
    });
    let mut answers: BTreeMap<_, _> =
        SERVER.into_iter().zip([version, list(&[node]), list(&[class])]).collect();
    answers.insert("/api/v1/nodes/one/proxy/configz", json!({ "kubeletconfig": { "podPidsLimit": 1024 } }));
    answers.insert(REVIEWS, json!({ "spec": {}, "status": { "allowed": true } }));
    answers
}

async fn found(answers: BTreeMap<&'static str, Value>) -> Vec<Finding> {
    examine(&client(answers), None).await.expect("it answers")
}

fn outcomes<'a>(findings: &'a [Finding], check: &str) -> Vec<(Outcome, &'a str, &'a str)> {
    let of_check = findings.iter().filter(|finding| finding.check == check);
    of_check.map(|finding| (finding.outcome, finding.subject.as_str(), finding.message.as_str())).collect()
}

#[tokio::test]
async fn a_cluster_without_seance_lacks_its_resources_and_proves_nothing() {
    let findings = found(cluster()).await;
    for check in ["version", "pod-pids-limit", "storage-class", "right-to-install"] {
        let all_good = outcomes(&findings, check).iter().all(|(outcome, ..)| *outcome == Outcome::Good);
        assert!(all_good && !outcomes(&findings, check).is_empty(), "{check}: {findings:#?}");
    }
    let resources = outcomes(&findings, "custom-resources");
    assert_eq!(resources.len(), 2);
    assert!(resources.iter().all(|(outcome, ..)| *outcome == Outcome::Lacking), "{resources:?}");
    assert!(matches!(outcomes(&findings, "isolation")[..], [(Outcome::Unknown, ..)]));
    assert!(findings.iter().all(|finding| finding.outcome == Outcome::Good || !finding.remedy.is_empty()));
}

/// Sandbox 41: whether policies are enforced stands in the pool's condition, check by check.
#[tokio::test]
async fn pools_tell_their_isolation_check_by_check() {
    let check = |name: &str, result: &str| {
        json!({
            "name": name, "result": result, "message": format!("{name} was tried"),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let good = pool(
        "good",
        json!({
            "warm": 3,
            "conditions": [condition("Ready", "True", "Warm", ""), condition("IsolationProven", "True", "ChecksPassed", "")],
            "checks": [check("api-server", "Passed"), check("metadata", "Accepted")],
        }),
    );
    let open = pool(
        "open",
        json!({
            "conditions": [
                condition("Ready", "False", "IsolationNotProven", "resolver"),
                condition("IsolationProven", "False", "CheckFailed", "resolver can be reached"),
            ],
            "checks": [check("resolver", "Failed"), check("neighbour", "Unknown")],
        }),
    );
    let mut answers = cluster();
    answers.insert(POOLS, list(&[good, open]));
    let labels = json!({ "pod-security.kubernetes.io/enforce": "baseline" });
    answers.insert("/api/v1/namespaces/boxes", json!({ "metadata": { "name": "boxes", "labels": labels } }));
    let findings = found(answers).await;
    assert_eq!(
        outcomes(&findings, "pool"),
        [
            (Outcome::Good, "boxes/good", "3 sandboxes are warm, 0 have a session"),
            (Outcome::Lacking, "boxes/open", "IsolationNotProven: resolver"),
        ]
    );
    let of = |check| outcomes(&findings, check).iter().map(|(outcome, ..)| *outcome).collect::<Vec<_>>();
    assert_eq!(of("isolation"), [Outcome::Good, Outcome::Lacking]);
    use Outcome::{Good, Lacking, Unknown};
    assert_eq!(of("isolation-check"), [Good, Good, Lacking, Unknown]);
    assert_eq!(of("pod-security"), [Lacking]);
    assert_eq!(of("runtime-class"), [Lacking], "the pools name one that isn't there");
}

/// Who may not look is told so, and takes nothing for good.
#[tokio::test]
async fn what_may_not_be_seen_is_unknown() {
    let mut answers = cluster();
    for path in [SERVER[1], SERVER[2], POOLS] {
        answers.insert(path, Value::Null);
    }
    answers.insert(REVIEWS, json!({ "spec": {}, "status": { "allowed": false } }));
    let findings = found(answers).await;
    for check in ["pod-pids-limit", "storage-class", "pool"] {
        let [(Outcome::Unknown, _, message)] = outcomes(&findings, check)[..] else {
            panic!("{findings:#?}")
        };
        assert!(message.contains("you may not (403)"), "{check}: {message}");
    }
    let rights = outcomes(&findings, "right-to-install");
    assert!(rights.iter().all(|(outcome, ..)| *outcome == Outcome::Lacking), "{rights:?}");
    let away = examine(&client(BTreeMap::new()), None).await;
    assert!(matches!(away, Err(ExamineError::Unreachable(_))), "{away:?}");
}
