//! How sandboxes end and what keeps them from starting, as the operator tells it and as sessions and
//! callers are told.

use seance_core::sandbox::{BlockReason, EndReason, SandboxEnd};
use seance_operator_api::sandbox::{condition_type, reason};
use seance_operator_api::{Sandbox, condition};

/// How a sandbox's pod ended, if it has.
pub(super) fn finished(sandbox: &Sandbox) -> Option<SandboxEnd> {
    let conditions = &sandbox.status.as_ref()?.conditions;
    let finished = condition(conditions, condition_type::FINISHED).filter(|found| found.status == "True")?;
    let reason = end_reason(&finished.reason);
    Some(SandboxEnd { reason, detail: finished.message.clone() })
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

/// What keeps a sandbox from starting, if something does.
pub(super) fn blocked(sandbox: &Sandbox) -> Option<(BlockReason, String)> {
    let conditions = &sandbox.status.as_ref()?.conditions;
    let started = condition(conditions, condition_type::STARTED).filter(|found| found.status == "False")?;
    let reason = match started.reason.as_str() {
        reason::started::IMAGE_PULL_FAILED => BlockReason::ImagePullFailed,
        reason::started::UNSCHEDULABLE => BlockReason::Unschedulable,
        reason::started::QUOTA_EXCEEDED => BlockReason::QuotaExceeded,
        _ => return None,
    };
    Some((reason, started.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
