//! How sandboxes end and what keeps them from starting, as the operator tells it and as sessions and
//! callers are told.

use std::time::Duration;

use seance_core::sandbox::{BlockReason, ClaimError, EndReason, SandboxEnd};
use seance_operator_api::sandbox::{condition_type, reason};
use seance_operator_api::{Sandbox, condition};

/// How a sandbox's pod ended, if it has.
pub(super) fn finished(sandbox: &Sandbox) -> Option<SandboxEnd> {
    told(sandbox, condition_type::FINISHED)
}

/// Why a sandbox's pod was told to end, if somebody else did that.
pub(super) fn ending(sandbox: &Sandbox) -> Option<SandboxEnd> {
    told(sandbox, condition_type::ENDING)
}

fn told(sandbox: &Sandbox, type_: &str) -> Option<SandboxEnd> {
    let found = condition(sandbox.conditions(), type_).filter(|found| found.status == "True")?;
    Some(SandboxEnd { reason: end_reason(&found.reason), detail: found.message.clone() })
}

fn end_reason(finished: &str) -> EndReason {
    match finished {
        reason::finished::OUT_OF_MEMORY => EndReason::OutOfMemory,
        reason::finished::EVICTED => EndReason::Evicted,
        reason::finished::DRAINED => EndReason::Drained,
        reason::finished::PREEMPTED => EndReason::Preempted,
        reason::finished::NODE_LOST => EndReason::NodeLost,
        reason::finished::DEADLINE_EXCEEDED => EndReason::Deadline,
        reason::finished::RUNNER_KILLED => EndReason::RunnerKilled,
        reason::finished::DELETED => EndReason::PodDeleted,
        // The runner ended by itself, or never got that far; the message says how.
        _ => EndReason::RunnerExited,
    }
}

/// Why a sandbox has not started, as the operator says it.
pub(super) fn started_reason(sandbox: &Sandbox) -> Option<&str> {
    let conditions = &sandbox.status.as_ref()?.conditions;
    condition(conditions, condition_type::STARTED).map(|found| found.reason.as_str())
}

/// Whether a sandbox could ever have served: the service said once how ready it was.
pub(super) fn was_ready(sandbox: &Sandbox) -> bool {
    condition(sandbox.conditions(), condition_type::READY).is_some()
}

/// The node tries again: an image, or what the container needs, may yet come. Its second try is after
/// ten seconds.
const RETRIED: Duration = Duration::from_secs(15);
/// A pod that goes makes room within its grace time. A node that an autoscaler adds takes minutes, which
/// is longer than callers wait.
const MAKING_ROOM: Duration = Duration::from_secs(10);
/// A pod that goes is counted by the quota until it is gone.
const UNCOUNTED: Duration = Duration::from_secs(3);
/// The kubelet's words, at the beginning of the operator's message, for images that no try gets.
const NEVER_PULLED: [&str; 2] = ["InvalidImageName", "ErrImageNeverPull"];

/// What keeps a sandbox from starting, if something does: the error of who waits for it, and how long
/// after it was first seen it is still worth waiting for.
pub(super) fn blocked(sandbox: &Sandbox) -> Option<(ClaimError, Duration)> {
    let conditions = &sandbox.status.as_ref()?.conditions;
    let started = condition(conditions, condition_type::STARTED).filter(|found| found.status == "False")?;
    let message = started.message.clone();
    let blocked = |reason| ClaimError::Blocked { reason, message: message.clone() };
    let told = match message.as_str() {
        "" => started.reason.clone(),
        message => format!("{}: {message}", started.reason),
    };
    Some(match started.reason.as_str() {
        reason::started::IMAGE_PULL_FAILED => {
            let is_final = NEVER_PULLED.iter().any(|word| message.starts_with(word));
            (blocked(BlockReason::ImagePullFailed), if is_final { Duration::ZERO } else { RETRIED })
        }
        reason::started::UNSCHEDULABLE => (blocked(BlockReason::Unschedulable), MAKING_ROOM),
        reason::started::QUOTA_EXCEEDED => (blocked(BlockReason::QuotaExceeded), UNCOUNTED),
        reason::started::CREATE_FAILED
        | reason::started::CONTAINER_FAILED
        | reason::started::LINK_UNKNOWN => (ClaimError::StartFailed { message: told }, RETRIED),
        reason::started::INVALID_TEMPLATE | reason::started::POOL_NOT_FOUND => {
            let message = format!("pool {:?}: {told}", sandbox.spec.pool);
            (ClaimError::NoPool { message }, Duration::ZERO)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reason of the operator's for a pod that doesn't start, and how long it is waited for.
    #[test]
    fn what_will_not_come_is_not_waited_for() {
        let table = [
            ("ImagePullFailed", "ErrImagePull: not found", Some(("IMAGE_PULL_FAILED", 15))),
            ("ImagePullFailed", "InvalidImageName: no", Some(("IMAGE_PULL_FAILED", 0))),
            ("ImagePullFailed", "ErrImageNeverPull: no", Some(("IMAGE_PULL_FAILED", 0))),
            ("Unschedulable", "0/1 nodes", Some(("UNSCHEDULABLE", 10))),
            ("QuotaExceeded", "pods", Some(("QUOTA_EXCEEDED", 3))),
            ("CreateFailed", "refused", Some(("CreateFailed: refused", 15))),
            ("ContainerFailed", "", Some(("ContainerFailed", 15))),
            ("LinkUnknown", "", Some(("LinkUnknown", 15))),
            ("InvalidTemplate", "memory", Some(("pool \"small\": InvalidTemplate: memory", 0))),
            ("PoolNotFound", "", Some(("pool \"small\": PoolNotFound", 0))),
            ("Pending", "", None),
        ];
        for (reason, message, expected) in table {
            let sandbox = serde_json::json!({
                "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox",
                "metadata": { "name": "s" }, "spec": { "pool": "small" },
                "status": { "conditions": [{
                    "type": "Started", "status": "False", "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] },
            });
            let sandbox = serde_json::from_value(sandbox).expect("a Sandbox");
            let found = blocked(&sandbox).map(|(error, patience)| match error {
                ClaimError::Blocked { reason, .. } => (reason.name().to_owned(), patience.as_secs()),
                ClaimError::StartFailed { message } | ClaimError::NoPool { message } => {
                    (message, patience.as_secs())
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(found, expected.map(|(what, seconds)| (what.to_owned(), seconds)), "{reason}");
        }
    }

    #[test]
    fn every_reason_of_the_operator_has_one_of_a_session() {
        let table = [
            ("OutOfMemory", EndReason::OutOfMemory),
            ("Evicted", EndReason::Evicted),
            ("Drained", EndReason::Drained),
            ("Preempted", EndReason::Preempted),
            ("NodeLost", EndReason::NodeLost),
            ("DeadlineExceeded", EndReason::Deadline),
            ("RunnerKilled", EndReason::RunnerKilled),
            ("Deleted", EndReason::PodDeleted),
            ("Completed", EndReason::RunnerExited),
            ("RunnerFailed", EndReason::RunnerExited),
            ("Rejected", EndReason::RunnerExited),
            ("NeverStarted", EndReason::RunnerExited),
        ];
        for (finished, expected) in table {
            assert_eq!(end_reason(finished), expected, "{finished}");
        }
    }
}
