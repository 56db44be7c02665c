//! The runners that are kept warm, those that are in use, and who waits for one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use seance_core::ids::SandboxId;
use seance_core::sandbox::{ClaimError, EndReason, QueuePosition, SandboxEnd};
use seance_core::time::Timestamp;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::engines::Engine;
use super::launch::Launcher;
use super::sandbox::{self, Sandbox, Shared};
use super::{Config, SandboxStatus};

/// The first pause after a start that failed; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// How long after a claim no sandbox is started for the warm ones while some are left: it would take
/// the processor from the session that was just opened.
const REFILL_DELAY: Duration = Duration::from_millis(50);

/// All sandboxes of a backend.
pub(super) struct Pool {
    launcher: Launcher,
    warm: usize,
    /// The engines there are, the one that most sessions want first, each with how many are kept warm.
    engines: OnceLock<Vec<(Arc<Engine>, usize)>>,
    memory_bytes_max: u64,
    start_timeout: Duration,
    /// A place for each sandbox that exists. Closed when the backend stops.
    places: Arc<Semaphore>,
    ready: Mutex<VecDeque<Sandbox>>,
    /// When one was last taken off the list.
    last_taken: Mutex<Option<Instant>>,
    /// Somebody took a warm one, or one died.
    taken: Notify,
    /// A warm one was added.
    added: Notify,
    list: Arc<Mutex<HashMap<SandboxId, Arc<Shared>>>>,
    line: Mutex<Line>,
    tasks: TaskTracker,
    is_stopping: AtomicBool,
    stopping: Notify,
}

/// Callers that wait, in the order in which they came.
#[derive(Default)]
struct Line {
    n_joined: u64,
    waiting: VecDeque<(u64, QueuePosition)>,
}

impl Line {
    fn tell(&self) {
        for (n_before, (_, position)) in self.waiting.iter().enumerate() {
            position.set(n_before + 1);
        }
    }
}

/// A caller that waits, until this is dropped.
struct InLine<'a> {
    line: &'a Mutex<Line>,
    number: u64,
}

impl<'a> InLine<'a> {
    fn join(line: &'a Mutex<Line>, position: &QueuePosition) -> Self {
        let mut inner = lock(line);
        inner.n_joined += 1;
        let number = inner.n_joined;
        inner.waiting.push_back((number, position.clone()));
        inner.tell();
        Self { line, number }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut inner = lock(self.line);
        let Some(at) = inner.waiting.iter().position(|(number, _)| *number == self.number) else { return };
        if let Some((_, position)) = inner.waiting.remove(at) {
            position.set(0);
        }
        inner.tell();
    }
}

/// Where a sandbox is listed for as long as it exists.
pub(super) struct Listed(Arc<Mutex<HashMap<SandboxId, Arc<Shared>>>>);

/// Takes a sandbox off the list when dropped.
pub(super) struct Entry {
    id: SandboxId,
    list: Listed,
}

impl Listed {
    /// Lists a sandbox until the entry is dropped.
    pub(super) fn add(self, shared: Arc<Shared>) -> Entry {
        let id = shared.id;
        lock(&self.0).insert(id, shared);
        Entry { id, list: self }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.list.0).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn new(config: &Config, launcher: Launcher) -> Arc<Self> {
        let max_sandboxes = config.max_sandboxes.max(1);
        Arc::new(Self {
            launcher,
            warm: config.warm.min(max_sandboxes),
            engines: OnceLock::new(),
            memory_bytes_max: config.memory_bytes_max,
            start_timeout: config.start_timeout,
            places: Arc::new(Semaphore::new(max_sandboxes)),
            ready: Mutex::default(),
            last_taken: Mutex::default(),
            taken: Notify::new(),
            added: Notify::new(),
            list: Arc::default(),
            line: Mutex::default(),
            tasks: TaskTracker::new(),
            is_stopping: AtomicBool::new(false),
            stopping: Notify::new(),
        })
    }

    pub(super) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Starts a sandbox for an engine, for which there must be a place.
    pub(super) async fn start_one(&self, engine: &Arc<Engine>) -> Result<Sandbox, String> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        self.start(engine, place.map_err(|error| error.to_string())?).await
    }

    async fn start(&self, engine: &Arc<Engine>, place: OwnedSemaphorePermit) -> Result<Sandbox, String> {
        let launched = self.launcher.launch(engine).await.map_err(|error| error.to_string())?;
        let (engine, listed) = (Arc::clone(engine), Listed(Arc::clone(&self.list)));
        sandbox::start(mint(), engine, launched, place, listed, &self.tasks, self.start_timeout).await
    }

    /// The engine of this name, when sandboxes are made for it.
    pub(super) fn engine(&self, name: &str) -> Option<Arc<Engine>> {
        self.engines().iter().map(|(engine, _)| engine).find(|engine| engine.name == name).cloned()
    }

    fn engines(&self) -> &[(Arc<Engine>, usize)] {
        self.engines.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The first engine that has too few warm sandboxes, and whether it has none.
    fn missing(&self, ready: &VecDeque<Sandbox>) -> Option<(Arc<Engine>, bool)> {
        self.engines().iter().find_map(|(engine, warm)| {
            let n_ready = n_ready(ready, engine);
            (n_ready < *warm).then(|| (Arc::clone(engine), n_ready == 0))
        })
    }

    /// Puts a sandbox on the list of warm ones, unless that is long enough; then it ends.
    pub(super) fn keep(&self, sandbox: Sandbox) {
        let mut ready = lock(&self.ready);
        let warm = self.engines().iter().find(|(engine, _)| *engine == sandbox.engine);
        if n_ready(&ready, &sandbox.engine) >= warm.map_or(0, |(_, warm)| *warm)
            || self.is_stopping.load(Ordering::Relaxed)
        {
            drop(ready);
            return;
        }
        ready.push_back(sandbox);
        drop(ready);
        self.added.notify_waiters();
    }

    /// Serves the engines of these sandboxes, one each, and keeps the list full from now on, until the
    /// backend stops: with as many of the first as was asked for, and with one of each other.
    pub(super) fn warm_up(self: &Arc<Self>, first: Vec<Sandbox>) {
        let most = std::iter::once(self.warm).chain(std::iter::repeat(self.warm.min(1)));
        let engines = first.iter().map(|sandbox| Arc::clone(&sandbox.engine)).zip(most).collect();
        // Warming up once more would change nothing.
        let _ = self.engines.set(engines);
        first.into_iter().for_each(|sandbox| self.keep(sandbox));
        let pool = Arc::downgrade(self);
        self.tasks.spawn(async move { keep_warm(pool).await });
    }

    /// Takes a warm sandbox for an engine off the list, or starts one, or waits until one can be had.
    pub(super) async fn claim(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        wait: Duration,
        position: &QueuePosition,
        now: Instant,
    ) -> Result<Sandbox, ClaimError> {
        let deadline = now + wait;
        let mut in_line = None;
        loop {
            let added = self.added.notified();
            let mut added = std::pin::pin!(added);
            added.as_mut().enable();
            if self.is_stopping.load(Ordering::Relaxed) {
                return Err(ClaimError::Stopping);
            }
            if let Some(sandbox) = self.take_ready(engine) {
                return Ok(sandbox);
            }
            if self.places.available_permits() == 0 && in_line.is_none() {
                in_line = Some(InLine::join(&self.line, position));
                self.make_room(engine);
            }
            tokio::select! {
                biased;
                place = Arc::clone(&self.places).acquire_owned() => {
                    let place = place.map_err(|_| ClaimError::Stopping)?;
                    drop(in_line);
                    return self.start_for(engine, place, deadline, wait).await;
                }
                () = added => {}
                () = tokio::time::sleep_until(deadline) => return Err(ClaimError::Exhausted { waited: wait }),
            }
        }
    }

    /// Starts one in a task of its own: when the claim is dropped or its time is over, the
    /// sandbox goes to the warm ones.
    async fn start_for(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        place: OwnedSemaphorePermit,
        deadline: Instant,
        waited: Duration,
    ) -> Result<Sandbox, ClaimError> {
        let (done, started) = oneshot::channel();
        let (pool, engine) = (Arc::clone(self), Arc::clone(engine));
        self.tasks.spawn(async move {
            let result = pool.start(&engine, place).await;
            if let Err(Ok(unwanted)) = done.send(result) {
                pool.keep(unwanted);
            }
        });
        // A claim that doesn't wait still gets what it made start.
        let deadline = deadline.max(Instant::now() + self.start_timeout);
        match timeout_at(deadline, started).await {
            Ok(Ok(Ok(sandbox))) => Ok(sandbox),
            Ok(Ok(Err(message))) => Err(ClaimError::StartFailed { message }),
            Ok(Err(_)) => Err(ClaimError::Stopping),
            Err(_) => Err(ClaimError::Exhausted { waited }),
        }
    }

    /// Ends a warm sandbox of another engine, whose place will be had next by whoever waits longest.
    fn make_room(&self, engine: &Engine) {
        let mut ready = lock(&self.ready);
        let other = ready.iter().position(|sandbox| *sandbox.engine != *engine);
        let ended = other.and_then(|index| ready.remove(index));
        drop(ready);
        drop(ended);
    }

    fn take_ready(&self, engine: &Engine) -> Option<Sandbox> {
        let mut ready = lock(&self.ready);
        // Dead ones were noticed by their followers; the warming task removes them.
        let index = ready.iter().position(|sandbox| *sandbox.engine == *engine && sandbox.is_alive())?;
        let sandbox = ready.remove(index);
        drop(ready);
        *lock(&self.last_taken) = Some(Instant::now());
        self.taken.notify_one();
        sandbox
    }

    pub(super) fn n_leaked(&self) -> usize {
        lock(&self.list).values().filter(|shared| shared.is_leaked()).count()
    }

    pub(super) fn sandboxes(&self) -> Vec<SandboxStatus> {
        let status = |shared: &Arc<Shared>| SandboxStatus {
            id: shared.id,
            keeper_pid: shared.keeper_pid,
            state: shared.state(),
        };
        lock(&self.list).values().map(status).collect()
    }

    /// Refuses claims from now on and begins to end every sandbox.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.places.close();
        self.stopping.notify_waiters();
        self.added.notify_waiters();
        for shared in lock(&self.list).values() {
            shared.ask(SandboxEnd::new(EndReason::ServiceStopped));
        }
        let ready = std::mem::take(&mut *lock(&self.ready));
        drop(ready);
        self.tasks.close();
    }

    /// Stops and waits for the proof that nothing is left.
    pub(super) async fn shut_down(&self, within: Duration) {
        let deadline = Instant::now() + within;
        self.stop();
        if timeout_at(deadline, self.tasks.wait()).await.is_err() {
            let left = lock(&self.list).len();
            tracing::error!(left, "sandboxes are left that could not be ended in time");
        }
    }
}

async fn keep_warm(pool: Weak<Pool>) {
    let mut backoff = Backoff::default();
    while let Some(pool) = pool.upgrade() {
        let stopping = pool.stopping.notified();
        let mut stopping = std::pin::pin!(stopping);
        stopping.as_mut().enable();
        if pool.is_stopping.load(Ordering::Relaxed) {
            return;
        }
        let missing = {
            let mut ready = lock(&pool.ready);
            ready.retain(Sandbox::is_alive);
            pool.missing(&ready)
        };
        let last_taken = *lock(&pool.last_taken);
        let not_before = last_taken.map(|at| at + REFILL_DELAY).filter(|at| *at > Instant::now());
        if let (Some((_, false)), Some(not_before)) = (&missing, not_before) {
            drop(timeout_at(not_before, stopping).await);
            continue;
        }
        let place = || Arc::clone(&pool.places).try_acquire_owned().ok();
        let Some((engine, place)) = missing.and_then(|(engine, _)| Some((engine, place()?))) else {
            tokio::select! {
                () = pool.taken.notified() => {}
                () = a_warm_one_fails(&pool) => {}
                () = stopping => return,
            }
            continue;
        };
        match pool.start(&engine, place).await {
            Ok(sandbox) => {
                backoff = Backoff::default();
                pool.keep(sandbox);
            }
            Err(message) => {
                let pause = backoff.next();
                tracing::warn!(message, ?pause, "a warm runner did not start");
                drop(timeout(pause, stopping).await);
            }
        }
    }
}

/// Resolves when a warm sandbox can't be given away any more; never when there is none.
async fn a_warm_one_fails(pool: &Pool) {
    let failed: Vec<_> = lock(&pool.ready).iter().map(|sandbox| Box::pin(sandbox.failed())).collect();
    if failed.is_empty() {
        return std::future::pending().await;
    }
    futures::future::select_all(failed).await;
}

fn n_ready(ready: &VecDeque<Sandbox>, engine: &Engine) -> usize {
    ready.iter().filter(|sandbox| *sandbox.engine == *engine).count()
}

#[derive(Default)]
struct Backoff(Duration);

impl Backoff {
    fn next(&mut self) -> Duration {
        self.0 = (self.0 * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        self.0
    }
}

fn mint() -> SandboxId {
    let mut random = [0; 10];
    getrandom::fill(&mut random).expect("the kernel has random bytes once it has started");
    SandboxId::mint(Timestamp::from_system(SystemTime::now()), random)
}
