//! One pass over a Sandbox: look, decide, act, tell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use seance_operator_api::conditions::{Condition, Time, Verdict};
use seance_operator_api::sandbox::{SandboxStatus, condition_type, reason};
use seance_operator_api::{Sandbox, SandboxPool};
use serde_json::json;

use super::decide::{Facts, Plan, PodIs, Step, decide};
use super::started::verdict as started_verdict;
use crate::build::pod::{self, Surroundings};
use crate::cluster::{Error, Refusal};
use crate::context::{Context, is_owned};
use crate::pool::member::now_seconds;
use crate::pool::reconcile::seconds;

/// How long to wait for the namespace's policies.
const PREPARE_PAUSE: Duration = Duration::from_secs(1);

/// What is known of the pod, as owned data.
enum Known {
    Unmade,
    There(Arc<Pod>),
    Gone(Option<Arc<Pod>>),
}

/// One pass.
///
/// # Errors
/// When a request failed and is worth trying again.
pub async fn reconcile(sandbox: Arc<Sandbox>, context: Arc<Context>) -> Result<Action, Error> {
    let pool = context.pool_of(&sandbox);
    let known = look(&sandbox, &context).await?;
    let plan = plan(&sandbox, &context, pool.is_some(), &known);
    let (outcome, made) = act(&sandbox, &context, pool.as_deref(), &known, &plan).await?;
    let pod = made.as_ref().or(match &known {
        Known::There(pod) => Some(pod.as_ref()),
        _ => None,
    });
    let started = outcome.started.or(plan.started);
    if plan.step != Step::DeleteSandbox {
        tell(&sandbox, &context, pod, [started, plan.ending, plan.finished]).await?;
    }
    if let Some(pause) = outcome.pause {
        return Ok(Action::requeue(pause));
    }
    context.backoff.forget(&sandbox.uid().unwrap_or_default());
    let due =
        plan.look_again.map(|at| Duration::from_secs(u64::try_from(at - now_seconds()).unwrap_or(0).max(1)));
    Ok(due.map_or_else(Action::await_change, Action::requeue))
}

/// Looks for the pod. That it is gone is believed of the API server alone, not of a cache.
async fn look(sandbox: &Sandbox, context: &Context) -> Result<Known, Error> {
    if let Some(pod) = context.pod_of(sandbox) {
        return Ok(Known::There(pod));
    }
    let status = sandbox.status.as_ref();
    let Some(pod_uid) = status.and_then(|status| status.pod_uid.as_deref()) else { return Ok(Known::Unmade) };
    if status.is_some_and(|status| seance_operator_api::is_true(&status.conditions, condition_type::FINISHED))
    {
        return Ok(Known::Gone(None));
    }
    let name = pod::name(&sandbox.uid().unwrap_or_default());
    let there = context.cluster.read_pod(&sandbox.namespace().unwrap_or_default(), &name).await?;
    Ok(match there.filter(|pod| pod.uid().as_deref() == Some(pod_uid)) {
        Some(pod) => Known::There(Arc::new(pod)),
        None => Known::Gone(context.last_seen(pod_uid)),
    })
}

fn plan(sandbox: &Sandbox, context: &Context, has_pool: bool, known: &Known) -> Plan {
    let pod = match known {
        Known::Unmade => PodIs::Unmade,
        Known::There(pod) => PodIs::There(pod),
        Known::Gone(pod) => PodIs::Gone(pod.as_deref()),
    };
    let node = sandbox.status.as_ref().and_then(|status| status.node_name.as_deref());
    let link = context.link.borrow().link.as_ref().err().cloned();
    decide(&Facts {
        sandbox,
        pod,
        has_pool,
        obstacle: link.as_deref().map(|why| (reason::started::LINK_UNKNOWN, why)),
        is_node_lost: node.is_some_and(|node| context.is_node_lost(node)),
        now: now_seconds(),
        kept_finished: seconds(context.settings.finished_retention),
    })
}

/// What came of a step.
#[derive(Default)]
struct Outcome {
    started: Option<Verdict>,
    pause: Option<Duration>,
}

async fn act(
    sandbox: &Sandbox,
    context: &Context,
    pool: Option<&SandboxPool>,
    known: &Known,
    plan: &Plan,
) -> Result<(Outcome, Option<Pod>), Error> {
    let done = |action: &str| context.metrics.actions.with_label_values(&[action]).inc();
    let (action, result) = match (&plan.step, known) {
        (Step::MakePod, _) => return make_pod(sandbox, context, pool).await,
        (Step::PatchPod(patch), Known::There(pod)) => {
            ("assign_pod", context.cluster.patch_pod(pod, patch.clone()).await)
        }
        (Step::DeletePod { uid, version }, Known::There(pod)) => {
            ("delete_pod", context.cluster.delete_pod(pod, uid.clone(), version.clone()).await)
        }
        (Step::Retire, _) => ("retire", context.cluster.retire(sandbox).await),
        (Step::DeleteSandbox, _) => ("delete_sandbox", context.cluster.delete_sandbox(sandbox).await),
        (Step::Rest | Step::PatchPod(_) | Step::DeletePod { .. }, _) => {
            return Ok((Outcome::default(), None));
        }
    };
    match result {
        Ok(()) => done(action),
        // It changed or is gone: the watch will tell.
        Err(error) if matches!(error.refusal(), Some(Refusal::NotFound | Refusal::Conflict)) => {}
        Err(error) => return Err(error),
    }
    Ok((Outcome::default(), None))
}

async fn make_pod(
    sandbox: &Sandbox,
    context: &Context,
    pool: Option<&SandboxPool>,
) -> Result<(Outcome, Option<Pod>), Error> {
    let uid = sandbox.uid().unwrap_or_default();
    let wait = |pause| Ok((Outcome { started: None, pause: Some(pause) }, None));
    if let Some(pause) = context.backoff.pause(&uid, Instant::now()) {
        return wait(pause);
    }
    let link = context.link.borrow().link.clone();
    let (Some(pool), Ok(link)) = (pool, link) else { return wait(PREPARE_PAUSE) };
    if !context.is_prepared(&sandbox.namespace().unwrap_or_default()) {
        return wait(PREPARE_PAUSE);
    }
    let around = Surroundings { link: &link, canaries: &context.settings.canaries };
    let refused = |reason, message| {
        let started = Some(started_verdict(false, reason, message));
        let pause = Some(context.backoff.failed(&uid, Instant::now(), rand::random()));
        Ok((Outcome { started, pause }, None))
    };
    let pod = match pod::pod(sandbox, pool, around) {
        Ok(pod) => pod,
        Err(error) => return refused(reason::started::INVALID_TEMPLATE, error.to_string()),
    };
    let error = match context.cluster.make_pod(&pod).await {
        Ok(made) => {
            context.metrics.actions.with_label_values(&["make_pod"]).inc();
            return Ok((started_by(&made), Some(made)));
        }
        Err(error) => error,
    };
    match error.refusal() {
        Some(Refusal::AlreadyExists) => match existing(sandbox, context, &pod).await? {
            Some(ours) => Ok((started_by(&ours), Some(ours))),
            None => {
                refused(reason::started::CREATE_FAILED, format!("another's pod is named {}", pod.name_any()))
            }
        },
        Some(Refusal::Quota(message)) => refused(reason::started::QUOTA_EXCEEDED, message),
        Some(Refusal::Refused(message)) => refused(reason::started::CREATE_FAILED, message),
        Some(Refusal::NotFound | Refusal::Conflict) | None => Err(error),
    }
}

fn started_by(pod: &Pod) -> Outcome {
    Outcome { started: Some(super::started::started(pod, &[])), pause: None }
}

/// The pod of our pod's name, if it is ours.
async fn existing(sandbox: &Sandbox, context: &Context, pod: &Pod) -> Result<Option<Pod>, Error> {
    let namespace = sandbox.namespace().unwrap_or_default();
    let there = context.cluster.read_pod(&namespace, &pod.name_any()).await?;
    Ok(there.filter(|there| is_owned(there, &sandbox.uid().unwrap_or_default())))
}

/// Tells our part of the status, if it isn't told.
async fn tell(
    sandbox: &Sandbox,
    context: &Context,
    pod: Option<&Pod>,
    says: [Option<Verdict>; 3],
) -> Result<(), Error> {
    let standing = ours(&sandbox.status.clone().unwrap_or_default());
    let wanted = status(&standing, pod, says, &Time(Timestamp::now()));
    if wanted == standing {
        return Ok(());
    }
    match context.cluster.tell_sandbox(sandbox, &json!(wanted)).await {
        Err(error) if matches!(error.refusal(), Some(Refusal::NotFound | Refusal::Conflict)) => Ok(()),
        told => told,
    }
}

/// The part of a status that the operator writes.
fn ours(status: &SandboxStatus) -> SandboxStatus {
    let is_ours = |condition: &&Condition| {
        [condition_type::STARTED, condition_type::ENDING, condition_type::FINISHED]
            .contains(&condition.type_.as_str())
    };
    SandboxStatus {
        conditions: status.conditions.iter().filter(is_ours).cloned().collect(),
        checks: Vec::new(),
        ..status.clone()
    }
}

/// Our part as it should be. What has nothing new to say stays.
fn status(
    standing: &SandboxStatus,
    pod: Option<&Pod>,
    says: [Option<Verdict>; 3],
    now: &Time,
) -> SandboxStatus {
    let node = pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone());
    let mut conditions = standing.conditions.clone();
    for verdict in says.into_iter().flatten() {
        let condition = verdict.over(&standing.conditions, None, now.clone());
        match conditions.iter_mut().find(|old| old.type_ == condition.type_) {
            Some(old) => *old = condition,
            None => conditions.push(condition),
        }
    }
    SandboxStatus {
        pod_name: pod.map(ResourceExt::name_any).or(standing.pod_name.clone()),
        pod_uid: pod.and_then(ResourceExt::uid).or(standing.pod_uid.clone()),
        node_name: node.or(standing.node_name.clone()),
        conditions,
        checks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::ended;

    fn time(second: i64) -> Time {
        Time(Timestamp::from_second(second).expect("in range"))
    }

    #[test]
    fn our_part_of_a_status_has_nothing_of_the_services() {
        let ready = Verdict {
            type_: condition_type::READY,
            is: Some(true),
            reason: "Serving",
            message: String::new(),
        };
        let started = started_verdict(true, reason::started::RUNNING, String::new());
        let conditions = [ready, started].map(|verdict| verdict.over(&[], None, time(1))).to_vec();
        let status = SandboxStatus { conditions, pod_uid: Some("u".to_owned()), ..SandboxStatus::default() };
        let ours = ours(&status);
        assert_eq!(ours.conditions.len(), 1);
        assert_eq!(ours.pod_uid.as_deref(), Some("u"));
    }

    #[test]
    fn what_is_told_again_is_the_same_and_what_is_gone_is_kept() {
        let started = || Some(started_verdict(true, reason::started::RUNNING, String::new()));
        let pod = Pod {
            metadata: kube::core::ObjectMeta {
                name: Some("p".to_owned()),
                uid: Some("u".to_owned()),
                ..kube::core::ObjectMeta::default()
            },
            ..Pod::default()
        };
        let first = status(&SandboxStatus::default(), Some(&pod), [started(), None, None], &time(1));
        assert_eq!(status(&first, Some(&pod), [started(), None, None], &time(2)), first);
        let finished = Some(ended::verdict(reason::finished::DELETED, ""));
        let last = status(&first, None, [None, None, finished], &time(3));
        assert_eq!((last.pod_uid.as_deref(), last.conditions.len()), (Some("u"), 2));
        assert_eq!(last.conditions[0], first.conditions[0]);
    }
}
