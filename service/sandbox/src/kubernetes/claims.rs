//! Getting a sandbox: at once where one is warm, else in line.

use std::sync::Arc;

use seance_core::ids::SandboxId;
use seance_core::sandbox::{ClaimError, ClaimRequest, QueuePosition};
use seance_operator_api::SandboxPool;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Config;
use super::claimed::Reader;
use super::queue::Place;
use super::world::{Grant, Inner, Phase, Waiting, World};

/// What the runner itself needs of a pod's memory, beside a program's, in bytes.
pub const MEMORY_RESERVE_BYTES: u64 = 32 << 20;

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
        let position = request.position.clone();
        position.set(inner.queue.position(place).unwrap_or(0));
        inner.waiting.insert(place, Waiting { grant, position });
        (place, granted, pools)
    };
    // A Sandbox may have to be made, and what is in the way may be known already.
    world.tell();
    let position = request.position.clone();
    let mut waiter = Waiter { world, place, position, granted: Some(granted) };
    let granted = waiter.granted.as_mut().expect("set above");
    let id = match tokio::time::timeout_at(deadline, granted).await {
        Ok(Ok(Ok(id))) => id,
        Ok(Ok(Err(hopeless))) => return Err(hopeless),
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
    position: QueuePosition,
    granted: Option<oneshot::Receiver<Grant>>,
}

impl Waiter<'_> {
    /// Its time is over; but it may have been given one in this moment.
    fn give_up(mut self, request: &ClaimRequest, pools: &[String]) -> Result<Taken, ClaimError> {
        let mut inner = self.world.lock();
        match self.granted.take().and_then(|mut granted| granted.try_recv().ok()) {
            Some(Ok(id)) => return inner.give(id, request).ok_or_else(lost),
            Some(Err(hopeless)) => return Err(hopeless),
            None => {}
        }
        let waited = request.wait;
        let error = match (inner.why_none(pools), inner.queue.position(self.place)) {
            (Some(blocked), _) => blocked,
            (None, Some(position)) => ClaimError::Queued { waited, position },
            (None, None) => ClaimError::Exhausted { waited },
        };
        inner.queue.leave(self.place);
        inner.waiting.remove(&self.place);
        Err(error)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(mut granted) = self.granted.take() {
            let mut inner = self.world.lock();
            inner.queue.leave(self.place);
            inner.waiting.remove(&self.place);
            if let Ok(Ok(id)) = granted.try_recv() {
                if let Some(runner) = inner.runners.get_mut(&id) {
                    runner.is_promised = false;
                }
                inner.look(id);
            }
        }
        self.position.set(0);
        // Others stand elsewhere now.
        self.world.tell();
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
        // While it was on its way, it was neither listed nor anybody's.
        self.dirty.insert(runner.sandbox.clone());
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
}

fn memory_bytes(pool: &SandboxPool) -> u64 {
    pool.spec.template.resources.limits.memory.value().unwrap_or(0)
}
