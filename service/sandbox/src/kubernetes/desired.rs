//! What should stand in a Sandbox, computed from what is known. Pure, and the same every time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use seance_operator_api::conditions::Verdict as Say;
use seance_operator_api::pool::Check;
use seance_operator_api::sandbox::{Desired, SessionRef, condition_type, reason};
use seance_operator_api::{Sandbox, condition, is_true};

use super::world::{Inner, Phase, Runner, pod_of};
use super::{ends, judge};

/// What has to be written to a Sandbox. Nothing is nothing.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ToWrite {
    pub(super) session: Option<SessionRef>,
    pub(super) status: Option<(Vec<Condition>, Vec<Check>)>,
}

/// What has to be written to the Sandbox of this name.
pub(super) fn to_write(inner: &Inner, name: &str, now: Time) -> ToWrite {
    let Some(sandbox) = inner.sandboxes.get(name) else { return ToWrite::default() };
    let runner = pod_of(sandbox).and_then(|id| inner.runners.get(&id).map(|runner| (id, runner)));
    let (says, checks, session) = match runner {
        Some((id, runner)) => {
            let is_listed = inner.is_listed(id, &runner.pool);
            (of_runner(inner, runner, is_listed), checks(inner, sandbox, runner, &now), session(runner))
        }
        None => (without_runner(sandbox, inner.has_settled(), inner.is_listed), Vec::new(), None),
    };
    let session = session.filter(|_| sandbox.spec.session.is_none());
    if says.is_empty() {
        return ToWrite { session, status: None };
    }
    ToWrite { session, status: status(sandbox, says, checks, now) }
}

/// The status, when it differs from what stands.
fn status(
    sandbox: &Sandbox,
    says: Vec<Say>,
    checks: Vec<Check>,
    now: Time,
) -> Option<(Vec<Condition>, Vec<Check>)> {
    let status = sandbox.status.clone().unwrap_or_default();
    let generation = sandbox.metadata.generation;
    let written: Vec<_> =
        says.into_iter().map(|say| say.over(&status.conditions, generation, now.clone())).collect();
    let is_same = |ours: &Condition| {
        condition(&status.conditions, &ours.type_).is_some_and(|theirs| {
            (&theirs.status, &theirs.reason, &theirs.message) == (&ours.status, &ours.reason, &ours.message)
        })
    };
    let is_written = written.iter().all(is_same) && status.checks == checks;
    (!is_written).then_some((written, checks))
}

fn session(runner: &Runner) -> Option<SessionRef> {
    match &runner.phase {
        Phase::Claimed { session, .. } => session.clone(),
        Phase::Warm { .. } | Phase::Over { .. } => None,
    }
}

fn say(type_: &'static str, is: bool, reason: &'static str, message: impl Into<String>) -> Say {
    Say { type_, is: Some(is), reason, message: message.into() }
}

fn of_runner(inner: &Inner, runner: &Runner, is_listed: bool) -> Vec<Say> {
    let verdicts = inner.verdicts(runner);
    let unproven = || {
        let why = judge::unproven(&verdicts);
        say(condition_type::READY, false, reason::ready::ISOLATION_NOT_PROVEN, why)
    };
    let is_connected = runner.link.is_connected();
    let ready = match &runner.phase {
        Phase::Warm { .. } | Phase::Claimed { .. } if !is_connected => {
            say(condition_type::READY, false, reason::ready::LINK_LOST, "")
        }
        Phase::Over { .. } => say(condition_type::READY, false, reason::ready::LINK_LOST, ""),
        Phase::Claimed { .. } if judge::is_open(&verdicts) => unproven(),
        Phase::Claimed { .. } => say(condition_type::READY, true, reason::ready::SERVING, ""),
        Phase::Warm { .. } if inner.is_early(runner) && !judge::is_open(&verdicts) => {
            say(condition_type::READY, false, reason::ready::LINKING, "")
        }
        Phase::Warm { .. } if !judge::is_proven(&verdicts) => unproven(),
        Phase::Warm { .. } if is_listed => say(condition_type::READY, true, reason::ready::SERVING, ""),
        Phase::Warm { .. } => say(condition_type::READY, false, reason::ready::LINKING, ""),
    };
    let mut says = vec![ready];
    match &runner.phase {
        Phase::Warm { .. } | Phase::Claimed { session: None, .. } => {}
        Phase::Claimed { session: Some(_), .. } => {
            says.push(say(condition_type::ASSIGNED, true, reason::assigned::SESSION, ""));
        }
        Phase::Over { released, had_session } => {
            if *had_session {
                says.push(say(condition_type::ASSIGNED, false, reason::assigned::SESSION_ENDED, ""));
            }
            says.push(say(condition_type::RELEASED, true, released, ""));
        }
    }
    says
}

/// A Sandbox whose runner isn't here: nothing is said until it would have to be here.
fn without_runner(sandbox: &Sandbox, has_settled: bool, is_listed: bool) -> Vec<Say> {
    let conditions = sandbox.conditions();
    if is_true(conditions, condition_type::RELEASED) || !is_listed {
        return Vec::new();
    }
    let had_session = sandbox.spec.session.is_some() || is_true(conditions, condition_type::ASSIGNED);
    let was_ready = ends::was_ready(sandbox);
    let is_retiring = sandbox.spec.desired == Desired::Retiring;
    let is_finished = is_true(conditions, condition_type::FINISHED);
    let lost = || say(condition_type::READY, false, reason::ready::LINK_LOST, "");
    let released = |reason| say(condition_type::RELEASED, true, reason, "");
    match (had_session, was_ready) {
        // No session came for it.
        (true, _) if has_settled || is_finished => vec![
            lost(),
            say(condition_type::ASSIGNED, false, reason::assigned::SESSION_ENDED, ""),
            released(reason::released::SESSION_ENDED),
        ],
        (true, _) => Vec::new(),
        (false, false) if is_retiring => vec![released(reason::released::NEVER_CONNECTED)],
        (false, true) if is_retiring && has_settled => vec![lost(), released(reason::released::RETIRED)],
        (false, true) if has_settled => vec![lost()],
        (false, _) => Vec::new(),
    }
}

fn checks(inner: &Inner, sandbox: &Sandbox, runner: &Runner, now: &Time) -> Vec<Check> {
    let standing = sandbox.status.as_ref().map(|status| status.checks.as_slice()).unwrap_or_default();
    if runner.judge.is_blank() {
        // It was taken back, and its checks were written by an earlier start of the service.
        return standing.to_vec();
    }
    let check = |verdict: judge::Verdict| {
        let same = standing.iter().find(|check| check.name == verdict.name && check.result == verdict.result);
        Check {
            name: verdict.name,
            result: verdict.result,
            message: verdict.message,
            last_transition_time: same.map_or_else(|| now.clone(), |same| same.last_transition_time.clone()),
        }
    };
    inner.verdicts(runner).into_iter().map(check).collect()
}
