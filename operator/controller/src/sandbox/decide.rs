//! What to do about one Sandbox, from what there is: at most one step at a time, and what to tell.
//!
//! A pod whose container may have run, and that isn't terminal, is deleted only when the service has
//! written `Released`.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use seance_operator_api::Sandbox;
use seance_operator_api::conditions::{Verdict, condition, is_true};
use seance_operator_api::sandbox::{Desired, condition_type, reason};
use serde_json::Value;

use super::started::{started, surely_never_ran, verdict as started_verdict};
use super::{assign, ended};

/// How long a Sandbox waits for its pool to be seen before it is asked to go.
const POOL_SECONDS: i64 = 60;

/// What there is of a pod.
#[derive(Debug, Clone, Copy)]
pub enum PodIs<'a> {
    /// It was never made.
    Unmade,
    /// It is there, and the Sandbox owns it.
    There(&'a Pod),
    /// It was there and isn't any more; this was last seen of it.
    Gone(Option<&'a Pod>),
}

/// What is known.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The Sandbox.
    pub sandbox: &'a Sandbox,
    /// Its pod.
    pub pod: PodIs<'a>,
    /// Its pool is there.
    pub has_pool: bool,
    /// What stops pods from being made, as a reason of `Started` and for people.
    pub obstacle: Option<(&'static str, &'a str)>,
    /// Its node is gone or has stopped to answer.
    pub is_node_lost: bool,
    /// Now, in seconds of Unix time.
    pub now: i64,
    /// How long a finished Sandbox is kept for the service to read, in seconds.
    pub kept_finished: i64,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Make the pod.
    MakePod,
    /// Patch the pod: it has a session.
    PatchPod(Value),
    /// Delete the pod of this UID, and, where a version is named, only that version of it.
    DeletePod {
        /// The pod's UID.
        uid: String,
        /// The version that surely never ran.
        version: Option<String>,
    },
    /// Ask the service to let it go.
    Retire,
    /// Delete the Sandbox.
    DeleteSandbox,
}

/// What to do and what to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What to do.
    pub step: Step,
    /// The condition `Started`; none leaves the one that stands.
    pub started: Option<Verdict>,
    /// The condition `Ending`, if somebody else told the pod to end.
    pub ending: Option<Verdict>,
    /// The condition `Finished`, if it has.
    pub finished: Option<Verdict>,
    /// When to look again, in seconds of Unix time, if nothing happens before.
    pub look_again: Option<i64>,
}

impl Plan {
    fn only(step: Step) -> Self {
        Self { step, started: None, ending: None, finished: None, look_again: None }
    }

    fn finished(verdict: Verdict) -> Self {
        Self { finished: Some(verdict), ..Self::only(Step::Rest) }
    }
}

/// Decides.
pub fn decide(facts: &Facts<'_>) -> Plan {
    let Facts { sandbox, .. } = facts;
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Plan::only(Step::Rest);
    }
    if let Some(finished) = standing(facts, condition_type::FINISHED) {
        return after_the_end(facts, finished.last_transition_time.0.as_second(), &finished.reason);
    }
    match facts.pod {
        PodIs::There(pod) => with_pod(facts, pod),
        PodIs::Gone(last_seen) => Plan::finished(end(facts, ended::vanished(last_seen, around(facts)))),
        PodIs::Unmade => without_pod(facts),
    }
}

fn standing<'a>(facts: &Facts<'a>, type_: &str) -> Option<&'a seance_operator_api::conditions::Condition> {
    condition(facts.sandbox.conditions(), type_).filter(|condition| condition.status == "True")
}

fn is_released(facts: &Facts<'_>) -> bool {
    is_true(facts.sandbox.conditions(), condition_type::RELEASED)
}

fn is_going(facts: &Facts<'_>) -> bool {
    facts.sandbox.spec.desired == Desired::Retiring
}

fn around(facts: &Facts<'_>) -> ended::Around {
    ended::Around { is_released: is_released(facts), is_node_lost: facts.is_node_lost }
}

fn after_the_end(facts: &Facts<'_>, at: i64, reason: &str) -> Plan {
    let keep_until = at + facts.kept_finished;
    let is_read = is_released(facts) || reason == reason::finished::NEVER_STARTED;
    if is_read || keep_until <= facts.now {
        return Plan::only(Step::DeleteSandbox);
    }
    Plan { look_again: Some(keep_until), ..Plan::only(Step::Rest) }
}

/// The end as it is told: of a container that never ran and was no longer wanted, how its pod was
/// taken away is no news.
fn end(facts: &Facts<'_>, verdict: Verdict) -> Verdict {
    let has_started = standing(facts, condition_type::STARTED).is_some();
    let by_us = matches!(verdict.reason, reason::finished::DELETED | reason::finished::COMPLETED);
    if by_us && !has_started && is_going(facts) {
        return ended::verdict(reason::finished::NEVER_STARTED, "");
    }
    verdict
}

fn with_pod(facts: &Facts<'_>, pod: &Pod) -> Plan {
    let started = started(pod, facts.sandbox.conditions());
    if let Some(verdict) = ended::ended(pod, around(facts)) {
        let finished = Some(end(facts, verdict));
        return Plan { started: Some(started), finished, ..Plan::only(Step::Rest) };
    }
    let delete = |version| Step::DeletePod { uid: pod.uid().unwrap_or_default(), version };
    let session = facts.sandbox.spec.session.as_ref();
    let step = match session.and_then(|session| assign::patch(pod, session)) {
        _ if pod.metadata.deletion_timestamp.is_some() => Step::Rest,
        _ if is_released(facts) => delete(None),
        _ if is_going(facts) && surely_never_ran(pod, &started) => delete(pod.resource_version()),
        Some(patch) => Step::PatchPod(patch),
        None if !facts.has_pool && session.is_none() && !is_going(facts) => Step::Retire,
        None => Step::Rest,
    };
    // What never ran has nobody who would have to know before it is over.
    let ending = ended::told_to_end(pod).filter(|_| started.is == Some(true) && !is_released(facts));
    Plan { started: Some(started), ending, ..Plan::only(step) }
}

fn without_pod(facts: &Facts<'_>) -> Plan {
    if is_going(facts) || is_released(facts) {
        return Plan::finished(ended::verdict(reason::finished::NEVER_STARTED, ""));
    }
    let waits = |reason, message: &str| Some(started_verdict(false, reason, message.to_owned()));
    if !facts.has_pool {
        let created = facts.sandbox.metadata.creation_timestamp.as_ref();
        let patient_until = created.map_or(facts.now, |time| time.0.as_second()) + POOL_SECONDS;
        let started = waits(reason::started::POOL_NOT_FOUND, "there is no pool of this name");
        let is_late = patient_until <= facts.now;
        let step = if is_late { Step::Retire } else { Step::Rest };
        return Plan { started, look_again: (!is_late).then_some(patient_until), ..Plan::only(step) };
    }
    match facts.obstacle {
        Some((reason, message)) => Plan { started: waits(reason, message), ..Plan::only(Step::Rest) },
        None => Plan::only(Step::MakePod),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1000;

    fn at(second: i64) -> String {
        Timestamp::from_second(second).expect("in range").to_string()
    }

    fn sandbox(desired: &str, session: bool, conditions: &[(&str, &str)]) -> Sandbox {
        let deadline = at(NOW + 60);
        let session = session.then(|| json!({ "id": "s", "tenant": "t", "deadline": deadline }));
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, reason)| {
                json!({
                    "type": type_, "status": "True", "reason": reason, "message": "",
                    "lastTransitionTime": at(900),
                })
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox",
            "metadata": { "name": "s", "uid": "u", "creationTimestamp": at(900) },
            "spec": { "pool": "p", "desired": desired, "session": session },
            "status": { "conditions": conditions },
        }))
        .expect("a sandbox")
    }

    fn pod(phase: &str, state: Value) -> Pod {
        let container = json!({
            "name": "runner", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
        });
        serde_json::from_value(json!({
            "metadata": { "name": "p", "uid": "pod", "resourceVersion": "7" },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": phase, "startTime": at(900), "containerStatuses": [container] },
        }))
        .expect("a pod")
    }

    fn running() -> Pod {
        pod("Running", json!({ "running": {} }))
    }

    fn pulling() -> Pod {
        pod("Pending", json!({ "waiting": { "reason": "ImagePullBackOff" } }))
    }

    fn facts<'a>(sandbox: &'a Sandbox, pod: PodIs<'a>) -> Facts<'a> {
        Facts {
            sandbox,
            pod,
            has_pool: true,
            obstacle: None,
            is_node_lost: false,
            now: NOW,
            kept_finished: 600,
        }
    }

    fn delete(version: Option<&str>) -> Step {
        Step::DeletePod { uid: "pod".to_owned(), version: version.map(str::to_owned) }
    }

    /// What the operator may do to a pod that ran: nothing, until it is released.
    #[test]
    fn a_pod_that_ran_is_deleted_only_when_released() {
        let (running, pulling, creating) =
            (running(), pulling(), pod("Pending", json!({ "waiting": { "reason": "ContainerCreating" } })));
        let released = [("Released", "Retired")];
        let cases = [
            ("it serves", sandbox("Serve", false, &[]), &running, Step::Rest),
            ("it was asked", sandbox("Retiring", false, &[]), &running, Step::Rest),
            ("it may run by now", sandbox("Retiring", false, &[]), &creating, Step::Rest),
            ("it never ran", sandbox("Retiring", false, &[]), &pulling, delete(Some("7"))),
            ("it still might", sandbox("Serve", false, &[]), &pulling, Step::Rest),
            ("it was released", sandbox("Retiring", false, &released), &running, delete(None)),
            ("unasked", sandbox("Serve", true, &released), &running, delete(None)),
        ];
        for (what, sandbox, pod, step) in cases {
            assert_eq!(decide(&facts(&sandbox, PodIs::There(pod))).step, step, "{what}");
        }
    }

    #[test]
    fn an_assigned_pod_is_patched_and_left_alone_without_its_pool() {
        let (assigned, running) = (sandbox("Serve", true, &[]), running());
        let orphan = Facts { has_pool: false, ..facts(&assigned, PodIs::There(&running)) };
        assert!(matches!(decide(&orphan).step, Step::PatchPod(_)));
        let free = sandbox("Serve", false, &[]);
        let orphan = Facts { has_pool: false, ..facts(&free, PodIs::There(&running)) };
        assert_eq!(decide(&orphan).step, Step::Retire);
    }

    #[test]
    fn a_sandbox_without_a_pod_gets_one_or_tells_why_not() {
        let free = sandbox("Serve", false, &[]);
        let unmade = facts(&free, PodIs::Unmade);
        assert_eq!(decide(&unmade).step, Step::MakePod);
        let told = |facts: &Facts<'_>| decide(facts).started.expect("it is told").reason;
        let blocked = Facts { obstacle: Some((reason::started::LINK_UNKNOWN, "")), ..unmade };
        assert_eq!(told(&blocked), reason::started::LINK_UNKNOWN);
        let lost = Facts { has_pool: false, now: 959, ..unmade };
        assert_eq!((told(&lost), decide(&lost).step), (reason::started::POOL_NOT_FOUND, Step::Rest));
        assert_eq!(decide(&lost).look_again, Some(960));
        assert_eq!(decide(&Facts { has_pool: false, now: 960, ..unmade }).step, Step::Retire);
    }

    #[test]
    fn ends_are_told_by_what_is_known() {
        let reason_of = |sandbox: &Sandbox, pod: PodIs<'_>| {
            decide(&facts(sandbox, pod)).finished.map(|finished| finished.reason)
        };
        let started = [("Started", "Running")];
        let died = pod("Failed", json!({ "terminated": { "exitCode": 1 } }));
        let serving = sandbox("Serve", false, &started);
        assert_eq!(reason_of(&serving, PodIs::There(&died)), Some(reason::finished::RUNNER_FAILED));
        assert_eq!(reason_of(&serving, PodIs::Gone(None)), Some(reason::finished::DELETED));
        assert_eq!(reason_of(&serving, PodIs::There(&running())), None);
        let unwanted = sandbox("Retiring", false, &[]);
        assert_eq!(reason_of(&unwanted, PodIs::Unmade), Some(reason::finished::NEVER_STARTED));
        assert_eq!(reason_of(&unwanted, PodIs::Gone(None)), Some(reason::finished::NEVER_STARTED));
        let let_go = sandbox("Retiring", false, &[started[0], ("Released", "Retired")]);
        assert_eq!(reason_of(&let_go, PodIs::Gone(None)), Some(reason::finished::COMPLETED));
    }

    #[test]
    fn a_pod_that_others_told_to_end_is_told_of_before_it_has_ended() {
        let mut evicted = running();
        evicted.metadata.deletion_timestamp = sandbox("Serve", true, &[]).metadata.creation_timestamp;
        let ending = |sandbox: &Sandbox, pod: &Pod| {
            let plan = decide(&facts(sandbox, PodIs::There(pod)));
            assert_eq!((plan.step, plan.finished), (Step::Rest, None));
            plan.ending.map(|ending| ending.reason)
        };
        let serving = sandbox("Serve", false, &[]);
        assert_eq!(ending(&serving, &evicted), Some(reason::finished::DELETED));
        assert_eq!(ending(&serving, &running()), None);
        assert_eq!(ending(&sandbox("Serve", true, &[("Released", "SessionEnded")]), &evicted), None, "by us");
        let unstarted = Pod { metadata: evicted.metadata.clone(), ..pulling() };
        assert_eq!(ending(&serving, &unstarted), None);
    }

    #[test]
    fn a_finished_sandbox_goes_when_it_was_read_or_has_waited_long() {
        let step = |conditions: &[(&str, &str)], now| {
            let sandbox = sandbox("Serve", false, conditions);
            let plan = decide(&Facts { now, ..facts(&sandbox, PodIs::Gone(None)) });
            (plan.step, plan.look_again)
        };
        let finished = ("Finished", "Evicted");
        assert_eq!(step(&[finished], NOW), (Step::Rest, Some(1500)));
        assert_eq!(step(&[finished], 1500), (Step::DeleteSandbox, None));
        assert_eq!(step(&[finished, ("Released", "SessionEnded")], NOW), (Step::DeleteSandbox, None));
        assert_eq!(step(&[("Finished", "NeverStarted")], NOW), (Step::DeleteSandbox, None));
    }

    #[test]
    fn a_sandbox_that_is_being_deleted_is_left_to_kubernetes() {
        let mut sandbox = sandbox("Serve", false, &[]);
        sandbox.metadata.deletion_timestamp = sandbox.metadata.creation_timestamp.clone();
        assert_eq!(decide(&facts(&sandbox, PodIs::Unmade)), Plan::only(Step::Rest));
    }
}
