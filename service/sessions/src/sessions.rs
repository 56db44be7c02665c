//! All sessions of this service: opening, finding, observing and ending them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use seance_broker::catalog::Catalogs;
use seance_broker::providers::{AnswerError, Providers, ToolResult};
use seance_core::catalog::Catalog;
use seance_core::event::EventKind;
use seance_core::ids::{
    BlobId, CallId, CatalogDigest, Epoch, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId,
};
use seance_core::limits::Limits;
use seance_core::machine::{Context, Execute, Machine, Refusal};
use seance_core::program::ProgramRecord;
use seance_core::reasons;
use seance_core::sandbox::{ClaimRequest, SandboxBackend};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{
    Append, BlobInfo, DoneRequest, IDEMPOTENCY_KEY_BYTES_MAX, SessionFilter, SessionStore,
};
use seance_core::value::{Bounds, JsonText};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::log::{Follower, Reader};
use crate::metrics::Metrics;
use crate::observe::{OUTPUT_TOKENS_DEFAULT, Observation, ObserveOptions, Observed, Observer, cursor};
use crate::prepare::{Prepared, Preparer};
use crate::requests::{CatalogSource, ExecuteRequest, Idempotency, OpenRequest, StopRequest};
use crate::shared::{COMMANDS_MAX, Command, ControlGuard, Shared};
use crate::task::{Start, Task, now, random_bytes};

/// The most labels of a session.
const LABELS_MAX: usize = 16;
/// The longest label name or value, in characters.
const LABEL_CHARS_MAX: usize = 63;
/// The longest time a session may be asked to live.
const SESSION_TTL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
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
        }
    }
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn SessionStore>,
    pub(crate) backend: Arc<dyn SandboxBackend>,
    pub(crate) providers: Providers,
    pub(crate) metrics: Metrics,
    preparer: Preparer,
    live: Mutex<Live>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Live {
    sessions: HashMap<SessionId, Arc<Shared>>,
    opening: HashMap<TenantId, usize>,
    keys: HashSet<(TenantId, &'static str, String)>,
    stopping: bool,
}

/// All sessions of this service. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
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
        let preparer = Preparer { store: store.clone(), catalogs: Catalogs::default() };
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

    async fn recover(&self) -> Result<(), Error> {
        for record in self.inner.store.unfinished().await? {
            let record = self.inner.store.take_over(record.id, now()).await?;
            let log = match record.active_program {
                Some(number) => self.events_of(&record, number).await?,
                None => Vec::new(),
            };
            let catalog = self.kept_catalog(&record).await;
            let mut random = random_bytes;
            let mut ctx = Context { now: now(), random: &mut random };
            tracing::info!(session = %record.id, tenant = %record.tenant, "session taken over");
            let machine = Machine::recover(record.clone(), &log, &mut ctx);
            self.spawn(&record, machine, None, catalog, Vec::new());
        }
        Ok(())
    }

    /// The session's own catalog. One that can't be had any more is asked for again, and refused
    /// then, by the first program that needs it.
    async fn kept_catalog(&self, record: &SessionRecord) -> Option<Arc<Prepared>> {
        let source = CatalogSource::Digest(record.catalog.clone()?);
        let prepared = self.inner.preparer.prepare(&record.tenant, &record.engine, &source).await;
        prepared.inspect_err(|error| tracing::error!(session = %record.id, %error, "no catalog")).ok()
    }

    async fn events_of(
        &self,
        record: &SessionRecord,
        number: ProgramNumber,
    ) -> Result<Vec<seance_core::event::Event>, Error> {
        let program = self.inner.store.program(record.id, number).await?;
        let first = program.map_or(EventSeq::FIRST, |program| program.first_seq);
        let mut reader = Reader::new(record.id, first, None, self.inner.store.clone());
        let mut log = Vec::new();
        loop {
            let events = reader.read().await?;
            if events.is_empty() {
                return Ok(log);
            }
            // Output is not looked at again, and may be large.
            let kept = events.iter().filter(|event| !matches!(event.kind, EventKind::Output { .. }));
            log.extend(kept.map(|event| (**event).clone()));
        }
    }

    fn spawn(
        &self,
        record: &SessionRecord,
        machine: Machine,
        claimed: Option<seance_core::sandbox::Claimed>,
        prepared: Option<Arc<Prepared>>,
        committed: Vec<seance_core::machine::Action>,
    ) -> (Arc<Shared>, watch::Receiver<bool>) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let shared = Arc::new(Shared::new(record, sender));
        let (ready, is_ready) = watch::channel(false);
        self.inner.lock().sessions.insert(record.id, shared.clone());
        let start = Start { machine, shared: shared.clone(), commands, claimed, prepared, ready };
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
        let claim = ClaimRequest {
            tenant: tenant.clone(),
            engine: request.engine.clone(),
            memory_bytes: record.limits.memory_bytes,
            wait: self.inner.config.claim_wait,
        };
        let claimed = self.inner.backend.claim(claim).await?;
        let (sandbox, handle) = (claimed.id, claimed.handle.clone());
        let mut random = random_bytes;
        let mut ctx = Context { now: now(), random: &mut random };
        let mut machine = Machine::open(record, sandbox, &claimed.engine_version, &mut ctx);
        let step = machine.take_step();
        let record = machine.record().clone();
        let first = Append {
            events: step.events,
            uses_sandbox: step.uses_sandbox,
            done: once.done(record.id.to_string()),
            ..Append::empty(tenant.clone(), record.id, record.epoch)
        };
        if let Err(error) = self.inner.store.create(record.clone(), first).await {
            let unproven =
                handle.end(seance_core::sandbox::EndReason::Released, record.limits.cleanup()).await;
            drop(unproven);
            return Err(error.into());
        }
        let (shared, is_ready) = self.spawn(&record, machine, Some(claimed), prepared, step.committed);
        self.until_ready(&shared, is_ready, sandbox).await?;
        self.inner.metrics.open_seconds.observe(began.elapsed().as_secs_f64());
        let record = shared.record.borrow().clone();
        Ok((*record).clone())
    }

    async fn until_ready(
        &self,
        shared: &Arc<Shared>,
        mut is_ready: watch::Receiver<bool>,
        sandbox: SandboxId,
    ) -> Result<(), Error> {
        let timeout = seance_core::machine::RUNNER_ANSWER_TIMEOUT;
        let waited =
            tokio::time::timeout(timeout, is_ready.wait_for(|ready| *ready)).await.map(|ready| ready.is_ok());
        if waited == Ok(true) {
            return Ok(());
        }
        let closed = shared.ask(|reply| Command::Close { reason: reasons::CLOSED, reply }).await;
        drop(closed);
        Err(Error::SandboxNotReady { message: format!("sandbox {sandbox} did not answer") })
    }

    fn checked_record(&self, tenant: &TenantId, request: &OpenRequest) -> Result<SessionRecord, Error> {
        self.check_engine(&request.engine)?;
        check_options(&request.engine, &request.engine_options)?;
        check_labels(&request.labels)?;
        let limits = Limits::from_map(request.limits.iter().map(|(name, value)| (name.as_str(), *value)))?;
        let ttl = request.session_ttl.unwrap_or(self.inner.config.session_ttl);
        let idle_timeout = request.idle_timeout.unwrap_or(self.inner.config.idle_timeout);
        for (field, duration) in [("session_ttl", ttl), ("idle_timeout", idle_timeout)] {
            if duration.is_zero() || duration > SESSION_TTL_MAX {
                let message =
                    format!("{field} can be up to {} days and not zero", SESSION_TTL_MAX.as_secs() / 86_400);
                return Err(Error::invalid(reasons::LIMIT_OUT_OF_RANGE, field, message));
            }
        }
        let created_at = now();
        Ok(SessionRecord {
            tenant: tenant.clone(),
            id: SessionId::mint(created_at, random_bytes()),
            state: SessionState::Open,
            reason: String::new(),
            engine: request.engine.clone(),
            min_version: request.min_version.clone(),
            engine_options: request.engine_options.clone(),
            limits,
            labels: request.labels.clone(),
            catalog: None,
            idle_timeout,
            created_at,
            expires_at: created_at.after(ttl),
            active_program: None,
            last_program: 0,
            sandbox: None,
            last_seq: EventSeq(0),
            kept: BTreeMap::new(),
            observed: None,
            epoch: Epoch(1),
        })
    }

    fn check_engine(&self, name: &str) -> Result<(), Error> {
        let known = seance_engines::by_name(name).is_some();
        let status = self.inner.backend.engines().into_iter().find(|status| status.name == name);
        match (known, status.map(|status| status.version)) {
            (true, Some(Ok(_))) => Ok(()),
            (true, Some(Err(why))) => {
                let message = format!("the {name} engine is unavailable here: {why}");
                Err(Error::invalid(reasons::ENGINE_UNAVAILABLE, "engine", message))
            }
            (true, None) => {
                let message = format!("the {name} engine is unavailable here: no sandbox has it");
                Err(Error::invalid(reasons::ENGINE_UNAVAILABLE, "engine", message))
            }
            (false, _) => {
                let message =
                    format!("there is no engine {:?}; Engines.List tells which there are", shortened(name));
                Err(Error::invalid(reasons::ENGINE_NOT_FOUND, "engine", message))
            }
        }
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
        let accepting = async move {
            sessions.accept(&tenant, &shared, request, span).await.map(|program| (program, shared))
        };
        let ((program, first), shared) =
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
        self.refuse_too_many_programs(tenant)?;
        let record = shared.record.borrow().clone();
        let (run, prepared) = self.checked_run(tenant, &record, request).await?;
        let done = once.done((record.last_program + 1).to_string());
        let accepted =
            shared.ask(|reply| Command::Execute { run: Box::new(run), prepared, done, span, reply }).await?;
        Ok((accepted.program, accepted.first))
    }

    async fn checked_run(
        &self,
        tenant: &TenantId,
        record: &SessionRecord,
        request: ExecuteRequest,
    ) -> Result<(Execute, Option<Arc<Prepared>>), Error> {
        let limits =
            record.limits.lowered(request.limits.iter().map(|(name, value)| (name.as_str(), *value)))?;
        let source = checked_source(&request.source, &limits)?;
        let language = checked_language(&record.engine, request.language)?;
        let inputs = request.inputs.map(|text| checked_inputs(text, &limits)).transpose()?;
        let own = record.catalog.clone().map(CatalogSource::Digest);
        let prepared = match request.catalog.or(own) {
            Some(source) => Some(self.inner.preparer.prepare(tenant, &record.engine, &source).await?),
            None => None,
        };
        let run = Execute {
            source_name: source_name(&language),
            language,
            source,
            catalog: prepared.as_ref().map(|prepared| prepared.digest.clone()),
            inputs,
            limits,
            redact_source: self.inner.config.redact_source,
        };
        Ok((run, prepared))
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
        let program = program.or(record.active_program).ok_or(Refusal::NoActiveProgram)?;
        let known = self.program_record(session, program).await?;
        let next = match (cursor, record.observed) {
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
        Ok(Observer::new(session, program, shared, reader, options, control))
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
                let stopped = shared.ask(|reply| Command::Stop { program, reason, reply }).await?;
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
        let control = shared.control();
        let closing = shared.ask(|reply| Command::Close { reason: reasons::CLOSED, reply });
        let Ok(_control) = control else {
            drop(tokio::time::timeout(Duration::ZERO, closing).await);
            return Err(Error::ControlActive { session, note: "; the session is closing, repeat the close" });
        };
        match closing.await {
            Ok(record) => {
                if let Once::First(once) = once {
                    self.remember_done(tenant, &shared, once.done(String::new())).await;
                }
                Ok(record)
            }
            // Its task ended between the two: the store has the truth.
            Err(Error::Refused(Refusal::Closed { .. })) => self.get(tenant, session).await,
            Err(error) => Err(error),
        }
    }

    /// One session.
    pub async fn get(&self, tenant: &TenantId, session: SessionId) -> Result<SessionRecord, Error> {
        Ok((*self.find(tenant, session).await?.record()).clone())
    }

    /// Sessions of a tenant, newest first.
    pub async fn list(&self, tenant: &TenantId, filter: SessionFilter) -> Result<Vec<SessionRecord>, Error> {
        Ok(self.inner.store.sessions(tenant, filter).await?)
    }

    /// A program.
    pub async fn program(
        &self,
        tenant: &TenantId,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<ProgramRecord, Error> {
        let found = self.find(tenant, session).await?;
        if let Found::Live(shared) = &found {
            let snapshot = shared.ask(|reply| Command::Snapshot { program: number, reply }).await;
            if let Ok(Some(snapshot)) = snapshot {
                return Ok(snapshot.program);
            }
        }
        self.program_record(session, number).await
    }

    /// Follows a session's events from a number on; `until_now` ends at the last one there is.
    pub async fn follow(
        &self,
        tenant: &TenantId,
        session: SessionId,
        from: EventSeq,
        until_now: bool,
    ) -> Result<Follower, Error> {
        let found = self.find(tenant, session).await?;
        let last = found.last();
        let tail = match &found {
            Found::Live(shared) => Some(shared.tail.clone()),
            Found::Kept(_) => None,
        };
        let reader = Reader::new(session, from, tail, self.inner.store.clone());
        Ok(Follower { reader, until: until_now.then_some(last), buffer: VecDeque::new() })
    }

    /// A blob's facts.
    pub async fn blob_info(
        &self,
        tenant: &TenantId,
        session: SessionId,
        id: BlobId,
    ) -> Result<BlobInfo, Error> {
        self.find(tenant, session).await?;
        self.inner.store.blob_info(session, id).await?.ok_or_else(|| {
            Error::invalid(reasons::BLOB_NOT_FOUND, "blob_id", format!("session {session} has no blob {id}"))
        })
    }

    /// Bytes of a blob of which [`Sessions::blob_info`] was asked before.
    pub async fn blob(
        &self,
        session: SessionId,
        id: BlobId,
        offset: u64,
        n_max: usize,
    ) -> Result<Bytes, Error> {
        Ok(self.inner.store.blob(session, id, offset, n_max).await?)
    }

    /// Keeps a catalog.
    pub async fn put_catalog(
        &self,
        tenant: &TenantId,
        catalog: &Catalog,
        idempotency: Option<&Idempotency>,
    ) -> Result<CatalogDigest, Error> {
        match self.once(tenant, "PutCatalog", idempotency).await? {
            Once::Before(done) => {
                done.outcome.parse().map_err(|_| internal("an idempotency record names no catalog"))
            }
            Once::First(once) => {
                let done = once.done(catalog.digest().to_string());
                self.inner.preparer.put(tenant, catalog, done).await
            }
        }
    }

    /// A catalog, found or as it is.
    pub async fn catalog(&self, tenant: &TenantId, source: &CatalogSource) -> Result<Catalog, Error> {
        match source {
            CatalogSource::Inline(catalog) => Ok(catalog.clone()),
            CatalogSource::Digest(digest) => self.inner.preparer.find(tenant, digest).await,
        }
    }

    /// Answers a pending call. Returns when the answer is recorded.
    pub async fn answer(
        &self,
        tenant: &TenantId,
        session: SessionId,
        call: CallId,
        result: ToolResult,
        idempotency: Option<&Idempotency>,
    ) -> Result<(), Error> {
        let Once::First(once) = self.once(tenant, "Answer", idempotency).await? else { return Ok(()) };
        let Found::Live(shared) = self.find(tenant, session).await? else {
            return Err(not_pending(call));
        };
        let mut reader = Reader::new(
            session,
            shared.tail.last().next(),
            Some(shared.tail.clone()),
            self.inner.store.clone(),
        );
        self.inner.providers.answer(session, call, result).map_err(|error| match error {
            AnswerError::NotFound => self.why_no_call(&shared, call),
            AnswerError::NotPending => not_pending(call),
            AnswerError::Served => {
                let message = format!("a provider has call {call} and will answer it");
                Error::invalid(reasons::CALL_NOT_PENDING, "call_id", message)
            }
        })?;
        loop {
            let events = reader.read().await?;
            let ended =
                |kind: &EventKind| matches!(kind, EventKind::CallEnded { record, .. } if record.id == call);
            if events.iter().any(|event| ended(&event.kind)) {
                self.remember_done(tenant, &shared, once.done(String::new())).await;
                return Ok(());
            }
            if events.is_empty() && !reader.wait().await {
                return Err(Error::Stopping);
            }
        }
    }

    fn why_no_call(&self, shared: &Shared, call: CallId) -> Error {
        let record = shared.record.borrow();
        if call.session == shared.id
            && call.program.0 <= record.last_program
            && Some(call.program) != record.active_program
        {
            return not_pending(call);
        }
        Error::invalid(
            reasons::CALL_NOT_FOUND,
            "call_id",
            format!("session {} has no call {call}", shared.id),
        )
    }

    /// Whether a tenant has a session, for providers that attach.
    pub async fn check_session(&self, tenant: &TenantId, session: SessionId) -> Result<(), Error> {
        match self.find(tenant, session).await? {
            Found::Live(_) => Ok(()),
            Found::Kept(_) => Err(Refusal::Closed { session }.into()),
        }
    }

    /// The providers of all sessions.
    pub fn providers(&self) -> &Providers {
        &self.inner.providers
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
            for shared in live {
                let (reply, left) = tokio::sync::oneshot::channel();
                if shared.commands.send(Command::Leave { reply }).await.is_ok() {
                    drop(left.await);
                }
            }
            self.inner.tasks.wait().await;
        };
        if tokio::time::timeout(within, leaving).await.is_err() {
            tracing::warn!("some sessions did not end in time");
        }
        self.inner.backend.shutdown(within).await;
        self.inner.store.close().await;
    }

    async fn control(
        &self,
        tenant: &TenantId,
        session: SessionId,
    ) -> Result<(ControlGuard, Arc<Shared>), Error> {
        match self.find(tenant, session).await? {
            Found::Live(shared) => Ok((shared.control()?, shared)),
            Found::Kept(record) if record.reason == reasons::SESSION_TTL => {
                Err(Refusal::Expired { session }.into())
            }
            Found::Kept(_) => Err(Refusal::Closed { session }.into()),
        }
    }

    async fn find(&self, tenant: &TenantId, session: SessionId) -> Result<Found, Error> {
        let live = self.inner.lock().sessions.get(&session).cloned();
        if let Some(shared) = live {
            return if shared.tenant == *tenant {
                Ok(Found::Live(shared))
            } else {
                Err(Error::NoSession { session })
            };
        }
        let record = self.inner.store.session(tenant, session).await?.ok_or(Error::NoSession { session })?;
        Ok(Found::Kept(Arc::new(record)))
    }

    async fn program_record(
        &self,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<ProgramRecord, Error> {
        let found = self.inner.store.program(session, number).await?;
        found.ok_or(Error::Refused(Refusal::NoSuchProgram { program: number }))
    }

    fn room(&self, tenant: &TenantId) -> Result<Room, Error> {
        let mut live = self.inner.lock();
        if live.stopping {
            return Err(Error::Stopping);
        }
        let n_open = live.sessions.values().filter(|shared| shared.tenant == *tenant).count();
        let n_opening = live.opening.entry(tenant.clone()).or_default();
        let max = self.inner.config.max_sessions;
        if n_open + *n_opening >= max {
            return Err(Error::TooMany {
                message: format!("tenant {tenant} has {max} open sessions, which is its limit"),
            });
        }
        *n_opening += 1;
        Ok(Room { inner: self.inner.clone(), tenant: tenant.clone() })
    }

    fn refuse_too_many_programs(&self, tenant: &TenantId) -> Result<(), Error> {
        let of_tenant = |shared: &&Arc<Shared>| shared.tenant == *tenant;
        let is_active = |shared: &Arc<Shared>| shared.record.borrow().active_program.is_some();
        let live = self.inner.lock();
        let n_active = live.sessions.values().filter(of_tenant).filter(|shared| is_active(shared)).count();
        let max = self.inner.config.max_running;
        if n_active >= max {
            return Err(Error::TooMany {
                message: format!("tenant {tenant} has {max} active programs, which is its limit"),
            });
        }
        Ok(())
    }

    async fn once(
        &self,
        tenant: &TenantId,
        method: &'static str,
        idempotency: Option<&Idempotency>,
    ) -> Result<Once, Error> {
        let Some(Idempotency { key, request_digest }) = idempotency else {
            return Ok(Once::First(OnceGuard { inner: self.inner.clone(), held: None }));
        };
        if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
            let message = format!("the idempotency key is over {IDEMPOTENCY_KEY_BYTES_MAX} bytes");
            return Err(Error::invalid(reasons::INVALID_REQUEST, "idempotency_key", message));
        }
        let held = (tenant.clone(), method, key.clone());
        if !self.inner.lock().keys.insert(held.clone()) {
            let message = "another request with this idempotency key is at work";
            return Err(Error::invalid(reasons::CONTROL_ACTIVE, "idempotency_key", message));
        }
        let guard = OnceGuard { inner: self.inner.clone(), held: Some((held, request_digest.clone())) };
        match self.inner.store.done_request(tenant, method, key).await? {
            None => Ok(Once::First(guard)),
            Some(done) if done.request_digest == *request_digest => Ok(Once::Before(done)),
            Some(_) => {
                let message = format!("idempotency key {key:?} was used with another {method} request");
                Err(Error::invalid(reasons::IDEMPOTENCY_KEY_REUSED, "idempotency_key", message))
            }
        }
    }

    /// Records a request that was done and can be done again without harm. It is not in the same
    /// commit as its effect, which a repeat finds done.
    async fn remember_done(&self, tenant: &TenantId, shared: &Shared, done: Option<DoneRequest>) {
        if done.is_none() {
            return;
        }
        let epoch = shared.record.borrow().epoch;
        let append = Append { done, ..Append::empty(tenant.clone(), shared.id, epoch) };
        if let Err(error) = self.inner.store.append(append).await {
            tracing::warn!(session = %shared.id, error = &error as &dyn std::error::Error, "a done request was not recorded");
        }
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

/// A session that was found.
enum Found {
    Live(Arc<Shared>),
    Kept(Arc<SessionRecord>),
}

impl Found {
    fn record(&self) -> Arc<SessionRecord> {
        match self {
            Found::Live(shared) => shared.record.borrow().clone(),
            Found::Kept(record) => record.clone(),
        }
    }

    fn last(&self) -> EventSeq {
        match self {
            Found::Live(shared) => shared.tail.last(),
            Found::Kept(record) => record.last_seq,
        }
    }

    fn control(&self) -> Result<ControlGuard, Error> {
        match self {
            Found::Live(shared) => shared.control(),
            // Nobody steers a session that is over; everybody may read it.
            Found::Kept(_) => Ok(Arc::new(tokio::sync::Semaphore::new(1))
                .try_acquire_owned()
                .expect("a new semaphore has its permit")),
        }
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, shared: &Shared) {
        self.lock().sessions.remove(&shared.id);
    }
}

/// A place among a tenant's open sessions, held while one is opened.
struct Room {
    inner: Arc<Inner>,
    tenant: TenantId,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut live = self.inner.lock();
        if let Some(n) = live.opening.get_mut(&self.tenant) {
            *n -= 1;
            if *n == 0 {
                live.opening.remove(&self.tenant);
            }
        }
    }
}

/// Whether a request was done before.
enum Once {
    Before(DoneRequest),
    First(OnceGuard),
}

/// Holds an idempotency key while its request is at work.
struct OnceGuard {
    inner: Arc<Inner>,
    held: Option<((TenantId, &'static str, String), String)>,
}

impl OnceGuard {
    /// The record of the request, once it is known what it made.
    fn done(&self, outcome: String) -> Option<DoneRequest> {
        let ((_, method, key), request_digest) = self.held.clone()?;
        Some(DoneRequest { method: method.to_owned(), key, request_digest, outcome, at: now() })
    }
}

impl Drop for OnceGuard {
    fn drop(&mut self) {
        if let Some((held, _)) = &self.held {
            self.inner.lock().keys.remove(held);
        }
    }
}

fn not_pending(call: CallId) -> Error {
    Error::invalid(reasons::CALL_NOT_PENDING, "call_id", format!("call {call} has ended"))
}

fn internal(message: &'static str) -> Error {
    Error::Store(seance_core::store::Error::Failed {
        doing: "reading an idempotency record",
        source: message.into(),
    })
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn check_options(engine: &str, options: &[String]) -> Result<(), Error> {
    let Some(engine) = seance_engines::by_name(engine) else { return Ok(()) };
    engine
        .check_options(options)
        .map_err(|error| Error::invalid(reasons::UNSUPPORTED, "engine_options", error.to_string()))
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    let fits = |text: &String| text.chars().count() <= LABEL_CHARS_MAX && !text.chars().any(char::is_control);
    if labels.len() <= LABELS_MAX && labels.iter().all(|(name, value)| fits(name) && fits(value)) {
        return Ok(());
    }
    let message = format!(
        "there can be {LABELS_MAX} labels of {LABEL_CHARS_MAX} characters, without control characters"
    );
    Err(Error::invalid(reasons::INVALID_REQUEST, "labels", message))
}

fn checked_source(source: &[u8], limits: &Limits) -> Result<String, Error> {
    if source.len() as u64 > limits.source_bytes {
        let message =
            format!("the source has {} bytes, over the limit of {}", source.len(), limits.source_bytes);
        return Err(Error::invalid(reasons::SOURCE_TOO_LARGE, "source", message));
    }
    match std::str::from_utf8(source) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => {
            let message = format!("the source is not UTF-8 at byte {}", error.valid_up_to());
            Err(Error::invalid(reasons::SOURCE_NOT_UTF8, "source", message))
        }
    }
}

fn checked_language(engine: &str, language: String) -> Result<String, Error> {
    let known = seance_engines::by_name(engine).map(|engine| engine.languages).unwrap_or_default();
    if language.is_empty() {
        return Ok(engine.to_owned());
    }
    if known.contains(&language.as_str()) {
        return Ok(language);
    }
    let message =
        format!("the {engine} engine takes {}, not {:?}", known.join(" and "), shortened(&language));
    Err(Error::invalid(reasons::UNSUPPORTED, "language", message))
}

fn checked_inputs(text: String, limits: &Limits) -> Result<String, Error> {
    if text.len() as u64 > limits.inputs_bytes {
        let message =
            format!("the inputs have {} bytes, over the limit of {}", text.len(), limits.inputs_bytes);
        return Err(Error::invalid(reasons::INPUTS_TOO_LARGE, "inputs_json", message));
    }
    JsonText::parse(text, &Bounds::default()).map(JsonText::into_string).map_err(|error| {
        Error::invalid(reasons::INVALID_INPUTS, "inputs_json", format!("the inputs are no JSON: {error}"))
    })
}

fn source_name(language: &str) -> String {
    let ending = match language {
        "typescript" => "ts",
        "javascript" => "js",
        other => other,
    };
    format!("program.{ending}")
}
