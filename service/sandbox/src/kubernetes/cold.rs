//! Making Sandboxes for those in line, where their pools allow it.

use std::sync::Arc;
use std::time::Duration;

use seance_core::sandbox::ClaimError;
use seance_operator_api::pool::ColdStart;
use seance_operator_api::sandbox::{Desired, condition_type};
use seance_operator_api::{Sandbox, is_true};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cluster::{Cluster, ClusterError};
use super::world::{Inner, Phase, World, pod_of};

/// How long a Sandbox that was made may take to be seen, before it counts no more as on its way.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// The pause after a Sandbox could not be made.
const CREATE_PAUSE: Duration = Duration::from_secs(2);

/// Sandboxes of a pool that may yet serve.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OnTheirWay {
    n: usize,
    /// Those among them that were made because a caller waits.
    n_cold: usize,
}

impl OnTheirWay {
    pub(super) fn add(&mut self, sandbox: &Sandbox) {
        self.n += 1;
        self.n_cold += usize::from(sandbox.is_cold());
    }
}

impl Inner {
    /// How many Sandboxes should be made, of which pool: one for each caller that none is on its way for.
    fn cold_starts(&self) -> Vec<String> {
        let mut wanted = Vec::new();
        for name in self.pools.keys() {
            let mut on_their_way = OnTheirWay::default();
            let of_pool = self.sandboxes.values().filter(|sandbox| sandbox.spec.pool == *name);
            for sandbox in of_pool.filter(|sandbox| is_starting(self, sandbox)) {
                on_their_way.add(sandbox);
            }
            wanted.extend(std::iter::repeat_n(name.clone(), self.n_to_make(name, on_their_way)));
        }
        wanted
    }

    /// How many Sandboxes a pool lacks of those that callers wait for, with so many on their way. Callers
    /// that are many don't have one made each: those that start share the nodes, and what came when its
    /// caller has gone would stand about. The next is made when one of them serves.
    pub(super) fn n_to_make(&self, pool: &str, on_their_way: OnTheirWay) -> usize {
        let is_allowed = self.pools.get(pool).is_some_and(|pool| pool.spec.cold_start == ColdStart::Allowed);
        if !is_allowed || self.early_ends.get(pool).is_some_and(|ends| ends.is_pause(Instant::now())) {
            return 0;
        }
        let n_lacking = self.queue.n_first_choice(pool).saturating_sub(on_their_way.n);
        n_lacking.min(self.cold_starts_max.saturating_sub(on_their_way.n_cold))
    }

    fn create_failed(&mut self, pool: String, error: ClaimError) {
        let since = self.create_errors.get(&pool).map_or_else(Instant::now, |(_, since)| *since);
        self.create_errors.insert(pool, (error, since));
    }
}

/// Whether a Sandbox may yet become one that serves.
pub(super) fn is_starting(inner: &Inner, sandbox: &Sandbox) -> bool {
    let conditions = sandbox.conditions();
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
pub(super) async fn start_cold(world: Arc<World>, cluster: Arc<dyn Cluster>) {
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
        if pause.is_none() && creating.is_empty() {
            for pool in wanted {
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
                        world.lock().create_failed(pool, ClaimError::Blocked { reason, message });
                    }
                }
            },
            () = tokio::time::sleep_until(pause.unwrap_or(now)), if pause.is_some() => {}
        }
    }
}
