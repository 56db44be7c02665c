//! What the backend knows: pools, Sandboxes and runners, who waits, and what follows from it.
//!
//! All in memory and behind one lock, so that a claim is one decision. Nothing here waits or does IO;
//! what is to be written to the cluster is computed from it by `desired`, again and again until it is
//! seen there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indexmap::IndexSet;
use seance_core::ids::{SandboxId, TenantId};
use seance_core::sandbox::{ClaimError, EndReason, QueuePosition, SandboxEnd};
use seance_operator_api::pool::{CheckName, SandboxPool};
use seance_operator_api::sandbox::{Desired, SessionRef, condition_type, reason};
use seance_operator_api::{Sandbox, is_true};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::attend::EarlyEnds;
use super::claimed::Reader;
use super::cluster::Change;
use super::doubts::Doubts;
use super::judge::{self, Judge, Verdict};
use super::metrics::Metrics;
use super::queue::{Place, Queue};
use super::review::sandbox_id;
use super::{Config, ends};
use crate::link::{Lasting, Tried};

/// How long after the start nothing is concluded from a runner that isn't connected: it may still
/// dial in, and its session may still be read.
const START_GRACE: Duration = Duration::from_secs(90);

/// The state behind its lock, and who is told of changes.
pub(super) struct World {
    inner: Mutex<Inner>,
    /// Counts changes that somebody may wait for.
    pub(super) changed: watch::Sender<u64>,
    /// Sandboxes may have to be written.
    pub(super) to_write: Notify,
    /// Callers wait, or what they wait for has changed.
    pub(super) to_start: Notify,
    /// There are targets that nobody has tried yet.
    pub(super) to_try: Notify,
}

/// The state.
pub(super) struct Inner {
    pub(super) pools: HashMap<String, SandboxPool>,
    pub(super) sandboxes: HashMap<String, Sandbox>,
    by_pod: HashMap<SandboxId, String>,
    pub(super) runners: HashMap<SandboxId, Runner>,
    warm: BTreeMap<String, VecDeque<SandboxId>>,
    pub(super) queue: Queue,
    pub(super) waiting: HashMap<Place, Waiting>,
    /// Sandboxes whose written state may not be what it should be, the one for the longest first.
    pub(super) dirty: IndexSet<String>,
    /// Whether something listens at a target, as the service itself found.
    pub(super) listens: HashMap<SocketAddr, bool>,
    /// The engines' versions, as runners of each pool said last.
    pub(super) versions: HashMap<(String, String), String>,
    /// Why Sandboxes of a pool can't be made, and since when.
    pub(super) create_errors: HashMap<String, (ClaimError, Instant)>,
    /// What keeps a Sandbox from starting, by its reason, and since when.
    pub(super) blocked_since: HashMap<String, (String, Instant)>,
    /// Pods that ended before they could serve, by pool.
    pub(super) early_ends: HashMap<String, EarlyEnds>,
    required_checks: Vec<CheckName>,
    /// How many Sandboxes of a pool may be on their way because callers wait.
    pub(super) cold_starts_max: usize,
    doubts: Doubts,
    metrics: Metrics,
    pub(super) started: Instant,
    pub(super) is_listed: bool,
    pub(super) are_pools_listed: bool,
    pub(super) is_stopping: bool,
}

/// What a caller in line gets: a runner, or why it waits for nothing.
pub(super) type Grant = Result<SandboxId, ClaimError>;

/// A caller in line.
pub(super) struct Waiting {
    pub(super) grant: oneshot::Sender<Grant>,
    pub(super) position: QueuePosition,
}

/// A runner that was connected once, or is waited for.
pub(super) struct Runner {
    /// The Sandbox's name; empty until it is known.
    pub(super) sandbox: String,
    pub(super) pool: String,
    pub(super) link: Arc<Lasting>,
    pub(super) engines: Vec<(String, String)>,
    pub(super) judge: Judge,
    /// When it reported its isolation last; when it was taken, before that.
    pub(super) reported: Instant,
    /// When it came, until it is listed for the first time.
    pub(super) unproven_since: Option<Instant>,
    pub(super) phase: Phase,
    /// Tickets below this are refused: a newer one has arrived.
    pub(super) generation_min: u64,
    /// The ticket that was given last, and over which stream.
    pub(super) generation: u64,
    pub(super) n_stream: u64,
    /// The most memory that it said the sandbox has used, in bytes; 0 where it didn't.
    pub(super) memory_peak_bytes: u64,
    /// Since when a way out of it is open that has to be closed, while it has no session.
    pub(super) open_since: Option<Instant>,
    /// It is on its way to a caller that waited.
    pub(super) is_promised: bool,
    pub(super) said_goodbye: bool,
    /// Its end could not be proven to who asked for it.
    pub(super) is_unproven: bool,
}

impl Runner {
    /// A runner that was never linked, of the Sandbox and the pool of these names.
    pub(super) fn new(sandbox: String, pool: String, link: Arc<Lasting>, phase: Phase) -> Self {
        let now = Instant::now();
        Self {
            sandbox,
            pool,
            link,
            engines: Vec::new(),
            judge: Judge::default(),
            reported: now,
            unproven_since: matches!(phase, Phase::Warm { .. }).then_some(now),
            phase,
            generation_min: 0,
            generation: 0,
            n_stream: 0,
            memory_peak_bytes: 0,
            open_since: None,
            is_promised: false,
            said_goodbye: false,
            is_unproven: false,
        }
    }
}

/// Where a runner is in its life.
pub(super) enum Phase {
    /// It has no session. Its reader gives the receiver back when it is stopped.
    Warm { stop: oneshot::Sender<()>, reader: Reader },
    /// It was given to a session, which is known from its Assign on.
    Claimed { tenant: TenantId, session: Option<SessionRef> },
    /// It will never be given to a session again.
    Over { released: &'static str, had_session: bool },
}

impl World {
    pub(super) fn new(config: &Config, metrics: Metrics) -> Arc<Self> {
        let inner = Inner {
            pools: HashMap::new(),
            sandboxes: HashMap::new(),
            by_pod: HashMap::new(),
            runners: HashMap::new(),
            warm: BTreeMap::new(),
            queue: Queue::new(config.claim_queue_max, config.claim_queue_tenant_max),
            waiting: HashMap::new(),
            dirty: IndexSet::new(),
            listens: HashMap::new(),
            versions: HashMap::new(),
            create_errors: HashMap::new(),
            blocked_since: HashMap::new(),
            early_ends: HashMap::new(),
            required_checks: config.required_checks.clone(),
            cold_starts_max: config.cold_starts_max,
            doubts: Doubts::default(),
            metrics,
            started: Instant::now(),
            is_listed: false,
            are_pools_listed: false,
            is_stopping: false,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            changed: watch::Sender::new(0),
            to_write: Notify::new(),
            to_start: Notify::new(),
            to_try: Notify::new(),
        })
    }

    /// For one decision. What waits for changes is told afterwards by [`Self::tell`].
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state and tells those who wait for changes.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut self.lock());
        self.tell();
        result
    }

    pub(super) fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
        self.to_write.notify_one();
        self.to_start.notify_one();
    }

    /// Waits until `get` gives something, at most until `deadline`. Cancel-safe.
    pub(super) async fn wait_for<T>(
        &self,
        deadline: Instant,
        mut get: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Option<T> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some(found) = get(&mut self.lock()) {
                return Some(found);
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return None;
            }
        }
    }

    /// Takes what changed in the cluster.
    pub(super) fn apply(&self, change: Change) {
        self.change(|inner| inner.apply(change));
    }

    /// A runner's isolation report.
    pub(super) fn isolation(&self, id: SandboxId, tried: Vec<Tried>, memory_peak_bytes: u64) {
        let mut inner = self.lock();
        let Inner { runners, listens, doubts, .. } = &mut *inner;
        let Some(runner) = runners.get_mut(&id) else { return };
        runner.memory_peak_bytes = memory_peak_bytes;
        let now = Instant::now();
        let before = std::mem::replace(&mut runner.reported, now);
        let ends_a_doubt = doubts.cover(&runner.pool, before) && !doubts.cover(&runner.pool, now);
        // What is said again costs nobody anything, however often it is said.
        if !runner.judge.report(tried) && !ends_a_doubt {
            return;
        }
        let is_new = runner.judge.targets().any(|target| !listens.contains_key(&target));
        let was_told = inner.look(id);
        drop(inner);
        if is_new {
            self.to_try.notify_one();
        }
        if was_told {
            self.tell();
        }
    }
}

impl Inner {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Pool(pool) => {
                let name = pool.metadata.name.clone().unwrap_or_default();
                self.pools.insert(name, *pool);
                self.look_at_all();
            }
            Change::PoolGone(name) => self.pool_gone(&name),
            Change::Pools(all) => {
                self.are_pools_listed = true;
                let gone: Vec<_> = self.pools.keys().filter(|name| !all.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.pool_gone(name));
            }
            Change::Sandbox(sandbox) => self.sandbox_changed(*sandbox),
            Change::SandboxGone(name) => self.sandbox_gone(&name),
            Change::Sandboxes(all) => {
                self.is_listed = true;
                let gone: Vec<_> =
                    self.sandboxes.keys().filter(|name| !all.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.sandbox_gone(name));
            }
        }
    }

    fn pool_gone(&mut self, name: &str) {
        self.pools.remove(name);
        self.doubts.forget(name);
        self.create_errors.remove(name);
        self.early_ends.remove(name);
    }

    fn sandbox_changed(&mut self, sandbox: Sandbox) {
        let name = sandbox.metadata.name.clone().unwrap_or_default();
        let pod = sandbox.status.as_ref().and_then(|status| status.pod_uid.as_deref()).and_then(sandbox_id);
        let is_retiring = sandbox.spec.desired == Desired::Retiring;
        let (ending, finished) = (ends::ending(&sandbox), ends::finished(&sandbox));
        let old = self.sandboxes.insert(name.clone(), sandbox);
        if let Some(old) = old.as_ref().and_then(pod_of)
            && Some(old) != pod
        {
            self.by_pod.remove(&old);
        }
        self.dirty.insert(name.clone());
        self.note_start(&name, old.as_ref());
        let Some(pod) = pod else { return };
        self.by_pod.insert(pod, name.clone());
        let Some(runner) = self.runners.get_mut(&pod) else { return };
        runner.sandbox = name;
        if let Some(end) = ending {
            runner.link.end_when_cut(end);
        }
        if let Some(mut end) = finished {
            let peak = runner.memory_peak_bytes;
            if end.reason == EndReason::OutOfMemory && peak > 0 {
                end.detail = format!("{}; the last peak that it told was {peak} bytes", end.detail);
            }
            runner.link.end(end);
        } else if is_retiring && !runner.is_promised && matches!(runner.phase, Phase::Warm { .. }) {
            self.release(pod, reason::released::RETIRED, SandboxEnd::new(EndReason::Released));
        }
        self.look(pod);
    }

    fn sandbox_gone(&mut self, name: &str) {
        self.dirty.shift_remove(name);
        self.blocked_since.remove(name);
        let Some(sandbox) = self.sandboxes.remove(name) else { return };
        let Some(pod) = pod_of(&sandbox) else { return };
        self.by_pod.remove(&pod);
        let Some(runner) = self.runners.get(&pod) else { return };
        runner.link.end(SandboxEnd::new(EndReason::PodDeleted));
        match runner.phase {
            // Its session ends it, and finds it proven.
            Phase::Claimed { .. } => {}
            Phase::Warm { .. } | Phase::Over { .. } => {
                self.unlist(pod);
                self.runners.remove(&pod);
            }
        }
    }

    /// The Sandbox of a pod.
    pub(super) fn sandbox_of(&self, id: SandboxId) -> Option<&Sandbox> {
        self.sandboxes.get(self.by_pod.get(&id)?)
    }

    /// What stands against taking this pod's runner as one without a session.
    pub(super) fn bars(&self, id: SandboxId) -> Option<&'static str> {
        let sandbox = self.sandbox_of(id)?;
        let conditions = sandbox.conditions();
        if sandbox.spec.session.is_some() || is_true(conditions, condition_type::ASSIGNED) {
            Some("the sandbox had a session")
        } else if is_true(conditions, condition_type::RELEASED)
            || is_true(conditions, condition_type::FINISHED)
        {
            Some("the sandbox is over")
        } else if is_true(conditions, condition_type::ENDING) {
            Some("the sandbox is being ended")
        } else if sandbox.spec.desired == Desired::Retiring {
            Some("the sandbox retires")
        } else {
            None
        }
    }

    /// The checks of a runner's isolation.
    pub(super) fn verdicts(&self, runner: &Runner) -> Vec<Verdict> {
        let accepted = self.pools.get(&runner.pool).map(|pool| pool.spec.accepted_checks.as_slice());
        let listens = |address| self.listens.get(&address).copied();
        runner.judge.verdicts(&self.required_checks, accepted.unwrap_or_default(), listens)
    }

    /// Whether what decides about a runner's isolation is still on its way.
    pub(super) fn is_early(&self, runner: &Runner) -> bool {
        runner.judge.is_early(|address| self.listens.get(&address).copied())
    }

    /// Looks at every runner anew: something that concerns all has changed.
    pub(super) fn look_at_all(&mut self) {
        let ids: Vec<_> = self.runners.keys().copied().collect();
        for id in ids {
            self.look(id);
        }
    }

    /// Lists a runner when it can serve and takes it off when it can't. Says whether anything that
    /// somebody may wait for has changed.
    pub(super) fn look(&mut self, id: SandboxId) -> bool {
        let Some(runner) = self.runners.get(&id) else { return false };
        let verdicts = self.verdicts(runner);
        let (name, pool) = (runner.sandbox.clone(), runner.pool.clone());
        self.dirty.insert(name);
        let is_open = judge::is_open(&verdicts);
        match runner.phase {
            Phase::Warm { .. } if runner.is_promised => {}
            Phase::Warm { .. } => {
                let was_open_since = runner.open_since;
                let was_proven = runner.unproven_since.is_none();
                let may_serve = judge::is_proven(&verdicts)
                    && !self.doubts.cover(&pool, runner.reported)
                    && runner.link.is_connected()
                    && self.pools.contains_key(&pool)
                    && self.bars(id).is_none();
                let is_listed = self.warm.get(&pool).is_some_and(|listed| listed.contains(&id));
                if may_serve && !is_listed {
                    self.early_ends.remove(&pool);
                    let runner = self.runners.get_mut(&id).expect("it was there above");
                    if let Some(since) = runner.unproven_since.take() {
                        self.metrics.isolation.observe(since.elapsed().as_secs_f64());
                    }
                    self.warm.entry(pool.clone()).or_default().push_back(id);
                    self.grant(&pool);
                } else if !may_serve && is_listed {
                    self.unlist(id);
                }
                // A new runner's ways are open until policies hold for it, which says nothing of others.
                if is_open && was_open_since.is_none() && was_proven {
                    self.doubts.begin(&pool, Instant::now());
                    self.warm.remove(&pool);
                }
                if let Some(runner) = self.runners.get_mut(&id) {
                    runner.open_since = is_open.then(|| was_open_since.unwrap_or_else(Instant::now));
                }
            }
            Phase::Claimed { .. } if is_open => {
                let detail = judge::unproven(&verdicts);
                let link = Arc::clone(&runner.link);
                link.shut_down();
                link.end(SandboxEnd { reason: EndReason::IsolationNotProven, detail });
            }
            Phase::Claimed { .. } | Phase::Over { .. } => {}
        }
        true
    }

    /// Gives warm runners of a pool to those who wait.
    fn grant(&mut self, pool: &str) {
        while self.queue.wants(pool) {
            let Some(id) = self.take_warm(pool) else { return };
            let waiting = self.queue.next(pool).and_then(|place| self.waiting.remove(&place));
            // One that doesn't wait any more leaves the runner for the next.
            let is_taken = waiting.is_some_and(|waiting| waiting.grant.send(Ok(id)).is_ok());
            if let Some(runner) = self.runners.get_mut(&id) {
                runner.is_promised = is_taken;
            }
            if !is_taken {
                self.warm.entry(pool.to_owned()).or_default().push_front(id);
            }
        }
    }

    /// Takes the runner that has waited longest off the list of a pool.
    pub(super) fn take_warm(&mut self, pool: &str) -> Option<SandboxId> {
        let listed = self.warm.get_mut(pool)?;
        while let Some(id) = listed.pop_front() {
            let can_serve = self.runners.get(&id).is_some_and(|runner| {
                matches!(runner.phase, Phase::Warm { .. })
                    && runner.link.is_connected()
                    && runner.link.ended().is_none()
            });
            if can_serve {
                return Some(id);
            }
        }
        None
    }

    pub(super) fn is_listed(&self, id: SandboxId, pool: &str) -> bool {
        self.warm.get(pool).is_some_and(|listed| listed.contains(&id))
    }

    /// Forgets a runner without a session that isn't connected any more.
    pub(super) fn forget(&mut self, id: SandboxId) {
        self.unlist(id);
        if let Some(runner) = self.runners.remove(&id) {
            self.dirty.insert(runner.sandbox);
        }
    }

    /// The end of a sandbox was proven to who asked for it. Its runner is kept for as long as its
    /// Sandbox is there, so that nobody takes it for new.
    pub(super) fn proven(&mut self, id: SandboxId) {
        let Some(runner) = self.runners.get_mut(&id) else { return };
        runner.is_unproven = false;
        if !self.sandboxes.contains_key(&runner.sandbox) {
            self.runners.remove(&id);
        }
    }

    fn unlist(&mut self, id: SandboxId) {
        for listed in self.warm.values_mut() {
            listed.retain(|other| *other != id);
        }
    }

    /// A runner is never given to a session again, and its pod may go. The first time counts.
    pub(super) fn release(&mut self, id: SandboxId, released: &'static str, end: SandboxEnd) {
        self.unlist(id);
        let Some(runner) = self.runners.get_mut(&id) else { return };
        let had_session = match &runner.phase {
            Phase::Warm { .. } => false,
            Phase::Claimed { session, .. } => session.is_some(),
            Phase::Over { .. } => return,
        };
        runner.phase = Phase::Over { released, had_session };
        runner.link.shut_down();
        runner.link.end(end);
        self.dirty.insert(runner.sandbox.clone());
    }

    /// Whether a Sandbox's end is awaited, and not written yet.
    pub(super) fn is_ending(&self, name: &str) -> bool {
        let Some(sandbox) = self.sandboxes.get(name) else { return false };
        let runner = pod_of(sandbox).and_then(|id| self.runners.get(&id));
        runner.is_some_and(|runner| matches!(runner.phase, Phase::Over { .. }))
            && !is_true(sandbox.conditions(), condition_type::RELEASED)
    }

    /// Whether the end of a sandbox is proven: its runner said so or its pod is terminal or gone, and
    /// its deletion is asked for.
    pub(super) fn is_proven_gone(&self, id: SandboxId) -> bool {
        let Some(runner) = self.runners.get(&id) else { return true };
        let Some(sandbox) = self.sandboxes.get(&runner.sandbox) else { return self.is_listed };
        let conditions = sandbox.conditions();
        let is_finished = is_true(conditions, condition_type::FINISHED);
        is_finished || (runner.said_goodbye && is_true(conditions, condition_type::RELEASED))
    }

    /// Whether what a missing runner means can be told already.
    pub(super) fn has_settled(&self) -> bool {
        self.is_listed && self.started.elapsed() >= START_GRACE
    }
}

/// The pod of a Sandbox.
pub(super) fn pod_of(sandbox: &Sandbox) -> Option<SandboxId> {
    sandbox.status.as_ref()?.pod_uid.as_deref().and_then(sandbox_id)
}
