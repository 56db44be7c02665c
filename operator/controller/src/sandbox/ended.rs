//! How a pod ended, from what the cluster left in it. The order matters: who asked for the end comes
//! before how the container took it.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodCondition};
use seance_operator_api::conditions::Verdict;
use seance_operator_api::sandbox::{condition_type, reason::finished};

use super::started::{container_status, told};

/// What is known beside the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Around {
    /// The service said that it will never assign the pod.
    pub is_released: bool,
    /// The pod's node is gone or has stopped to answer.
    pub is_node_lost: bool,
}

/// How a pod ended, if it did: it is terminal, or told to end on a node that can't be heard.
pub fn ended(pod: &Pod, around: Around) -> Option<Verdict> {
    let status = pod.status.clone().unwrap_or_default();
    let is_terminal = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let is_deleted = pod.metadata.deletion_timestamp.is_some();
    if !is_terminal {
        let is_lost = is_deleted && around.is_node_lost;
        return is_lost.then(|| verdict(finished::NODE_LOST, "the node went away or no longer answers"));
    }
    Some(how(pod, around))
}

/// Why a pod that runs was told to end, by somebody else than us.
pub fn told_to_end(pod: &Pod) -> Option<Verdict> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let why = disruption(pod).unwrap_or_else(from_outside);
    Some(Verdict { type_: condition_type::ENDING, ..why })
}

/// How a pod ended that is gone, from what was last seen of it.
pub fn vanished(last_seen: Option<&Pod>, around: Around) -> Verdict {
    let terminal = last_seen.and_then(|pod| ended(pod, around));
    let disrupted = || last_seen.and_then(disruption);
    terminal.or_else(disrupted).unwrap_or_else(|| match around {
        Around { is_released: true, .. } => verdict(finished::COMPLETED, ""),
        Around { is_node_lost: true, .. } => verdict(finished::NODE_LOST, "the node went away"),
        _ => from_outside(),
    })
}

fn how(pod: &Pod, around: Around) -> Verdict {
    let terminated = container_status(pod)
        .and_then(|status| [&status.state, &status.last_state].into_iter().flatten().next())
        .and_then(|state| state.terminated.as_ref());
    let is_oom = |terminated: &&ContainerStateTerminated| terminated.reason.as_deref() == Some("OOMKilled");
    if terminated.filter(is_oom).is_some() {
        return verdict(finished::OUT_OF_MEMORY, &format!("over its memory limit of {}", memory_limit(pod)));
    }
    if let Some(disruption) = disruption(pod).or_else(|| refused_by_node(pod)) {
        return disruption;
    }
    if pod.metadata.deletion_timestamp.is_some() && !around.is_released {
        return from_outside();
    }
    match terminated {
        _ if around.is_released => verdict(finished::COMPLETED, ""),
        Some(terminated) => exit(terminated),
        None => verdict(finished::REJECTED, &told("", pod_message(pod))),
    }
}

fn from_outside() -> Verdict {
    verdict(finished::DELETED, "the pod was deleted from outside")
}

/// Who asked the pod to go, as far as Kubernetes keeps it.
fn disruption(pod: &Pod) -> Option<Verdict> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let is_target = |is: &&PodCondition| is.type_ == "DisruptionTarget" && is.status == "True";
    let target = conditions.iter().find(is_target)?;
    let message = told("", target.message.as_deref());
    let reason = match target.reason.as_deref()? {
        "EvictionByEvictionAPI" => finished::DRAINED,
        "PreemptionByScheduler" => finished::PREEMPTED,
        "DeletionByTaintManager" | "DeletionByPodGC" => finished::NODE_LOST,
        // Of a node that shuts down, the pod's own reason says so.
        "TerminationByKubelet" => return refused_by_node(pod).or(Some(verdict(finished::EVICTED, &message))),
        _ => finished::EVICTED,
    };
    Some(verdict(reason, &message))
}

/// What the kubelet or a controller wrote as the pod's own reason.
fn refused_by_node(pod: &Pod) -> Option<Verdict> {
    let why = pod.status.as_ref()?.reason.as_deref()?;
    let reason = match why {
        "Evicted" => finished::EVICTED,
        "DeadlineExceeded" => finished::DEADLINE_EXCEEDED,
        "NodeLost" => finished::NODE_LOST,
        "Preempting" => finished::PREEMPTED,
        "Terminated" | "Shutdown" | "NodeShutdown" => finished::DRAINED,
        _ => finished::REJECTED,
    };
    let what = if reason == finished::REJECTED { why } else { "" };
    Some(verdict(reason, &told(what, pod_message(pod))))
}

fn pod_message(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.message.as_deref()
}

fn exit(terminated: &ContainerStateTerminated) -> Verdict {
    let why = terminated.reason.as_deref().unwrap_or_default();
    if matches!(why, "StartError" | "ContainerCannotRun" | "ContainerStatusUnknown") {
        return verdict(finished::REJECTED, &told(why, terminated.message.as_deref()));
    }
    // A shell's way to tell a signal, and that of container runtimes.
    let code = terminated.exit_code;
    let signal =
        terminated.signal.filter(|signal| *signal > 0).or((129..=192).contains(&code).then(|| code - 128));
    match (signal, code) {
        (Some(signal), _) => verdict(finished::RUNNER_KILLED, &format!("by {}", signal_name(signal))),
        (None, 0) => verdict(finished::COMPLETED, ""),
        (None, code) => verdict(finished::RUNNER_FAILED, &format!("exit code {code}")),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

fn memory_limit(pod: &Pod) -> String {
    let limit = || {
        let container = pod.spec.as_ref()?.containers.first()?;
        Some(container.resources.as_ref()?.limits.as_ref()?.get("memory")?.0.clone())
    };
    limit().unwrap_or_else(|| "unknown size".to_owned())
}

/// A condition `Finished`.
pub fn verdict(reason: &'static str, message: &str) -> Verdict {
    Verdict { type_: condition_type::FINISHED, is: Some(true), reason, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KEPT: Around = Around { is_released: false, is_node_lost: false };
    const RELEASED: Around = Around { is_released: true, is_node_lost: false };

    fn pod(is_deleted: bool, status: Value) -> Pod {
        let limits = json!({ "limits": { "memory": "256Mi" } });
        let deleted = is_deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": { "name": "p", "deletionTimestamp": deleted },
            "spec": { "containers": [{ "name": "runner", "resources": limits }] },
            "status": status,
        }))
        .expect("a pod")
    }

    fn exited(phase: &str, terminated: Value) -> Value {
        let container = json!({
            "name": "runner", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": terminated },
        });
        json!({ "phase": phase, "containerStatuses": [container] })
    }

    fn disrupted(reason: &str) -> Value {
        let mut status = exited("Failed", json!({ "exitCode": 137 }));
        status["conditions"] = json!([{
            "type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why",
        }]);
        status
    }

    fn refused(reason: &str) -> Value {
        json!({ "phase": "Failed", "reason": reason, "message": "why" })
    }

    /// Issue: honest ends, each typed.
    #[test]
    fn each_end_has_its_reason() {
        let oom = exited("Failed", json!({ "exitCode": 137, "reason": "OOMKilled" }));
        let cases = [
            (false, exited("Succeeded", json!({ "exitCode": 0 })), KEPT, finished::COMPLETED, ""),
            (false, oom, KEPT, finished::OUT_OF_MEMORY, "over its memory limit of 256Mi"),
            (
                false,
                exited("Failed", json!({ "exitCode": 137 })),
                KEPT,
                finished::RUNNER_KILLED,
                "by SIGKILL",
            ),
            (false, exited("Failed", json!({ "exitCode": 159 })), KEPT, finished::RUNNER_KILLED, "by SIGSYS"),
            (false, exited("Failed", json!({ "exitCode": 3 })), KEPT, finished::RUNNER_FAILED, "exit code 3"),
            (true, exited("Failed", json!({ "exitCode": 137 })), RELEASED, finished::COMPLETED, ""),
            (
                true,
                exited("Failed", json!({ "exitCode": 137 })),
                KEPT,
                finished::DELETED,
                "the pod was deleted from outside",
            ),
            (true, disrupted("EvictionByEvictionAPI"), KEPT, finished::DRAINED, "why"),
            (true, disrupted("PreemptionByScheduler"), KEPT, finished::PREEMPTED, "why"),
            (true, disrupted("DeletionByTaintManager"), KEPT, finished::NODE_LOST, "why"),
            (true, disrupted("DeletionByPodGC"), KEPT, finished::NODE_LOST, "why"),
            (false, disrupted("TerminationByKubelet"), KEPT, finished::EVICTED, "why"),
            (false, refused("Evicted"), KEPT, finished::EVICTED, "why"),
            (false, refused("DeadlineExceeded"), KEPT, finished::DEADLINE_EXCEEDED, "why"),
            (false, refused("Terminated"), KEPT, finished::DRAINED, "why"),
            (false, refused("OutOfmemory"), KEPT, finished::REJECTED, "OutOfmemory: why"),
            (
                false,
                exited(
                    "Failed",
                    json!({ "exitCode": 128, "reason": "StartError", "message": "no such file" }),
                ),
                KEPT,
                finished::REJECTED,
                "StartError: no such file",
            ),
        ];
        for (is_deleted, status, around, reason, message) in cases {
            let found = ended(&pod(is_deleted, status), around).expect(reason);
            assert_eq!((found.reason, found.message.as_str()), (reason, message));
        }
    }

    #[test]
    fn what_runs_has_not_ended_unless_its_node_is_lost() {
        let running = json!({ "phase": "Running" });
        let lost = Around { is_node_lost: true, ..KEPT };
        assert_eq!(ended(&pod(true, running.clone()), KEPT), None);
        assert_eq!(ended(&pod(false, running.clone()), lost), None, "it may come back");
        assert_eq!(ended(&pod(true, running), lost).expect("an end").reason, finished::NODE_LOST);
    }

    #[test]
    fn a_pod_that_is_told_to_end_says_why_before_it_has() {
        let told = |pod| told_to_end(&pod).map(|told| (told.type_, told.reason));
        let mut evicted = disrupted("EvictionByEvictionAPI");
        evicted["phase"] = json!("Running");
        assert_eq!(told(pod(true, evicted)), Some(("Ending", finished::DRAINED)));
        assert_eq!(told(pod(true, json!({ "phase": "Running" }))), Some(("Ending", finished::DELETED)));
        assert_eq!(told(pod(false, json!({ "phase": "Running" }))), None);
    }

    #[test]
    fn a_pod_that_is_gone_is_told_by_what_was_seen_last() {
        let drained = pod(true, disrupted("EvictionByEvictionAPI"));
        assert_eq!(vanished(Some(&drained), KEPT).reason, finished::DRAINED);
        let running = pod(true, json!({ "phase": "Running" }));
        assert_eq!(vanished(Some(&running), RELEASED).reason, finished::COMPLETED);
        assert_eq!(vanished(None, KEPT).reason, finished::DELETED);
        assert_eq!(vanished(None, Around { is_node_lost: true, ..KEPT }).reason, finished::NODE_LOST);
    }
}
