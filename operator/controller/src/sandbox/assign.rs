//! What a pod gets when a session has its Sandbox: a deadline, and labels that tell whose it is.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use seance_operator_api::labels::{self, is_label_value};
use seance_operator_api::sandbox::SessionRef;
use serde_json::{Value, json};

/// The longest deadline that a pod can have, in seconds.
const DEADLINE_SECONDS_MAX: i64 = i32::MAX as i64;

/// The merge patch that is missing from the pod, if any.
///
/// The deadline of a pod counts from its start, so it is the time from there to the session's: the
/// same number at every look. It can be set once and only be lowered.
pub fn patch(pod: &Pod, session: &SessionRef) -> Option<Value> {
    let mut wanted = serde_json::Map::new();
    for (label, value) in [(labels::TENANT, &session.tenant), (labels::SESSION, &session.id)] {
        // The definition refuses others; an older one might not have.
        if is_label_value(value) && pod.labels().get(label) != Some(value) {
            wanted.insert(label.to_owned(), json!(value));
        }
    }
    let mut patch = serde_json::Map::new();
    if !wanted.is_empty() {
        patch.insert("metadata".to_owned(), json!({ "labels": wanted }));
    }
    if let Some(seconds) = deadline_seconds(pod, session) {
        patch.insert("spec".to_owned(), json!({ "activeDeadlineSeconds": seconds }));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn deadline_seconds(pod: &Pod, session: &SessionRef) -> Option<i64> {
    let started = pod.status.as_ref()?.start_time.as_ref()?;
    let seconds = session.deadline.0.as_second().saturating_sub(started.0.as_second());
    let seconds = seconds.clamp(1, DEADLINE_SECONDS_MAX);
    let standing = pod.spec.as_ref()?.active_deadline_seconds;
    standing.is_none_or(|standing| standing > seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value, labels: Value, start: Option<&str>) -> Pod {
        let mut pod =
            json!({ "metadata": { "labels": labels }, "spec": spec, "status": { "startTime": start } });
        pod["spec"]["containers"] = json!([]);
        serde_json::from_value(pod).expect("a pod")
    }

    fn session(deadline: &str) -> SessionRef {
        serde_json::from_value(json!({ "id": "ses_1", "tenant": "acme", "deadline": deadline }))
            .expect("a session")
    }

    #[test]
    fn an_assigned_pod_gets_its_deadline_and_its_labels_once() {
        let start = Some("2026-01-01T00:00:00Z");
        let session = session("2026-01-01T01:00:00Z");
        let labels = json!({ labels::TENANT: "acme", labels::SESSION: "ses_1" });
        let all = json!({ "metadata": { "labels": labels }, "spec": { "activeDeadlineSeconds": 3600 } });
        assert_eq!(patch(&pod(json!({}), json!({}), start), &session), Some(all));
        let done = pod(json!({ "activeDeadlineSeconds": 3600 }), labels.clone(), start);
        assert_eq!(patch(&done, &session), None);
        let unstarted = pod(json!({}), labels.clone(), None);
        assert_eq!(patch(&unstarted, &session), None, "its deadline comes when it has started");
        let shorter = pod(json!({ "activeDeadlineSeconds": 60 }), labels, start);
        assert_eq!(patch(&shorter, &session), None, "a deadline can't be raised");
    }

    #[test]
    fn a_deadline_that_has_passed_ends_the_pod_at_once() {
        let labels = json!({ labels::TENANT: "acme", labels::SESSION: "ses_1" });
        let late = pod(json!({}), labels, Some("2026-01-01T00:00:00Z"));
        let found = patch(&late, &session("2025-01-01T00:00:00Z"));
        assert_eq!(found, Some(json!({ "spec": { "activeDeadlineSeconds": 1 } })));
    }
}
