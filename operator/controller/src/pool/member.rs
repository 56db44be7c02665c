//! One Sandbox as its pool sees it.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use seance_operator_api::conditions::{condition, is_true};
use seance_operator_api::sandbox::{Desired, condition_type, reason};
use seance_operator_api::{Sandbox, labels};

use super::decide::{Member, State};

/// How long a sandbox that the service made may be ready before it counts as one of the warm: the
/// session that it was made for takes it within that, or has gone.
const COLD_SECONDS: i64 = 60;

/// What is known beside the Sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Its pod, if there is one.
    pub pod: Option<&'a Pod>,
    /// The hash of the pool's template, if that is a good one.
    pub template: Option<&'a str>,
    /// Its node takes no more pods.
    pub is_cordoned: bool,
    /// Asked to go a moment ago, which isn't seen in the Sandbox yet.
    pub is_asked: bool,
}

/// The member that a Sandbox is.
pub fn member(sandbox: &Sandbox, around: Around<'_>, now: i64) -> Member {
    let created = sandbox.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.as_second());
    let hash = around.pod.and_then(|pod| pod.labels().get(labels::TEMPLATE));
    let is_other = hash.is_some_and(|hash| around.template.is_some_and(|template| template != hash));
    let state = state(sandbox, around.is_asked, now);
    // One that starts there would serve as soon as it is warm.
    let is_leaving = around.is_cordoned && matches!(state, State::Warm | State::Starting { .. });
    Member { uid: sandbox.uid().unwrap_or_default(), created, state, is_stale: is_other, is_leaving }
}

fn state(sandbox: &Sandbox, is_asked: bool, now: i64) -> State {
    let conditions = sandbox.conditions();
    let since = |type_: &str| {
        let condition = condition(conditions, type_).filter(|condition| condition.status == "True");
        condition.map(|condition| condition.last_transition_time.0.as_second())
    };
    if let Some(at) = since(condition_type::FINISHED) {
        return State::Finished { failed: has_failed(sandbox).then_some(at) };
    }
    let has_session = sandbox.spec.session.is_some() || is_true(conditions, condition_type::ASSIGNED);
    if has_session && !is_true(conditions, condition_type::RELEASED) {
        return State::Assigned;
    }
    let is_going = sandbox.spec.desired == Desired::Retiring
        || is_asked
        || is_true(conditions, condition_type::RELEASED)
        || is_true(conditions, condition_type::ENDING)
        || sandbox.metadata.deletion_timestamp.is_some();
    match since(condition_type::READY) {
        _ if is_going => State::Retiring,
        Some(ready) if sandbox.is_cold() && now - ready < COLD_SECONDS => {
            State::Cold { until: Some(ready + COLD_SECONDS) }
        }
        None if sandbox.is_cold() => State::Cold { until: None },
        Some(_) => State::Warm,
        None => State::Starting { running_since: waiting_since(sandbox, now) },
    }
}

/// Since when a runner could be warm and isn't. One in quarantine isn't given up: another would be in
/// the same place.
fn waiting_since(sandbox: &Sandbox, now: i64) -> Option<i64> {
    let conditions = sandbox.conditions();
    let started =
        condition(conditions, condition_type::STARTED).filter(|started| started.status == "True")?;
    let ready = condition(conditions, condition_type::READY);
    if ready.is_some_and(|ready| ready.reason == reason::ready::ISOLATION_NOT_PROVEN) {
        return None;
    }
    let lost = ready.filter(|ready| ready.reason == reason::ready::LINK_LOST);
    let since = lost.unwrap_or(started).last_transition_time.0;
    Some(since.as_second().min(now))
}

/// Whether a sandbox ended before it served anybody and nobody had wanted that: what a pool that
/// makes the next one has to be careful about.
fn has_failed(sandbox: &Sandbox) -> bool {
    use reason::finished::{COMPLETED, OUT_OF_MEMORY, REJECTED, RUNNER_FAILED, RUNNER_KILLED};
    let conditions = sandbox.conditions();
    let by_itself = condition(conditions, condition_type::FINISHED).is_some_and(|finished| {
        [COMPLETED, OUT_OF_MEMORY, REJECTED, RUNNER_FAILED, RUNNER_KILLED].contains(&&*finished.reason)
    });
    let was_wanted = sandbox.spec.desired == Desired::Serve && sandbox.spec.session.is_none();
    // Of a short session only the end may have been written: then it isn't assigned any more.
    by_itself && was_wanted && condition(conditions, condition_type::ASSIGNED).is_none()
}

/// Now, in seconds of Unix time.
pub fn now_seconds() -> i64 {
    Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox(spec: Value, origin: &str, conditions: &[(&str, &str, &str, i64)]) -> Sandbox {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, reason, at)| {
                let at = Timestamp::from_second(*at).expect("in range").to_string();
                json!({
                    "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": at,
                })
            })
            .collect();
        let mut spec = spec;
        spec["pool"] = json!("p");
        serde_json::from_value(json!({
            "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox",
            "metadata": { "name": "s", "uid": "u", "labels": { labels::ORIGIN: origin } },
            "spec": spec, "status": { "conditions": conditions },
        }))
        .expect("a sandbox")
    }

    #[test]
    fn conditions_and_spec_give_the_state() {
        let session = json!({ "session": { "id": "s", "tenant": "t", "deadline": "2026-01-01T00:00:00Z" } });
        let retiring = json!({ "desired": "Retiring" });
        let mut leaving = session.clone();
        leaving["desired"] = json!("Retiring");
        let started = ("Started", "True", "Running", 50);
        let ready = ("Ready", "True", "Serving", 60);
        let released = ("Released", "True", "SessionEnded", 70);
        let unassigned = ("Assigned", "False", "SessionEnded", 70);
        let ending = ("Ending", "True", "Drained", 70);
        let quarantined = ("Ready", "False", "IsolationNotProven", 60);
        let starting = |running_since| State::Starting { running_since };
        let finished = |reason| ("Finished", "True", reason, 80);
        type Case<'a> = (Value, &'a str, &'a [(&'a str, &'a str, &'a str, i64)], State);
        let cases: &[Case<'_>] = &[
            (json!({}), "warm", &[], starting(None)),
            (json!({}), "warm", &[("Started", "False", "Pending", 50)], starting(None)),
            (json!({}), "warm", &[started], starting(Some(50))),
            (json!({}), "warm", &[started, quarantined], starting(None)),
            (json!({}), "warm", &[started, ("Ready", "False", "LinkLost", 65)], starting(Some(65))),
            (json!({}), "warm", &[started, ready], State::Warm),
            (json!({}), "cold", &[started], State::Cold { until: None }),
            (json!({}), "cold", &[started, ready], State::Cold { until: Some(120) }),
            (json!({}), "warm", &[started, ready, ("Assigned", "True", "Session", 61)], State::Assigned),
            (session.clone(), "warm", &[started], State::Assigned),
            (leaving, "warm", &[started, ready], State::Assigned),
            (session.clone(), "warm", &[started, released], State::Retiring),
            (retiring.clone(), "warm", &[started, ready], State::Retiring),
            (json!({}), "warm", &[started, ready, ending], State::Retiring),
            (session.clone(), "warm", &[started, ending], State::Assigned),
            (json!({}), "warm", &[finished("RunnerFailed")], State::Finished { failed: Some(80) }),
            (json!({}), "warm", &[finished("Drained")], State::Finished { failed: None }),
            (retiring, "warm", &[finished("Completed")], State::Finished { failed: None }),
            (session, "warm", &[finished("OutOfMemory")], State::Finished { failed: None }),
            (
                json!({}),
                "warm",
                &[unassigned, released, finished("Completed")],
                State::Finished { failed: None },
            ),
        ];
        for (spec, origin, conditions, expected) in cases {
            let sandbox = sandbox(spec.clone(), origin, conditions);
            assert_eq!(state(&sandbox, false, 100), *expected, "{spec} {conditions:?}");
        }
    }

    #[test]
    fn a_cold_one_that_nobody_took_becomes_one_of_the_warm() {
        let ready = ("Ready", "True", "Serving", 60);
        assert_eq!(state(&sandbox(json!({}), "cold", &[ready]), false, 120), State::Warm);
    }

    #[test]
    fn asked_is_going_before_it_is_seen() {
        let ready = ("Ready", "True", "Serving", 60);
        assert_eq!(state(&sandbox(json!({}), "warm", &[ready]), true, 100), State::Retiring);
    }

    #[test]
    fn another_template_makes_stale_and_a_closed_node_leave() {
        let warm = sandbox(json!({}), "warm", &[("Ready", "True", "Serving", 60)]);
        let starting = sandbox(json!({}), "warm", &[]);
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "labels": { labels::TEMPLATE: "a" } } }))
            .expect("a pod");
        let around =
            |template, is_cordoned| Around { pod: Some(&pod), template, is_cordoned, is_asked: false };
        let is_stale = |sandbox, around| member(sandbox, around, 100).is_stale;
        assert!(!is_stale(&warm, around(Some("a"), false)) && !is_stale(&warm, around(None, false)));
        assert!(is_stale(&warm, around(Some("b"), false)) && is_stale(&starting, around(Some("b"), false)));
        let is_leaving = |sandbox, around| member(sandbox, around, 100).is_leaving;
        let cold = sandbox(json!({}), "cold", &[]);
        assert!(is_leaving(&warm, around(Some("a"), true)) && is_leaving(&starting, around(Some("a"), true)));
        assert!(!is_leaving(&cold, around(Some("a"), true)), "a caller waits for it");
        assert!(!is_leaving(&warm, around(Some("b"), false)));
    }
}
