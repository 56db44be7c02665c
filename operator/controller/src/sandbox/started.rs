//! Whether a pod's container runs or ran, and if not, what it waits for.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use seance_operator_api::conditions::{Condition, Verdict, condition};
use seance_operator_api::sandbox::{condition_type, reason::started};

/// What the kubelet waits with when the image can't be had.
const IMAGE_REASONS: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];
/// What it waits with while all is well.
const PATIENT_REASONS: &[&str] = &["", "ContainerCreating", "PodInitializing"];
/// Messages are for people; clusters write long ones.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The condition `Started` as the pod shows it, over the one that stands. Once true it stays true.
pub fn started(pod: &Pod, standing: &[Condition]) -> Verdict {
    let standing = condition(standing, condition_type::STARTED);
    if container_ran(pod) || standing.is_some_and(|standing| standing.status == "True") {
        return verdict(true, started::RUNNING, String::new());
    }
    let status = pod.status.as_ref();
    let state = container_status(pod).and_then(|status| status.state.as_ref());
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let why = waiting.reason.as_deref().unwrap_or_default();
        if !PATIENT_REASONS.contains(&why) {
            let is_image = IMAGE_REASONS.contains(&why);
            let reason = if is_image { started::IMAGE_PULL_FAILED } else { started::CONTAINER_FAILED };
            // Tries and pauses take turns and say it in other words: the first words stand.
            let message = standing
                .filter(|standing| standing.reason == reason && !standing.message.is_empty())
                .map(|standing| standing.message.clone())
                .unwrap_or_else(|| told(why, waiting.message.as_deref()));
            return verdict(false, reason, message);
        }
    }
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    match conditions.iter().find(|is| is.type_ == "PodScheduled" && is.status == "False") {
        Some(PodCondition { reason: Some(why), message, .. }) if why == "Unschedulable" => {
            verdict(false, started::UNSCHEDULABLE, told("", message.as_deref()))
        }
        _ => verdict(false, started::PENDING, String::new()),
    }
}

/// Whether the pod can be said never to have run: no node has it, or its node says that the container
/// can't be made. A container that is being made may run before anybody knows.
pub fn surely_never_ran(pod: &Pod, verdict: &Verdict) -> bool {
    let on_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let kept_out = matches!(verdict.reason, started::IMAGE_PULL_FAILED | started::CONTAINER_FAILED);
    verdict.is == Some(false) && (!on_node || kept_out)
}

/// A condition `Started` that no pod gives.
pub fn verdict(is: bool, reason: &'static str, message: String) -> Verdict {
    Verdict { type_: condition_type::STARTED, is: Some(is), reason, message }
}

/// The status of the container.
pub fn container_status(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_deref()?.first()
}

fn container_ran(pod: &Pod) -> bool {
    let ran = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
    container_status(pod)
        .is_some_and(|status| [&status.state, &status.last_state].into_iter().flatten().any(ran))
}

/// A message of the cluster's, cut to a bound.
pub fn told(what: &str, message: Option<&str>) -> String {
    let message = message.unwrap_or_default();
    let joint = if what.is_empty() || message.is_empty() { "" } else { ": " };
    let mut text = format!("{what}{joint}{message}");
    if text.len() > MESSAGE_BYTES_MAX {
        let cut = (0..=MESSAGE_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(node: Option<&str>, status: Value) -> Pod {
        let containers = json!([{ "name": "runner" }]);
        serde_json::from_value(json!({
            "spec": { "nodeName": node, "containers": containers },
            "status": status,
        }))
        .expect("a pod")
    }

    fn waiting(reason: &str, message: &str) -> Value {
        let state = json!({ "waiting": { "reason": reason, "message": message } });
        with_state(state)
    }

    fn with_state(state: Value) -> Value {
        let container = json!({
            "name": "runner", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        });
        json!({ "phase": "Pending", "containerStatuses": [container] })
    }

    #[test]
    fn each_way_not_to_start_has_its_reason() {
        let unschedulable = json!({ "phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes",
        }] });
        let cases = [
            (None, json!({}), Some(false), started::PENDING, "", true),
            (None, unschedulable, Some(false), started::UNSCHEDULABLE, "0/1 nodes", true),
            (Some("n"), waiting("ContainerCreating", ""), Some(false), started::PENDING, "", false),
            (
                Some("n"),
                waiting("ErrImageNeverPull", "not there"),
                Some(false),
                started::IMAGE_PULL_FAILED,
                "ErrImageNeverPull: not there",
                true,
            ),
            (
                Some("n"),
                waiting("InvalidImageName", ""),
                Some(false),
                started::IMAGE_PULL_FAILED,
                "InvalidImageName",
                true,
            ),
            (
                Some("n"),
                waiting("CreateContainerConfigError", "no secret"),
                Some(false),
                started::CONTAINER_FAILED,
                "CreateContainerConfigError: no secret",
                true,
            ),
            (Some("n"), with_state(json!({ "running": {} })), Some(true), started::RUNNING, "", false),
            (
                Some("n"),
                with_state(json!({ "terminated": { "exitCode": 0 } })),
                Some(true),
                started::RUNNING,
                "",
                false,
            ),
        ];
        for (node, status, is, reason, message, never_ran) in cases {
            let pod = pod(node, status);
            let verdict = started(&pod, &[]);
            assert_eq!((verdict.is, verdict.reason, verdict.message.as_str()), (is, reason, message));
            assert_eq!(surely_never_ran(&pod, &verdict), never_ran, "{reason}");
        }
    }

    /// A try and a pause after it take turns: that is no news, and writes nothing.
    #[test]
    fn a_failing_pull_is_told_once() {
        let now = seance_operator_api::conditions::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let first = started(&pod(Some("n"), waiting("ErrImagePull", "not found")), &[]);
        let standing = [first.clone().over(&[], None, now)];
        let second = started(&pod(Some("n"), waiting("ImagePullBackOff", "Back-off")), &standing);
        assert_eq!(first, second);
    }

    #[test]
    fn what_ran_once_has_started_for_good() {
        let now = seance_operator_api::conditions::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let standing = [verdict(true, started::RUNNING, String::new()).over(&[], None, now)];
        assert_eq!(started(&pod(None, json!({})), &standing).is, Some(true));
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(told("", Some(&"ä".repeat(2000))).len(), 1024);
    }
}
