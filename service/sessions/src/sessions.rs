//! All sessions of this service: opening, finding, observing and ending them.

mod answers;
mod found;
mod opening;
mod reading;
mod recover;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use seance_broker::catalog::Catalogs;
use seance_broker::providers::{AnswerError, Providers, ToolResult};
use seance_core::catalog::Catalog;
use seance_core::event::EventKind;
use seance_core::ids::{
    BlobId, CallId, CatalogDigest, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId,
};
use seance_core::machine::{Context, Machine, Refusal};
use seance_core::program::{CallState, ProgramRecord, ProgramState};
use seance_core::reasons;
use seance_core::sandbox::SandboxBackend;
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{Append, BlobInfo, SessionFilter, SessionStore};
use seance_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

use found::{Found, over};
use opening::Created;

use crate::environment::{Environment, SystemEnvironment};
use crate::error::Error;
use crate::guest_tools::GuestTools;
use crate::log::{Follower, Reader};
use crate::metrics::Metrics;
use crate::observe::{OUTPUT_TOKENS_DEFAULT, Observation, ObserveOptions, Observed, Observer, cursor};
use crate::once::Once;
use crate::prepare::{Prepared, Preparer};
use crate::requests::{CatalogSource, ExecuteRequest, Idempotency, OpenRequest, StopRequest};
use crate::shared::{COMMANDS_MAX, Command, ControlGuard, Readiness, Shared};
use crate::task::{First, Start, Task};

/// How long a stopping program is observed beyond its cleanup time.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Gives the W3C trace context of a span, where it has one.
pub type Traceparent = Arc<dyn Fn(&tracing::Span) -> Option<String> + Send + Sync>;

/// How sessions are run.
pub struct Config {
    /// How long an open or a queued program waits for a sandbox.
    pub claim_wait: Duration,
    /// Open sessions of one tenant.
    pub max_sessions: usize,
    /// Programs of one tenant that are queued or run.
    pub max_running: usize,
    /// How long a sandbox is kept with no program running, when the caller does not say.
    pub idle_timeout: Duration,
    /// How long a session lives, when the caller does not say.
    pub session_ttl: Duration,
    /// Leave sources out of the log.
    pub redact_source: bool,
    /// The W3C trace context of a span, for providers.
    pub traceparent: Traceparent,
    /// The clock and the randomness.
    pub environment: Arc<dyn Environment>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            claim_wait: Duration::from_secs(30),
            max_sessions: 1_000,
            max_running: 1_000,
            idle_timeout: Duration::from_secs(5 * 60),
            session_ttl: Duration::from_secs(24 * 3600),
            redact_source: false,
            traceparent: Arc::new(|_| None),
            environment: Arc::new(SystemEnvironment),
        }
    }
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn SessionStore>,
    pub(crate) backend: Arc<dyn SandboxBackend>,
    pub(crate) providers: Providers,
    pub(crate) metrics: Metrics,
    pub(crate) preparer: Preparer,
    live: Mutex<Live>,
    tasks: TaskTracker,
}

#[derive(Default)]
pub(crate) struct Live {
    pub(crate) sessions: HashMap<SessionId, Arc<Shared>>,
    pub(crate) opening: HashMap<TenantId, usize>,
    pub(crate) accepting: HashMap<TenantId, usize>,
    pub(crate) keys: HashSet<(TenantId, &'static str, String)>,
    pub(crate) stopping: bool,
}

/// All sessions of this service. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) inner: Arc<Inner>,
}

impl Sessions {
    /// Starts with what the store has: sessions that an earlier start of the service left are taken
    /// over, and their programs told as they are.
    pub async fn start(
        config: Config,
        store: Arc<dyn SessionStore>,
        backend: Arc<dyn SandboxBackend>,
        providers: Providers,
        registry: &prometheus::Registry,
    ) -> Result<Self, Error> {
        let metrics = Metrics::register(registry).map_err(|source| {
            let source = Box::new(source);
            Error::Store(seance_core::store::Error::Failed { doing: "registering metrics", source })
        })?;
        let preparer = Preparer {
            store: store.clone(),
            catalogs: Catalogs::default(),
            guest_tools: GuestTools::default(),
        };
        let inner = Arc::new(Inner {
            config,
            store,
            backend,
            providers,
            metrics,
            preparer,
            live: Mutex::default(),
            tasks: TaskTracker::new(),
        });
        let sessions = Self { inner };
        sessions.recover().await?;
        Ok(sessions)
    }

    fn spawn(
        &self,
        record: &SessionRecord,
        machine: Machine,
        sandbox: First,
        prepared: Vec<Arc<Prepared>>,
        committed: Vec<seance_core::machine::Action>,
    ) -> (Arc<Shared>, watch::Receiver<Readiness>) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let shared = Arc::new(Shared::new(record, sender));
        let (ready, is_ready) = watch::channel(Readiness::Awaited);
        let stopping = {
            let mut live = self.inner.lock();
            live.sessions.insert(record.id, shared.clone());
            live.stopping
        };
        if stopping {
            // It came after those that the shutdown saw. Its queue is new and has room.
            let (reply, _) = oneshot::channel();
            drop(shared.commands.try_send(Command::Leave { reply }));
        }
        let start = Start { machine, shared: shared.clone(), commands, sandbox, prepared, ready };
        let mut task = Task::new(self.inner.clone(), start);
        task.begin(committed);
        self.inner.tasks.spawn(task.run());
        (shared, is_ready)
    }

    /// Opens a session. Everything is checked before a record exists.
    ///
    /// Cancel-safe: a dropped open leaves a whole session or none; its idempotency key finds it.
    pub async fn open(&self, tenant: &TenantId, request: OpenRequest) -> Result<SessionRecord, Error> {
        let sessions = self.clone();
        let tenant = tenant.clone();
        let span = tracing::Span::current();
        let opening =
            tracing::Instrument::instrument(async move { sessions.open_owned(&tenant, request).await }, span);
        self.inner.tasks.spawn(opening).await.map_err(|_| Error::Stopping)?
    }

    async fn open_owned(&self, tenant: &TenantId, request: OpenRequest) -> Result<SessionRecord, Error> {
        let began = std::time::Instant::now();
        let once = match self.once(tenant, "Open", request.idempotency.as_ref()).await? {
            Once::Before(done) => {
                let id =
                    done.outcome.parse().map_err(|_| internal("an idempotency record names no session"))?;
                return self.get(tenant, id).await;
            }
            Once::First(once) => once,
        };
        let _room = self.room(tenant)?;
        let mut record = self.checked_record(tenant, &request)?;
        let prepared = match &request.catalog {
            Some(source) => Some(self.inner.preparer.prepare(tenant, &request.engine, source).await?),
            None => None,
        };
        record.catalog = prepared.as_ref().map(|prepared| prepared.digest.clone());
        let Created { record, machine, claimed, committed } = self.created(record, &once).await?;
        let sandbox = claimed.id;
        let (shared, is_ready) =
            self.spawn(&record, machine, First::Claimed(claimed), prepared.into_iter().collect(), committed);
        self.until_ready(&shared, is_ready, sandbox).await?;
        self.inner.metrics.open_seconds.observe(began.elapsed().as_secs_f64());
        let record = shared.record.borrow().clone();
        Ok((*record).clone())
    }

    async fn until_ready(
        &self,
        shared: &Arc<Shared>,
        mut readiness: watch::Receiver<Readiness>,
        sandbox: SandboxId,
    ) -> Result<(), Error> {
        let timeout = seance_core::machine::RUNNER_ANSWER_TIMEOUT;
        let known = readiness.wait_for(|readiness| *readiness != Readiness::Awaited);
        let message = match tokio::time::timeout(timeout, known).await.map(|known| known.map(|known| *known))
        {
            Ok(Ok(Readiness::Ready)) => return Ok(()),
            Ok(Ok(Readiness::Gone)) => "ended before it took the session",
            Ok(Ok(Readiness::Awaited)) | Err(_) => "did not answer",
            // Its task is over: the service stops, or someone closed what was not open yet.
            Ok(Err(_)) => return Err(Error::Stopping),
        };
        if self.inner.lock().stopping {
            return Err(Error::Stopping);
        }
        let closed = shared.ask(|reply| Command::Close { reason: reasons::CLOSED, reply }).await;
        drop(closed);
        Err(Error::SandboxNotReady { message: format!("sandbox {sandbox} {message}") })
    }

    /// Runs a program and observes it. The observer holds the session's control until it is dropped.
    ///
    /// Cancel-safe: a dropped request leaves a program or none; its idempotency key finds it.
    pub async fn execute(
        &self,
        tenant: &TenantId,
        session: SessionId,
        request: ExecuteRequest,
        options: ObserveOptions,
    ) -> Result<Observer, Error> {
        let (control, shared) = self.control(tenant, session).await?;
        let sessions = self.clone();
        let tenant = tenant.clone();
        let span = tracing::Span::current();
        // The control is the acceptance's, whether the caller is still there or not (A12).
        let accepting = async move {
            let accepted = sessions.accept(&tenant, &shared, request, span).await;
            accepted.map(|program| (program, shared, control))
        };
        let ((program, first), shared, control) =
            self.inner.tasks.spawn(accepting).await.map_err(|_| Error::Stopping)??;
        let reader = Reader::new(session, first, Some(shared.tail.clone()), self.inner.store.clone());
        Ok(Observer::new(session, program, Some(shared), reader, options, control))
    }

    async fn accept(
        &self,
        tenant: &TenantId,
        shared: &Shared,
        request: ExecuteRequest,
        span: tracing::Span,
    ) -> Result<(ProgramNumber, EventSeq), Error> {
        let once = match self.once(tenant, "Execute", request.idempotency.as_ref()).await? {
            Once::Before(done) => {
                let number =
                    done.outcome.parse().map_err(|_| internal("an idempotency record names no program"))?;
                let number = ProgramNumber(number);
                let program = self.program_record(shared.id, number).await?;
                return Ok((number, program.first_seq));
            }
            Once::First(once) => once,
        };
        let _room = self.room_to_run(tenant)?;
        let record = shared.record.borrow().clone();
        let (run, prepared) = self.checked_run(tenant, &record, request).await?;
        let done = once.done(String::new()).map(|done| Box::new((done, once)));
        let accepted =
            shared.ask(|reply| Command::Execute { run: Box::new(run), prepared, done, span, reply }).await;
        match accepted {
            Ok(accepted) => Ok((accepted.program, accepted.first)),
            Err(Error::Stopping) => Err(self.why_over(tenant, shared.id).await),
            Err(error) => Err(error),
        }
    }

    /// Goes on observing a program.
    pub async fn wait(
        &self,
        tenant: &TenantId,
        session: SessionId,
        program: Option<ProgramNumber>,
        cursor: Option<&str>,
        options: ObserveOptions,
    ) -> Result<Observer, Error> {
        let found = self.find(tenant, session).await?;
        let control = found.control()?;
        self.observer(&found, program, cursor, options, control).await
    }

    async fn observer(
        &self,
        found: &Found,
        program: Option<ProgramNumber>,
        cursor: Option<&str>,
        options: ObserveOptions,
        control: ControlGuard,
    ) -> Result<Observer, Error> {
        let record = found.record();
        let session = record.id;
        let program = program.or(record.active_program).or_else(|| found.news());
        let program = program.ok_or(Refusal::NoActiveProgram)?;
        let known = self.program_record(session, program).await?;
        let observed = match found {
            Found::Live(shared) => shared.observed().max(record.observed),
            Found::Kept(_) => record.observed,
        };
        let next = match (cursor, observed) {
            (Some(text), _) => match cursor::parse(session, text) {
                Some((of, seen)) if of == program && seen <= record.last_seq.max(found.last()) => seen.next(),
                _ => {
                    let message = format!("the cursor is not one of program {program} of this session");
                    return Err(Error::invalid(reasons::INVALID_CURSOR, "cursor", message));
                }
            },
            (None, Some((of, seen))) if of == program => seen.next(),
            (None, _) => known.first_seq,
        };
        let (shared, tail) = match found {
            Found::Live(shared) => (Some(shared.clone()), Some(shared.tail.clone())),
            Found::Kept(_) => (None, None),
        };
        // The end of a program stays readable: a cursor behind it gives it again.
        let next = match known.state.is_final() {
            true => next.min(known.last_seq),
            false => next,
        };
        let reader = Reader::new(session, next, tail, self.inner.store.clone());
        let mut observer = Observer::new(session, program, shared, reader, options, control);
        observer.is_queued = known.state == ProgramState::Queued;
        Ok(observer)
    }

    /// Ends a program and gives its last observation. One that ended by itself before is told as it
    /// ended (A7).
    pub async fn stop(
        &self,
        tenant: &TenantId,
        session: SessionId,
        request: StopRequest,
        reason: StopReason,
    ) -> Result<Observation, Error> {
        let once = self.once(tenant, "Stop", request.idempotency.as_ref()).await?;
        let found = self.find(tenant, session).await?;
        let control = found.control()?;
        let program = match (&found, once) {
            (Found::Live(shared), Once::First(once)) => {
                let program = request.program;
                let reason = reason.name();
                let stopped = match shared.ask(|reply| Command::Stop { program, reason, reply }).await {
                    Err(Error::Stopping) => return Err(self.why_over(tenant, session).await),
                    stopped => stopped?,
                };
                self.remember_done(tenant, shared, once.done(stopped.to_string())).await;
                stopped
            }
            (_, Once::Before(done)) => ProgramNumber(
                done.outcome.parse().map_err(|_| internal("an idempotency record names no program"))?,
            ),
            (Found::Kept(_), Once::First(_)) => request.program.ok_or(Refusal::NoActiveProgram)?,
        };
        let window = found.record().limits.cleanup() + STOP_MARGIN;
        let options = ObserveOptions {
            window,
            max_output_tokens: request.max_output_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT),
            return_on_pending_call: false,
        };
        let mut observer =
            self.observer(&found, Some(program), request.cursor.as_deref(), options, control).await?;
        while let Some(message) = observer.next().await {
            if let Observed::Done(observation) = message? {
                return Ok(*observation);
            }
        }
        Err(Error::NoSession { session })
    }

    /// Asks for the end of a program whose caller is gone; does not wait for it. A control that is at
    /// work is not minded: it was this caller's.
    pub async fn stop_abandoned(&self, tenant: &TenantId, session: SessionId, program: ProgramNumber) {
        if let Ok(Found::Live(shared)) = self.find(tenant, session).await {
            let reason = reasons::DISCONNECTED;
            let asked = shared.ask(|reply| Command::Stop { program: Some(program), reason, reply }).await;
            if let Err(error) = asked {
                tracing::debug!(%session, %program, %error, "a program whose caller is gone was not stopped");
            }
        }
    }

    /// Ends a session; returns when the end of its sandbox is proven.
    ///
    /// While another control is at work the session is closed all the same, and this call refused
    /// (A17); repeated, it tells the truth of that moment.
    pub async fn close(
        &self,
        tenant: &TenantId,
        session: SessionId,
        idempotency: Option<&Idempotency>,
    ) -> Result<SessionRecord, Error> {
        let once = self.once(tenant, "Close", idempotency).await?;
        let shared = match self.find(tenant, session).await? {
            Found::Kept(record) => return Ok((*record).clone()),
            Found::Live(shared) => shared,
        };
        let Ok(_control) = shared.control() else {
            let (reply, _) = oneshot::channel();
            drop(shared.commands.send(Command::Close { reason: reasons::CLOSED, reply }).await);
            return Err(Error::ControlActive { session, note: "; the session is closing, repeat the close" });
        };
        match shared.ask(|reply| Command::Close { reason: reasons::CLOSED, reply }).await {
            Ok(record) => {
                if let Once::First(once) = once {
                    self.remember_done(tenant, &shared, once.done(String::new())).await;
                }
                Ok(record)
            }
            // Its task ended between the two: the store has the truth.
            Err(Error::Stopping) => match self.inner.store.session(tenant, session).await? {
                Some(record) if record.state == SessionState::Closed => Ok(record),
                Some(_) => Err(Error::Stopping),
                None => Err(Error::NoSession { session }),
            },
            Err(error) => Err(error),
        }
    }

    /// The providers of all sessions.
    pub fn providers(&self) -> &Providers {
        &self.inner.providers
    }

    /// The version of an engine's interpreter here, or why sessions can't have the engine: the sandbox
    /// backend's word, which is the only one on that.
    pub fn engine_version(&self, name: &str) -> Result<String, String> {
        let status = self.inner.backend.engines().into_iter().find(|status| status.name == name);
        status.map_or_else(|| Err("no sandbox of this service has it".to_owned()), |status| status.version)
    }

    /// The sandbox backend.
    pub fn backend(&self) -> &Arc<dyn SandboxBackend> {
        &self.inner.backend
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn SessionStore> {
        &self.inner.store
    }

    /// Leaves all sessions, at most within `within`: local sandboxes end, and what ran in them is
    /// told as lost. The sessions stay and are taken over at the next start.
    pub async fn shutdown(&self, within: Duration) {
        let live: Vec<_> = {
            let mut live = self.inner.lock();
            live.stopping = true;
            live.sessions.values().cloned().collect()
        };
        self.inner.tasks.close();
        let leaving = async {
            futures::future::join_all(live.iter().map(|shared| leave(shared))).await;
            self.inner.tasks.wait().await;
        };
        if tokio::time::timeout(within, leaving).await.is_err() {
            tracing::warn!("some sessions did not end in time");
        }
        self.inner.backend.shutdown(within).await;
        self.inner.store.close().await;
    }
}

/// Why a caller stops a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It asked for it.
    Asked,
    /// Its stream was cut and it had asked for a stop then.
    Disconnected,
}

impl StopReason {
    fn name(self) -> &'static str {
        match self {
            StopReason::Asked => reasons::STOPPED,
            StopReason::Disconnected => reasons::DISCONNECTED,
        }
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.config.environment.now()
    }

    pub(crate) fn forget(&self, shared: &Shared) {
        self.lock().sessions.remove(&shared.id);
    }
}

async fn leave(shared: &Shared) {
    let (reply, left) = oneshot::channel();
    if shared.commands.send(Command::Leave { reply }).await.is_ok() {
        drop(left.await);
    }
}

fn internal(message: &'static str) -> Error {
    Error::Store(seance_core::store::Error::Failed {
        doing: "reading an idempotency record",
        source: message.into(),
    })
}
