//! Sessions over a fake backend and a store with faults, and what a client does with them.

pub mod backend;
pub mod runner;
pub mod store;
pub mod tools;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use seance_broker::providers::Providers;
use seance_core::event::{Event, EventKind};
use seance_core::ids::{EventSeq, ProgramNumber, SessionId, TenantId};
use seance_core::program::{ProgramRecord, ProgramState};
use seance_core::session::SessionRecord;
use seance_core::store::SessionStore;
use seance_core::time::Timestamp;
use seance_sessions::{
    CatalogSource, Config, Environment, Error, ExecuteRequest, Idempotency, Observation, ObserveOptions,
    Observed, Observer, OpenRequest, Sessions, StopReason, StopRequest,
};
use seance_store::MemoryStore;
use tokio::time::Instant;

use backend::FakeBackend;
use store::FaultStore;

/// The runtime's clock, which a test may have stopped, and ids from a seed.
pub struct TestEnvironment {
    began: Instant,
    rng: Mutex<StdRng>,
}

impl TestEnvironment {
    pub fn new(seed: u64) -> Self {
        Self { began: Instant::now(), rng: Mutex::new(StdRng::seed_from_u64(seed)) }
    }
}

impl Environment for TestEnvironment {
    fn now(&self) -> Timestamp {
        Timestamp(1_700_000_000_000_000).after(self.began.elapsed())
    }

    fn random(&self) -> [u8; 10] {
        self.rng.lock().unwrap().random()
    }
}

/// A service at work.
pub struct World {
    pub sessions: Sessions,
    pub backend: Arc<FakeBackend>,
    pub store: Arc<FaultStore>,
    pub environment: Arc<TestEnvironment>,
    pub tenant: TenantId,
}

impl World {
    pub async fn new() -> Self {
        Self::with(1, |_| {}).await
    }

    pub async fn with(seed: u64, configure: impl FnOnce(&mut Config)) -> Self {
        let environment = Arc::new(TestEnvironment::new(seed));
        Self::over(Arc::new(MemoryStore::new()), environment, configure).await
    }

    /// The next start of the service, over what this one has written. This one still runs, as if its
    /// machine could not be reached.
    pub async fn next_start(&self) -> Self {
        Self::over(self.store.inner(), self.environment.clone(), |_| {}).await
    }

    async fn over(
        inner: Arc<MemoryStore>,
        environment: Arc<TestEnvironment>,
        configure: impl FnOnce(&mut Config),
    ) -> Self {
        let backend = Arc::new(FakeBackend::new(environment.clone()));
        let store = Arc::new(FaultStore::over(inner));
        let mut config = Config { environment: environment.clone(), ..Config::default() };
        configure(&mut config);
        let registry = prometheus::Registry::new();
        let sessions =
            Sessions::start(config, store.clone(), backend.clone(), Providers::default(), &registry)
                .await
                .unwrap();
        Self { sessions, backend, store, environment, tenant: TenantId::default_tenant() }
    }

    pub async fn open(&self) -> SessionId {
        self.open_with(|_| {}).await
    }

    pub async fn open_with(&self, change: impl FnOnce(&mut OpenRequest)) -> SessionId {
        self.try_open(change).await.unwrap().id
    }

    pub async fn try_open(&self, change: impl FnOnce(&mut OpenRequest)) -> Result<SessionRecord, Error> {
        let catalog = Some(CatalogSource::Inline(tools::catalog()));
        let mut request = OpenRequest { engine: "javascript".to_owned(), catalog, ..OpenRequest::default() };
        change(&mut request);
        self.sessions.open(&self.tenant, request).await
    }

    /// Begins a program.
    pub async fn execute(&self, session: SessionId, source: &str) -> Result<Observer, Error> {
        self.execute_with(session, source, None, ObserveOptions::default()).await
    }

    pub async fn execute_with(
        &self,
        session: SessionId,
        source: &str,
        idempotency: Option<Idempotency>,
        options: ObserveOptions,
    ) -> Result<Observer, Error> {
        let request =
            ExecuteRequest { source: source.to_owned().into(), idempotency, ..ExecuteRequest::default() };
        self.sessions.execute(&self.tenant, session, request, options).await
    }

    /// Runs a program and gives its first observation.
    pub async fn run(&self, session: SessionId, source: &str) -> Result<Seen, Error> {
        see(self.execute(session, source).await?).await
    }

    /// Runs a program and observes it for a while.
    pub async fn run_for(&self, session: SessionId, source: &str, ms: u64) -> Result<Seen, Error> {
        see(self.execute_with(session, source, None, window(ms)).await?).await
    }

    pub async fn wait(&self, session: SessionId) -> Result<Seen, Error> {
        self.wait_at(session, None, None, 60_000).await
    }

    pub async fn wait_at(
        &self,
        session: SessionId,
        program: Option<u64>,
        cursor: Option<&str>,
        ms: u64,
    ) -> Result<Seen, Error> {
        let program = program.map(ProgramNumber);
        see(self.sessions.wait(&self.tenant, session, program, cursor, window(ms)).await?).await
    }

    pub async fn stop(&self, session: SessionId) -> Result<Observation, Error> {
        self.stop_with(session, StopRequest::default()).await
    }

    pub async fn stop_with(&self, session: SessionId, request: StopRequest) -> Result<Observation, Error> {
        self.sessions.stop(&self.tenant, session, request, StopReason::Asked).await
    }

    pub async fn close(&self, session: SessionId) -> Result<SessionRecord, Error> {
        self.sessions.close(&self.tenant, session, None).await
    }

    pub async fn record(&self, session: SessionId) -> SessionRecord {
        self.store.session(&self.tenant, session).await.unwrap().unwrap()
    }

    pub async fn program(&self, session: SessionId, number: u64) -> ProgramRecord {
        self.sessions.program(&self.tenant, session, ProgramNumber(number)).await.unwrap()
    }

    /// All events of a session, as the store has them.
    pub async fn log(&self, session: SessionId) -> Vec<Event> {
        self.store.events(session, EventSeq::FIRST, usize::MAX, usize::MAX).await.unwrap()
    }

    /// Waits until an event is in the store.
    pub async fn until(&self, session: SessionId, what: impl Fn(&EventKind) -> bool) -> Event {
        let looking = async {
            let mut follower =
                self.sessions.follow(&self.tenant, session, EventSeq::FIRST, false).await.unwrap();
            while let Some(event) = follower.next().await.unwrap() {
                if what(&event.kind) {
                    return (*event).clone();
                }
            }
            panic!("the log ended without it");
        };
        tokio::time::timeout(Duration::from_secs(600), looking).await.expect("the event came in ten minutes")
    }

    /// Waits until a program has ended, with nobody observing it.
    pub async fn until_ended(&self, session: SessionId, number: u64) -> ProgramRecord {
        let ended = self.until(
            session,
            |kind| matches!(kind, EventKind::ProgramEnded(record) if record.number.0 == number),
        );
        match ended.await.kind {
            EventKind::ProgramEnded(record) => *record,
            _ => unreachable!("it was looked for"),
        }
    }
}

/// What a client saw of one observation.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The bytes of the output messages.
    pub bytes: Vec<u8>,
    pub observation: Observation,
}

impl Seen {
    pub fn output(&self) -> &str {
        &self.observation.output
    }

    pub fn cursor(&self) -> &str {
        &self.observation.cursor
    }

    pub fn state(&self) -> ProgramState {
        self.observation.program.state
    }

    pub fn value(&self) -> Option<&str> {
        self.observation.program.value.as_ref().map(|value| value.json.as_str())
    }
}

/// Observes to the end.
pub async fn see(mut observer: Observer) -> Result<Seen, Error> {
    let mut bytes = Vec::new();
    loop {
        match observer.next().await.expect("an observer ends with an observation or an error")? {
            Observed::Output { data, .. } => bytes.extend_from_slice(&data),
            Observed::Heartbeat { .. } => {}
            Observed::Done(observation) => return Ok(Seen { bytes, observation: *observation }),
        }
    }
}

pub fn window(ms: u64) -> ObserveOptions {
    ObserveOptions { window: Duration::from_millis(ms), ..ObserveOptions::default() }
}

pub fn key(key: &str, request: &str) -> Option<Idempotency> {
    Some(Idempotency { key: key.to_owned(), request_digest: request.to_owned() })
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
