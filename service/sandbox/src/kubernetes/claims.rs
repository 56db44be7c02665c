//! Getting a sandbox: at once where one is warm, else in line; and for those in line, making one.

use std::sync::Arc;
use std::time::Duration;

use seance_core::ids::SandboxId;
use seance_core::sandbox::{BlockReason, ClaimError, ClaimRequest};
use seance_operator_api::pool::ColdStart;
use seance_operator_api::sandbox::{Desired, condition_type};
use seance_operator_api::{Sandbox, SandboxPool, is_true};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::claimed::Reader;
use super::cluster::{Cluster, ClusterError};
use super::queue::Place;
use super::world::{Inner, Phase, World, pod_of};
use super::{Config, ends, judge};

/// What the runner itself needs of a pod's memory, beside a program's, in bytes.
const MEMORY_RESERVE_BYTES: u64 = 32 << 20;
/// How long a Sandbox that was made may take to be seen, before it counts no more as on its way.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// The pause after a Sandbox could not be made.
const CREATE_PAUSE: Duration = Duration::from_secs(2);

/// A runner that was taken off the list, and its reader.
pub(super) type Taken = (SandboxId, Reader);

/// Takes a runner for a caller, or waits for one.
pub(super) async fn claim(
    world: &Arc<World>,
    config: &Config,
    request: &ClaimRequest,
) -> Result<Taken, ClaimError> {
    let deadline = Instant::now() + request.wait;
    let (place, granted, pools) = {
        let mut inner = world.lock();
        if inner.is_stopping {
            return Err(ClaimError::Stopping);
        }
        let pools = inner.pools_for(request, config.default_pool.as_deref())?;
        // Whoever waits for one of these came before.
        let free = pools.iter().filter(|pool| !inner.queue.wants(pool)).cloned().collect::<Vec<_>>();
        if let Some(id) = free.iter().find_map(|pool| inner.take_warm(pool)) {
            let taken = inner.give(id, request).ok_or_else(lost);
            drop(inner);
            world.tell();
            return taken;
        }
        let joined = inner.queue.join(&request.tenant, pools.clone());
        let place = joined.map_err(|full| ClaimError::QueueFull { n_waiting: full.n_waiting })?;
        let (grant, granted) = oneshot::channel();
        inner.waiting.insert(place, grant);
        (place, granted, pools)
    };
    world.to_start.notify_one();
    let mut waiter = Waiter { world, place, granted: Some(granted) };
    let granted = waiter.granted.as_mut().expect("set above");
    let id = match tokio::time::timeout_at(deadline, granted).await {
        Ok(Ok(id)) => id,
        Ok(Err(_)) => return Err(ClaimError::Stopping),
        Err(_) => return waiter.give_up(request, &pools),
    };
    waiter.granted = None;
    let taken = world.lock().give(id, request).ok_or_else(lost);
    world.tell();
    taken
}

fn lost() -> ClaimError {
    ClaimError::StartFailed { message: "the runner was lost as it was taken".to_owned() }
}

/// A caller in line. Dropped, it leaves the line, and what it was given goes to the next.
struct Waiter<'a> {
    world: &'a World,
    place: Place,
    granted: Option<oneshot::Receiver<SandboxId>>,
}

impl Waiter<'_> {
    /// Its time is over; but it may have been given one in this moment.
    fn give_up(mut self, request: &ClaimRequest, pools: &[String]) -> Result<Taken, ClaimError> {
        let mut inner = self.world.lock();
        if let Some(id) = self.granted.take().and_then(|mut granted| granted.try_recv().ok()) {
            return inner.give(id, request).ok_or_else(lost);
        }
        let waited = request.wait;
        let error = match (inner.why_none(pools), inner.queue.position(self.place)) {
            (Some((reason, message)), _) => ClaimError::Blocked { reason, message },
            (None, Some(position)) if position > 1 => ClaimError::Queued { waited, position },
            (None, _) => ClaimError::Exhausted { waited },
        };
        inner.queue.leave(self.place);
        inner.waiting.remove(&self.place);
        Err(error)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(mut granted) = self.granted.take() else { return };
        let mut inner = self.world.lock();
        inner.queue.leave(self.place);
        inner.waiting.remove(&self.place);
        if let Ok(id) = granted.try_recv() {
            if let Some(runner) = inner.runners.get_mut(&id) {
                runner.is_promised = false;
            }
            inner.look(id);
        }
    }
}

impl Inner {
    /// The pools that a request can be met from, the one to be tried first at the front.
    fn pools_for(&self, request: &ClaimRequest, default: Option<&str>) -> Result<Vec<String>, ClaimError> {
        if !self.are_pools_listed {
            let message = "the cluster has not told yet which pools there are".to_owned();
            return Err(ClaimError::StartFailed { message });
        }
        let refuse = |message: String| Err(ClaimError::NoPool { message });
        let engine = &request.engine;
        let mut pools: Vec<_> =
            self.pools.iter().filter(|(_, pool)| pool.spec.engines.contains(engine)).collect();
        if pools.is_empty() {
            return refuse(format!("there is none with the engine {engine:?}"));
        }
        let tenant = request.tenant.as_str();
        pools.retain(|(_, pool)| {
            pool.spec.tenants.is_empty() || pool.spec.tenants.iter().any(|t| t == tenant)
        });
        if pools.is_empty() {
            return refuse(format!("there is none with the engine {engine:?} for this tenant"));
        }
        let most = pools.iter().map(|(_, pool)| memory_bytes(pool)).max().unwrap_or(0);
        let needed = request.memory_bytes.saturating_add(MEMORY_RESERVE_BYTES);
        pools.retain(|(_, pool)| memory_bytes(pool) >= needed);
        if pools.is_empty() {
            let asked = request.memory_bytes;
            let most = most.saturating_sub(MEMORY_RESERVE_BYTES);
            return refuse(format!("{asked} bytes of memory were asked for, the largest has {most}"));
        }
        pools.sort_by_key(|(name, pool)| {
            (Some(name.as_str()) != default, memory_bytes(pool), (*name).clone())
        });
        Ok(pools.into_iter().map(|(name, _)| name.clone()).collect())
    }

    /// Makes a listed runner a session's.
    fn give(&mut self, id: SandboxId, request: &ClaimRequest) -> Option<Taken> {
        let runner = self.runners.get_mut(&id)?;
        runner.is_promised = false;
        let claimed = Phase::Claimed { tenant: request.tenant.clone(), session: None };
        match std::mem::replace(&mut runner.phase, claimed) {
            Phase::Warm { stop, reader } => {
                // It has stopped by itself when the link has ended; the session is told so.
                let _ = stop.send(());
                Some((id, reader))
            }
            other => {
                runner.phase = other;
                None
            }
        }
    }

    /// What stands in the way of all sandboxes that could be waited for, if that is known.
    fn why_none(&self, pools: &[String]) -> Option<(BlockReason, String)> {
        let ours = |sandbox: &&Sandbox| pools.contains(&sandbox.spec.pool);
        let blocked =
            self.sandboxes.values().filter(ours).filter(|s| is_starting(self, s)).find_map(ends::blocked);
        let failed = || pools.iter().find_map(|pool| self.create_errors.get(pool).cloned());
        let unproven = || {
            let runners = self.runners.values().filter(|runner| pools.contains(&runner.pool));
            let verdicts = runners.map(|runner| self.verdicts(runner)).find(|found| judge::is_open(found));
            verdicts.map(|found| (BlockReason::IsolationNotProven, judge::unproven(&found)))
        };
        blocked.or_else(failed).or_else(unproven)
    }

    /// How many Sandboxes should be made, of which pool: one for each caller that none is on its way for.
    fn cold_starts(&self) -> Vec<String> {
        let mut wanted = Vec::new();
        for (name, pool) in &self.pools {
            if pool.spec.cold_start != ColdStart::Allowed {
                continue;
            }
            let n_waiting = self.queue.n_first_choice(name);
            let on_their_way = self.sandboxes.values().filter(|sandbox| sandbox.spec.pool == *name);
            let n_starting = on_their_way.filter(|sandbox| is_starting(self, sandbox)).count();
            wanted.extend(std::iter::repeat_n(name.clone(), n_waiting.saturating_sub(n_starting)));
        }
        wanted
    }
}

fn memory_bytes(pool: &SandboxPool) -> u64 {
    pool.spec.template.resources.limits.memory.value().unwrap_or(0)
}

/// Whether a Sandbox may yet become one that serves.
fn is_starting(inner: &Inner, sandbox: &Sandbox) -> bool {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_over = is_true(conditions, condition_type::FINISHED)
        || is_true(conditions, condition_type::RELEASED)
        || is_true(conditions, condition_type::READY);
    let runner = pod_of(sandbox).and_then(|id| inner.runners.get(&id));
    !is_over
        && sandbox.spec.desired == Desired::Serve
        && sandbox.spec.session.is_none()
        && runner.is_none_or(|runner| matches!(runner.phase, Phase::Warm { .. }))
}

/// Makes Sandboxes for those in line, for ever.
pub(super) async fn start_cold(world: Arc<World>, cluster: Arc<dyn Cluster>, cold_starts_max: usize) {
    let mut creating = JoinSet::new();
    // Made and not seen yet.
    let mut unseen: Vec<(String, String, Instant)> = Vec::new();
    let mut pause: Option<Instant> = None;
    loop {
        let now = Instant::now();
        pause = pause.filter(|until| *until > now);
        let mut wanted = {
            let inner = world.lock();
            unseen
                .retain(|(name, _, since)| !inner.sandboxes.contains_key(name) && now - *since < SEEN_WITHIN);
            inner.cold_starts()
        };
        for (_, pool, _) in &unseen {
            if let Some(at) = wanted.iter().position(|wanted| wanted == pool) {
                wanted.swap_remove(at);
            }
        }
        // What is being made is not among the unseen yet: one round at a time.
        let room = cold_starts_max.saturating_sub(unseen.len());
        if pause.is_none() && creating.is_empty() {
            for pool in wanted.into_iter().take(room) {
                let cluster = Arc::clone(&cluster);
                creating.spawn(async move { (cluster.create(&pool).await, pool) });
            }
        }
        tokio::select! {
            () = world.to_start.notified(), if creating.is_empty() && pause.is_none() => {}
            Some(created) = creating.join_next() => match created.expect("creating doesn't panic") {
                (Ok(name), pool) => {
                    world.lock().create_errors.remove(&pool);
                    unseen.push((name, pool, Instant::now()));
                }
                (Err(error), pool) => {
                    tracing::warn!(pool, %error, "a Sandbox could not be made");
                    pause = Some(Instant::now() + CREATE_PAUSE);
                    if let ClusterError::Blocked { reason, message } = error {
                        world.lock().create_errors.insert(pool, (reason, message));
                    }
                }
            },
            () = tokio::time::sleep_until(pause.unwrap_or(now)), if pause.is_some() => {}
        }
    }
}
