//! One pass over a pool: prepare its namespace, look at its sandboxes, decide, act, tell.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use rand::distr::{Alphanumeric, SampleString};
use seance_operator_api::conditions::Time;
use seance_operator_api::pool::{SandboxPoolStatus, TaintEffect, TolerationOperator, reason};
use seance_operator_api::sandbox::Desired;
use seance_operator_api::{Sandbox, SandboxPool};
use serde_json::json;

use super::decide::{Decision, Member, Wanted, decide};
use super::events;
use super::expect::Unseen;
use super::member::{Around, member, now_seconds};
use super::prepare::prepare;
use super::status::{Obstacle, is_alive, status};
use crate::build::link::Link;
use crate::build::pod::{Surroundings, template_hash};
use crate::cluster::{Error, Refusal, warm_sandbox};
use crate::context::Context;

/// A pool is looked at this often when nothing happens. It costs no request.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// The characters after a pool's name in that of a Sandbox.
const SUFFIX_CHARACTERS: usize = 8;

/// One pass.
///
/// # Errors
/// When a request failed and is worth trying again.
pub async fn reconcile(pool: Arc<SandboxPool>, context: Arc<Context>) -> Result<Action, Error> {
    if pool.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = pool.namespace().unwrap_or_default();
    let template = match prepare(&context, &namespace).await {
        Ok(link) => template(&pool, &context, &link),
        Err(obstacle) => Err(obstacle),
    };
    let sandboxes = context.sandboxes_of(&pool);
    let (members, unseen) = members(&pool, &context, &sandboxes, template.as_deref().ok());
    let wanted = Wanted::of(&pool.spec, seconds(context.settings.warm_within));
    let now = now_seconds();
    let mut decision = decide(&wanted, &members, unseen.made, now);
    if template.is_err() {
        decision.create = 0;
    }

    let mut outcome = retire(&pool, &context, &sandboxes, &decision).await;
    let mut obstacle = template.err();
    match create(&pool, &context, decision.create).await {
        Ok(()) => {}
        Err(error) => match error.refusal() {
            Some(Refusal::Quota(message)) => {
                obstacle = Some(Obstacle { reason: reason::QUOTA_EXCEEDED, message })
            }
            Some(Refusal::Refused(message)) => {
                obstacle = Some(Obstacle { reason: reason::CREATE_FAILED, message })
            }
            _ => outcome = outcome.and(Err(error)),
        },
    }

    let alive: Vec<&Sandbox> =
        sandboxes.iter().map(Arc::as_ref).filter(|sandbox| is_alive(sandbox)).collect();
    let is_blocked = obstacle.is_some();
    let status = status(&pool, &decision, &alive, obstacle, &Time(Timestamp::now()));
    tell(&pool, &context, &status).await?;
    outcome?;
    Ok(next_look(&pool, &context, &decision, is_blocked, now))
}

fn next_look(
    pool: &SandboxPool,
    context: &Context,
    decision: &Decision,
    is_blocked: bool,
    now: i64,
) -> Action {
    let uid = pool.uid().unwrap_or_default();
    if is_blocked {
        return Action::requeue(context.backoff.failed(&uid, Instant::now(), rand::random()));
    }
    context.backoff.forget(&uid);
    let due = decision.look_again.map(|at| Duration::from_secs(u64::try_from(at - now).unwrap_or(0).max(1)));
    Action::requeue(due.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN))
}

fn template(pool: &SandboxPool, context: &Context, link: &Link) -> Result<String, Obstacle> {
    let around = Surroundings { link, canaries: &context.settings.canaries };
    let invalid = |error: crate::build::pod::TemplateError| Obstacle {
        reason: reason::INVALID_TEMPLATE,
        message: error.to_string(),
    };
    template_hash(pool, around).map_err(invalid)
}

fn members(
    pool: &SandboxPool,
    context: &Context,
    sandboxes: &[Arc<Sandbox>],
    template: Option<&str>,
) -> (Vec<Member>, Unseen) {
    let uids = |keep: fn(&Sandbox) -> bool| -> HashSet<String> {
        sandboxes.iter().filter(|sandbox| keep(sandbox)).filter_map(|sandbox| sandbox.uid()).collect()
    };
    let (seen, going) = (uids(|_| true), uids(|sandbox| sandbox.spec.desired == Desired::Retiring));
    let unseen = context.expectations.unseen(&pool.uid().unwrap_or_default(), &seen, &going, Instant::now());
    let now = now_seconds();
    let leaves_nodes = !tolerates_closed_nodes(pool);
    let of = |sandbox: &Arc<Sandbox>| {
        let pod = context.pod_of(sandbox);
        let node = pod.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        let around = Around {
            pod: pod.as_deref(),
            template,
            is_cordoned: leaves_nodes && node.is_some_and(|node| context.is_cordoned(&node)),
            is_asked: sandbox.uid().is_some_and(|uid| unseen.asked.contains(&uid)),
        };
        member(sandbox, around, now)
    };
    (sandboxes.iter().map(of).collect(), unseen)
}

/// Whether the scheduler puts this pool's pods on nodes that take no more: leaving them is no use then.
fn tolerates_closed_nodes(pool: &SandboxPool) -> bool {
    pool.spec.template.tolerations.iter().any(|toleration| {
        let is_key = toleration.key.as_deref().is_none_or(|key| key == "node.kubernetes.io/unschedulable");
        let is_effect = toleration.effect.is_none_or(|effect| effect == TaintEffect::NoSchedule);
        let is_any = toleration.operator == TolerationOperator::Exists || toleration.value.is_none();
        is_key && is_effect && is_any
    })
}

async fn retire(
    pool: &SandboxPool,
    context: &Context,
    sandboxes: &[Arc<Sandbox>],
    decision: &Decision,
) -> Result<(), Error> {
    for sandbox in sandboxes {
        let Some(uid) = sandbox.uid().filter(|uid| decision.retire.contains(uid)) else { continue };
        match context.cluster.retire(sandbox).await {
            Ok(()) => {
                context.metrics.actions.with_label_values(&["retire"]).inc();
                context.expectations.asked(&pool.uid().unwrap_or_default(), uid, Instant::now());
            }
            // It is gone or another: the watch will tell.
            Err(error) if matches!(error.refusal(), Some(Refusal::NotFound | Refusal::Conflict)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn create(pool: &SandboxPool, context: &Context, n_sandboxes: usize) -> Result<(), Error> {
    for _ in 0..n_sandboxes {
        let suffix = Alphanumeric.sample_string(&mut rand::rng(), SUFFIX_CHARACTERS).to_lowercase();
        let made = match context.cluster.make_sandbox(&warm_sandbox(pool, &suffix)).await {
            Err(error) if error.refusal() == Some(Refusal::AlreadyExists) => continue,
            made => made?,
        };
        context.metrics.actions.with_label_values(&["make_sandbox"]).inc();
        let uid = made.uid().unwrap_or_default();
        context.expectations.made(&pool.uid().unwrap_or_default(), uid, Instant::now());
    }
    Ok(())
}

async fn tell(pool: &SandboxPool, context: &Context, status: &SandboxPoolStatus) -> Result<(), Error> {
    // Whatever order the API server keeps maps in, the same is the same.
    let standing = pool.status.clone().map(|mut standing| {
        standing.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        standing.checks.sort_by_key(|check| check.name);
        standing
    });
    if standing.as_ref() == Some(status) {
        return Ok(());
    }
    let told = context.cluster.tell_pool(pool, &json!(status)).await;
    match told {
        // Deleted meanwhile, or made anew under its name.
        Err(error) if matches!(error.refusal(), Some(Refusal::NotFound | Refusal::Conflict)) => return Ok(()),
        told => told?,
    }
    events::publish(pool, context, status).await;
    Ok(())
}

/// A duration of the settings in seconds.
pub fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
