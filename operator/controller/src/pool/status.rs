//! How a pool is, as its status tells it: counts, conditions, and the checks of isolation over all of
//! its sandboxes.

use std::collections::BTreeMap;

use kube::ResourceExt;
use seance_operator_api::conditions::{Condition, Time, Verdict, condition, is_true};
use seance_operator_api::pool::{Check, CheckName, CheckResult, SandboxPoolStatus, condition_type, reason};
use seance_operator_api::sandbox::{condition_type as of_sandbox, reason as sandbox_reason};
use seance_operator_api::{Sandbox, SandboxPool};

use super::decide::Decision;

/// Something that stops the whole pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// One of the reasons of `Ready`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// The status to write. `alive` are the pool's sandboxes that haven't finished.
pub fn status(
    pool: &SandboxPool,
    decision: &Decision,
    alive: &[&Sandbox],
    obstacle: Option<Obstacle>,
    now: &Time,
) -> SandboxPoolStatus {
    let standing = pool.status.clone().unwrap_or_default();
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let checks = checks(alive, &standing.checks, now);
    let ready = ready(decision, alive, obstacle);
    let verdicts = [progressing(decision, &ready), isolation(&checks), ready];
    let generation = pool.metadata.generation;
    let mut conditions: Vec<Condition> =
        verdicts.into_iter().map(|is| is.over(&standing.conditions, generation, now.clone())).collect();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    SandboxPoolStatus {
        observed_generation: generation,
        desired: count(decision.goal),
        starting: count(decision.starting),
        warm: count(decision.warm),
        assigned: count(decision.assigned),
        retiring: count(decision.retiring),
        conditions,
        checks,
    }
}

fn ready(decision: &Decision, alive: &[&Sandbox], obstacle: Option<Obstacle>) -> Verdict {
    let verdict = |is: bool, reason: &'static str, message: String| Verdict {
        type_: condition_type::READY,
        is: Some(is),
        reason,
        message,
    };
    if let Some(Obstacle { reason, message }) = obstacle {
        return verdict(false, reason, message);
    }
    if decision.warm >= decision.goal {
        return verdict(true, reason::WARM, String::new());
    }
    if let Some((reason, message)) = in_the_way(alive) {
        return verdict(false, reason, message);
    }
    if decision.failed > 0 {
        let message = "pods end before they serve; see the Sandboxes that have finished".to_owned();
        return verdict(false, reason::ENDING_EARLY, message);
    }
    verdict(false, reason::FILLING, String::new())
}

/// The worst that keeps a sandbox from starting, and what it says.
fn in_the_way(alive: &[&Sandbox]) -> Option<(&'static str, String)> {
    use sandbox_reason::started;
    let worst_first = [
        (of_sandbox::STARTED, started::QUOTA_EXCEEDED, reason::QUOTA_EXCEEDED),
        (of_sandbox::STARTED, started::CREATE_FAILED, reason::CREATE_FAILED),
        (of_sandbox::STARTED, started::CONTAINER_FAILED, reason::CREATE_FAILED),
        (of_sandbox::STARTED, started::IMAGE_PULL_FAILED, reason::IMAGE_PULL_FAILED),
        (of_sandbox::STARTED, started::UNSCHEDULABLE, reason::UNSCHEDULABLE),
        (of_sandbox::READY, sandbox_reason::ready::ISOLATION_NOT_PROVEN, reason::ISOLATION_NOT_PROVEN),
    ];
    worst_first.into_iter().find_map(|(type_, of_sandbox, of_pool)| {
        let says = |sandbox: &&&Sandbox| {
            condition(sandbox.conditions(), type_)
                .is_some_and(|is| is.status == "False" && is.reason == of_sandbox)
        };
        // The first by name, so that the same is told at every look.
        let sandbox = alive.iter().filter(says).min_by_key(|sandbox| sandbox.name_any())?;
        let message = condition(sandbox.conditions(), type_).map(|is| is.message.clone());
        Some((of_pool, message.unwrap_or_default()))
    })
}

fn progressing(decision: &Decision, ready: &Verdict) -> Verdict {
    let is_blocked = ready.is == Some(false) && ready.reason != reason::FILLING;
    let (is, reason) = match decision {
        _ if is_blocked => (false, reason::BLOCKED),
        it if it.stale > 0 => (true, reason::REPLACING),
        it if it.warm < it.goal => (true, reason::REFILLING),
        it if !it.retire.is_empty() || it.retiring > 0 => (true, reason::SHRINKING),
        _ => (false, reason::SETTLED),
    };
    Verdict { type_: condition_type::PROGRESSING, is: Some(is), reason, message: String::new() }
}

/// One line a check: the worst that any living sandbox has.
fn checks(alive: &[&Sandbox], standing: &[Check], now: &Time) -> Vec<Check> {
    let severity = |result: CheckResult| match result {
        CheckResult::Passed => 0,
        CheckResult::Unknown => 1,
        CheckResult::Accepted => 2,
        CheckResult::Failed => 3,
    };
    let mut by_name: Vec<&&Sandbox> = alive.iter().collect();
    by_name.sort_by_key(|sandbox| sandbox.name_any());
    let mut worst: BTreeMap<CheckName, &Check> = BTreeMap::new();
    for check in
        by_name.iter().filter_map(|sandbox| sandbox.status.as_ref()).flat_map(|status| &status.checks)
    {
        let entry = worst.entry(check.name).or_insert(check);
        if severity(check.result) > severity(entry.result) {
            *entry = check;
        }
    }
    let told = |check: &Check| {
        let same = standing.iter().find(|old| old.name == check.name && old.result == check.result);
        let since = same.map_or(now, |old| &old.last_transition_time);
        Check { last_transition_time: since.clone(), ..check.clone() }
    };
    worst.into_values().map(told).collect()
}

fn isolation(checks: &[Check]) -> Verdict {
    let names = |result: CheckResult| {
        let of = checks.iter().filter(|check| check.result == result).map(|check| check.name.as_str());
        of.collect::<Vec<_>>().join(", ")
    };
    let [failed, accepted, unknown] =
        [CheckResult::Failed, CheckResult::Accepted, CheckResult::Unknown].map(names);
    let (is, reason, message) = match () {
        () if !failed.is_empty() => (Some(false), reason::CHECK_FAILED, failed),
        () if checks.is_empty() || !unknown.is_empty() => (None, reason::NOT_CHECKED, unknown),
        () if !accepted.is_empty() => (Some(true), reason::CHECKS_ACCEPTED, accepted),
        () => (Some(true), reason::CHECKS_PASSED, String::new()),
    };
    Verdict { type_: condition_type::ISOLATION_PROVEN, is, reason, message }
}

/// Whether a Sandbox still counts for its pool.
pub fn is_alive(sandbox: &Sandbox) -> bool {
    !is_true(sandbox.conditions(), of_sandbox::FINISHED)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn time(second: i64) -> Time {
        Time(Timestamp::from_second(second).expect("in range"))
    }

    fn pool() -> SandboxPool {
        serde_json::from_value(json!({
            "apiVersion": "seance.dev/v1alpha1", "kind": "SandboxPool",
            "metadata": { "name": "p", "generation": 3 },
            "spec": {
                "template": {
                    "image": "i",
                    "resources": { "limits": { "cpu": 1, "memory": "1Gi", "ephemeralStorage": "1Gi" } },
                },
                "engines": ["javascript"],
                "warm": { "min": 1, "max": 1 },
            },
        }))
        .expect("a pool")
    }

    fn sandbox(name: &str, status: Value) -> Sandbox {
        serde_json::from_value(json!({
            "apiVersion": "seance.dev/v1alpha1", "kind": "Sandbox",
            "metadata": { "name": name }, "spec": { "pool": "p" }, "status": status,
        }))
        .expect("a sandbox")
    }

    fn with(name: &str, type_: &str, reason: &str, message: &str) -> Sandbox {
        let at = "2026-01-01T00:00:00Z";
        let condition = json!({
            "type": type_, "status": "False", "reason": reason, "message": message, "lastTransitionTime": at,
        });
        sandbox(name, json!({ "conditions": [condition] }))
    }

    fn checked(name: &str, results: &[(&str, &str)]) -> Sandbox {
        let check = |(check, result): &(&str, &str)| {
            let at = "2026-01-01T00:00:00Z";
            json!({ "name": check, "result": result, "message": name, "lastTransitionTime": at })
        };
        sandbox(name, json!({ "checks": results.iter().map(check).collect::<Vec<_>>() }))
    }

    fn reasons(decision: &Decision, alive: &[&Sandbox], obstacle: Option<Obstacle>) -> [String; 2] {
        let status = status(&pool(), decision, alive, obstacle, &time(1));
        [condition_type::READY, condition_type::PROGRESSING].map(|type_| {
            let is = condition(&status.conditions, type_).expect("it is told");
            format!("{} {} {}", is.status, is.reason, is.message).trim_end().to_owned()
        })
    }

    /// Sandbox 3 and 22: one condition tells why a pool doesn't fill.
    #[test]
    fn a_pool_tells_what_is_in_its_way() {
        let filling = Decision { goal: 2, create: 1, starting: 1, ..Decision::default() };
        let quota = with("a", "Started", "QuotaExceeded", "pods: 3");
        let image = with("b", "Started", "ImagePullFailed", "not found");
        let unschedulable = with("c", "Started", "Unschedulable", "0/1 nodes");
        let open = with("d", "Ready", "IsolationNotProven", "resolver");
        let pending = with("e", "Started", "Pending", "");
        let cases: &[(&[&Sandbox], &str)] = &[
            (&[&pending, &unschedulable, &image, &quota], "False QuotaExceeded pods: 3"),
            (&[&pending, &unschedulable, &image], "False ImagePullFailed not found"),
            (&[&unschedulable, &open], "False Unschedulable 0/1 nodes"),
            (&[&open], "False IsolationNotProven resolver"),
        ];
        for (alive, told) in cases {
            assert_eq!(reasons(&filling, alive, None), [(*told).to_owned(), "False Blocked".to_owned()]);
        }
        assert_eq!(reasons(&filling, &[&pending], None), ["False Filling", "True Refilling"]);
        let obstacle = Obstacle { reason: reason::LINK_UNKNOWN, message: "no service".to_owned() };
        let told = ["False LinkUnknown no service", "False Blocked"];
        assert_eq!(reasons(&filling, &[&quota], Some(obstacle)), told);
        let failing = Decision { failed: 2, ..filling };
        assert!(reasons(&failing, &[&pending], None)[0].starts_with("False EndingEarly"));
    }

    #[test]
    fn a_pool_tells_what_it_does() {
        let full = Decision { goal: 2, warm: 2, ..Decision::default() };
        assert_eq!(reasons(&full, &[], None), ["True Warm", "False Settled"]);
        let replacing = Decision { stale: 1, ..full.clone() };
        assert_eq!(reasons(&replacing, &[], None)[1], "True Replacing");
        let shrinking = Decision { retiring: 1, ..full };
        assert_eq!(reasons(&shrinking, &[], None)[1], "True Shrinking");
    }

    /// Sandbox 41: a way that is open in one pod is told by the pool, by name.
    #[test]
    fn a_check_is_as_bad_as_the_worst_sandbox_has_it() {
        let good = checked("a", &[("resolver", "Passed"), ("metadata", "Passed")]);
        let bad = checked("b", &[("resolver", "Failed"), ("metadata", "Accepted")]);
        let told = |alive: &[&Sandbox]| {
            let status = status(&pool(), &Decision::default(), alive, None, &time(1));
            let is = condition(&status.conditions, condition_type::ISOLATION_PROVEN).expect("it is told");
            format!("{} {} {}", is.status, is.reason, is.message).trim_end().to_owned()
        };
        assert_eq!(told(&[]), "Unknown NotChecked");
        assert_eq!(told(&[&good]), "True ChecksPassed");
        assert_eq!(told(&[&good, &bad]), "False CheckFailed resolver");
        let accepted = checked("c", &[("metadata", "Accepted")]);
        assert_eq!(told(&[&good, &accepted]), "True ChecksAccepted metadata");
        let unknown = checked("d", &[("neighbour", "Unknown")]);
        assert_eq!(told(&[&good, &unknown]), "Unknown NotChecked neighbour");
    }

    /// What is computed from the same is the same, so that an idle pool is written once.
    #[test]
    fn a_status_computed_again_is_the_same() {
        let sandboxes = [
            checked("a", &[("resolver", "Failed"), ("metadata", "Passed")]),
            with("b", "Started", "Unschedulable", "0/1 nodes"),
        ];
        let alive: Vec<&Sandbox> = sandboxes.iter().collect();
        let decision = Decision { goal: 1, ..Decision::default() };
        let mut pool = pool();
        let first = status(&pool, &decision, &alive, None, &time(1));
        pool.status = Some(first.clone());
        assert_eq!(status(&pool, &decision, &alive, None, &time(2)), first);
    }
}
