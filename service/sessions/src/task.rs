//! The task of one session: feeds the machine, and sees to what its steps leave to do.

mod calls;
mod sandboxes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seance_broker::providers::{Answered, Answers, Dispatch, Outcome, ResultLimits, SessionCalls};
use seance_core::event::EventKind;
use seance_core::ids::{CallId, CatalogDigest, ProgramNumber, SandboxId};
use seance_core::link::{Addressed, FromRunner, Numbered, ToRunner};
use seance_core::machine::{self, Action, Context, Machine, Stopping};
use seance_core::program::{CallError, CallState};
use seance_core::reasons;
use seance_core::sandbox::{
    ClaimError, ClaimRequest, Claimed, EndReason, EndUnproven, LinkEvent, LinkReceiver, LinkSender, Resumed,
    SandboxEnd, SandboxHandle, TakeBack,
};
use seance_core::session::SessionRecord;
use seance_core::store::{Append, DoneRequest};
use seance_core::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::commit::{Batch, Committer, Effect, broker_reason, dispatch_call};
use crate::error::Error;
use crate::prepare::Prepared;
use crate::sessions::Inner;
use crate::shared::{Accepted, Command, Readiness, Reply, Shared, Snapshot};

/// Steps that wait for their commit before no more frames of the runner are read: the runner is
/// held back by the link's own flow control, nothing is cut.
const UNCOMMITTED_STEPS_MAX: usize = 96;
/// Frames that wait for a runner that does not read. One more and it has broken the protocol.
const SENDING_MAX: usize = 256;
/// How long the end of a sandbox is waited for when no caller waits.
const SWEEP_WAIT: Duration = Duration::from_secs(60);

/// The sandbox in use.
struct Link {
    id: SandboxId,
    sender: Arc<dyn LinkSender>,
    receiver: Box<dyn LinkReceiver>,
}

/// A runner that is there again, or how its sandbox ended.
type TakenBack = Result<(Claimed, Resumed), SandboxEnd>;

/// What one pass of the task's loop brings.
enum Input {
    Command(Option<Command>),
    Link(LinkEvent),
    Answered(Answered),
    Claimed(Result<Claimed, ClaimError>),
    TakenBack(SandboxId, TakenBack),
    Ended(SandboxId, Result<(), EndUnproven>),
    Drained,
    Lost,
    Overrun,
    Tick,
}

/// A session's task.
pub(crate) struct Task {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
    machine: Machine,
    commands: mpsc::Receiver<Command>,
    committer: Committer,
    committing: JoinSet<()>,
    sending: JoinSet<()>,
    calls: Arc<SessionCalls>,
    answers: Answers,
    link: Option<Link>,
    handles: HashMap<SandboxId, Arc<dyn SandboxHandle>>,
    claims: JoinSet<Result<Claimed, ClaimError>>,
    /// Gets the runner of an earlier start of the service back.
    taking_back: JoinSet<(SandboxId, TakenBack)>,
    /// Why the sandbox that is awaited is ended once it is there.
    ends_on_arrival: Option<(EndReason, Duration)>,
    ends: JoinSet<(SandboxId, Result<(), EndUnproven>)>,
    /// How many of `ends` there are for each sandbox.
    ending: HashMap<SandboxId, usize>,
    prepared: HashMap<CatalogDigest, Arc<Prepared>>,
    /// The catalog whose tools the broker was told of last: it forgets the oldest.
    declared: Option<CatalogDigest>,
    sent_catalog: Option<(SandboxId, CatalogDigest)>,
    program_span: tracing::Span,
    call_spans: HashMap<CallId, tracing::Span>,
    closing: Vec<Reply<SessionRecord>>,
    ready: watch::Sender<Readiness>,
}

/// The first sandbox of a task.
pub(crate) enum First {
    /// None.
    None,
    /// One that was got.
    Claimed(Claimed),
    /// One of an earlier start of the service.
    Awaited(TakeBack),
}

/// What a task starts with.
pub(crate) struct Start {
    pub(crate) machine: Machine,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) sandbox: First,
    /// The session's own catalog, and that of its active program.
    pub(crate) prepared: Vec<Arc<Prepared>>,
    pub(crate) ready: watch::Sender<Readiness>,
}

impl Task {
    pub(crate) fn new(inner: Arc<Inner>, start: Start) -> Self {
        let Start { machine, shared, commands, sandbox, prepared, ready } = start;
        let grace = Duration::from_millis(machine.record().limits.provider_grace_ms);
        let (calls, answers) = inner.providers.register(shared.id, shared.tenant.clone(), grace);
        let calls = Arc::new(calls);
        let (committer, work) = Committer::new(inner.store.clone(), shared.clone(), calls.clone());
        let mut committing = JoinSet::new();
        committing.spawn(work);
        let mut task = Self {
            inner,
            shared,
            machine,
            commands,
            committer,
            committing,
            sending: JoinSet::new(),
            calls,
            answers,
            link: None,
            handles: HashMap::new(),
            claims: JoinSet::new(),
            taking_back: JoinSet::new(),
            ends_on_arrival: None,
            ends: JoinSet::new(),
            ending: HashMap::new(),
            prepared: HashMap::new(),
            declared: None,
            sent_catalog: None,
            program_span: tracing::Span::none(),
            call_spans: HashMap::new(),
            closing: Vec::new(),
            ready,
        };
        match sandbox {
            First::None => {}
            First::Claimed(claimed) => task.take_link(claimed),
            First::Awaited(request) => {
                let backend = task.inner.backend.clone();
                task.taking_back.spawn(async move { (request.sandbox, backend.take_back(request).await) });
            }
        }
        for prepared in prepared {
            task.remember(prepared);
        }
        task
    }

    /// Carries out what was committed with the session's creation.
    pub(crate) fn begin(&mut self, committed: Vec<Action>) {
        let effects = committed.into_iter().filter_map(|action| self.effect(action)).collect();
        let record = self.machine.record();
        let append = Append::empty(record.tenant.clone(), record.id, record.epoch);
        self.committer.commit(Batch { append, effects });
    }

    /// Runs until the session is closed, or the service leaves it.
    pub(crate) async fn run(mut self) {
        self.inner.metrics.sessions.inc();
        self.settle(None, Vec::new());
        while !self.is_over() {
            let input = self.next_input().await;
            if let Input::Command(Some(Command::Leave { reply })) = input {
                self.leave().await;
                let _ = reply.send(());
                break;
            }
            self.take(input).await;
        }
        if self.committer.gauge.is_lost() {
            self.abandon().await;
        }
        self.finish().await;
    }

    fn is_over(&self) -> bool {
        // Callers are answered until the log has the end.
        self.committer.gauge.is_lost() || (self.machine.is_closed() && self.committer.gauge.queued() == 0)
    }

    async fn next_input(&mut self) -> Input {
        while self.sending.try_join_next().is_some() {}
        if self.sending.len() > SENDING_MAX {
            return Input::Overrun;
        }
        let tick = self.machine.next_tick().map(|at| self.until(at));
        let may_read = self.committer.gauge.queued() < UNCOMMITTED_STEPS_MAX;
        let gauge = self.committer.gauge.clone();
        // In this order: nothing that a runner sends holds off a limit, a stop or a close, and what
        // callers and providers send is bounded by what they wait for.
        tokio::select! {
            biased;
            () = gauge.lost() => Input::Lost,
            () = sleep(tick), if tick.is_some() => Input::Tick,
            Some(claimed) = self.claims.join_next() => Input::Claimed(joined(claimed)),
            Some(taken) = self.taking_back.join_next() => {
                let (id, result) = joined(taken);
                Input::TakenBack(id, result)
            }
            Some(ended) = self.ends.join_next() => {
                let (id, proof) = joined(ended);
                Input::Ended(id, proof)
            }
            command = self.commands.recv() => Input::Command(command),
            Some(answered) = self.answers.recv() => Input::Answered(answered),
            event = receive(&mut self.link), if may_read && self.link.is_some() => Input::Link(event),
            () = gauge.drained(), if !may_read || self.machine.is_closed() => Input::Drained,
        }
    }

    async fn take(&mut self, input: Input) {
        match input {
            Input::Command(Some(command)) => return self.command(command),
            // The registry holds a sender for as long as the task runs.
            Input::Command(None) | Input::Drained | Input::Lost => return,
            Input::Link(LinkEvent::Frame(frame)) => self.frame(frame).await,
            Input::Link(LinkEvent::Ended(end)) => self.link_ended(end),
            Input::Answered(answered) => self.answered(answered).await,
            Input::Claimed(Ok(claimed)) => self.claimed(claimed),
            Input::Claimed(Err(error)) => {
                let (reason, message) = (no_sandbox(&error), error.to_string());
                self.input(|machine, ctx| machine.claim_failed(ctx, reason, &message));
            }
            Input::TakenBack(sandbox, result) => self.taken_back(sandbox, result),
            Input::Ended(sandbox, proof) => self.ended(sandbox, proof),
            Input::Overrun => {
                self.sending.abort_all();
                let detail = "the runner does not read".to_owned();
                self.link_ended(SandboxEnd { reason: EndReason::ProtocolBroken, detail });
            }
            Input::Tick => self.input(|machine, ctx| machine.tick(ctx)),
        }
        self.settle(None, Vec::new());
    }

    fn input<T>(&mut self, input: impl FnOnce(&mut Machine, &mut Context<'_>) -> T) -> T {
        let environment = self.inner.config.environment.clone();
        let mut random = || environment.random();
        let mut ctx = Context { now: environment.now(), random: &mut random };
        input(&mut self.machine, &mut ctx)
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Execute { reply, .. } if self.committer.gauge.trouble().is_some() => {
                let trouble = self.committer.gauge.trouble().unwrap_or_default();
                let _ = reply.send(Err(trouble.into()));
            }
            Command::Execute { run, prepared, done, span, reply } => {
                if let Some(prepared) = prepared {
                    self.remember(prepared);
                }
                match self.input(|machine, ctx| machine.execute(ctx, *run)) {
                    Ok(program) => {
                        self.program_span = program_span(&span, &self.shared, program);
                        let first =
                            self.machine.active().map_or(self.machine.record().last_seq, |p| p.first_seq);
                        let (done, once) = done.map(|done| *done).unzip();
                        let done = done.map(|done| DoneRequest { outcome: program.to_string(), ..done });
                        let mut effects = vec![replying(reply, Accepted { program, first })];
                        effects.extend(once.map(Effect::Hold));
                        self.settle(done, effects);
                    }
                    Err(refusal) => {
                        let _ = reply.send(Err(refusal.into()));
                    }
                }
            }
            Command::Stop { program, reason, reply } => {
                match self.input(|machine, ctx| machine.stop(ctx, program, reason)) {
                    Ok(Stopping::Asked(program) | Stopping::AlreadyEnded(program)) => {
                        self.settle(None, vec![replying(reply, program)]);
                    }
                    Err(refusal) => {
                        let _ = reply.send(Err(refusal.into()));
                    }
                }
            }
            Command::Close { reason, reply } => {
                self.closing.push(reply);
                self.input(|machine, ctx| machine.close(ctx, reason));
                self.settle(None, Vec::new());
            }
            // Where the log is behind, where a reader goes on is told by memory alone.
            Command::Observed { .. } if self.committer.gauge.queued() >= UNCOMMITTED_STEPS_MAX => {}
            Command::Observed { program, up_to } => {
                self.input(|machine, ctx| machine.observed(ctx, program, up_to));
                self.settle(None, Vec::new());
            }
            Command::Snapshot { program, reply } => {
                let snapshot = self.snapshot(program);
                self.settle(None, vec![replying(reply, snapshot)]);
            }
            Command::Leave { reply } => {
                // The loop takes it; here only for completeness of the match.
                let _ = reply.send(());
            }
        }
    }

    fn snapshot(&self, program: ProgramNumber) -> Option<Snapshot> {
        let program = self.machine.active().filter(|active| active.number == program)?;
        let pending: Vec<_> =
            program.calls.iter().filter(|call| call.state == CallState::Dispatched).cloned().collect();
        let needs_answer = pending.iter().any(|call| !self.calls.is_served(&call.tool));
        Some(Snapshot { program, pending, needs_answer, last: self.machine.record().last_seq })
    }

    async fn frame(&mut self, numbered: Numbered) {
        let Some(sandbox) = self.link.as_ref().map(|link| link.id) else { return };
        let Numbered { number, frame } = numbered;
        let FromRunner::ToolCall { program, call, tool, arguments } = frame else {
            return self.input(|machine, ctx| machine.frame(ctx, sandbox, Numbered { number, frame }));
        };
        let checked = self.check(&tool, &arguments).await;
        self.input(|machine, ctx| {
            machine.tool_call(ctx, sandbox, number, program, call, &tool, arguments, checked);
        });
    }

    /// Sees to what the machine's last inputs left to do.
    fn settle(&mut self, done: Option<DoneRequest>, mut effects: Vec<Effect>) {
        let readiness = match self.machine.sandbox_id() {
            Some(_) if self.machine.sandbox_ready() => Readiness::Ready,
            Some(_) => Readiness::Awaited,
            None => Readiness::Gone,
        };
        self.ready.send_if_modified(|known| std::mem::replace(known, readiness) != readiness);
        let step = self.machine.take_step();
        let commits = step.commits() || done.is_some();
        for event in &step.events {
            self.inner.metrics.count(&event.kind);
            self.trace(&event.kind);
        }
        for action in step.now {
            self.do_now(action);
        }
        let mut waiting: Vec<Effect> =
            step.committed.into_iter().filter_map(|action| self.effect(action)).collect();
        waiting.append(&mut effects);
        if self.machine.is_closed() {
            // A sandbox that is being got for nobody ends by itself.
            self.claims = JoinSet::new();
            let record = self.machine.record().clone();
            waiting.extend(self.closing.drain(..).map(|reply| replying(reply, record.clone())));
        }
        if !commits && waiting.is_empty() {
            return;
        }
        let record = self.machine.record();
        let append = Append {
            events: step.events,
            record: step.record_changed.then(|| Box::new(record.clone())),
            programs: step.programs,
            blobs: step.blobs,
            uses_sandbox: step.uses_sandbox,
            acknowledges: step.acknowledges,
            done,
            ..Append::empty(record.tenant.clone(), record.id, record.epoch)
        };
        self.committer.commit(Batch { append, effects: waiting });
    }

    fn do_now(&mut self, action: Action) {
        match action {
            Action::Claim => self.claim(),
            Action::EndSandbox { sandbox, reason } => {
                if self.link.as_ref().is_some_and(|link| link.id == sandbox) {
                    self.link = None;
                }
                let within = self.machine.record().limits.cleanup();
                self.end_sandbox(sandbox, reason, within);
            }
            Action::CancelCall { id, reason } => {
                self.calls.cancel(id, broker_reason(reason));
            }
            Action::Dispatch(dispatch) => {
                let dispatch = self.broker_dispatch(dispatch);
                dispatch_call(&self.calls, dispatch);
            }
            Action::CallRecorded(id) => self.calls.recorded(id),
            Action::SendCatalog(_) | Action::Send(_) => {
                if let Some(Effect::Send { to, frame }) = self.effect(action) {
                    self.send_now(to, frame);
                }
            }
        }
    }

    /// Sends without waiting where the link takes it; else as a task, so that a runner that does not
    /// read holds nobody up.
    fn send_now(&mut self, to: Arc<dyn LinkSender>, frame: Addressed) {
        let mut sending: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
            // A link that is gone says so to the task itself.
            Box::pin(async move {
                let _ = to.send(frame).await;
            });
        let waker = std::task::Waker::noop();
        if sending.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending() {
            self.sending.spawn(sending);
        }
    }

    fn effect(&mut self, action: Action) -> Option<Effect> {
        let epoch = self.machine.record().epoch;
        match action {
            Action::Send(frame) => {
                let to = self.link.as_ref()?.sender.clone();
                Some(Effect::Send { to, frame: Addressed { epoch, frame } })
            }
            Action::SendCatalog(digest) => {
                let link = self.link.as_ref()?;
                let sent = Some((link.id, digest.clone()));
                if self.sent_catalog == sent {
                    return None;
                }
                let tools = self.prepared.get(&digest)?.tools.clone();
                let to = link.sender.clone();
                self.sent_catalog = sent;
                Some(Effect::Send {
                    to,
                    frame: Addressed { epoch, frame: ToRunner::Catalog { digest, tools } },
                })
            }
            Action::Dispatch(dispatch) => Some(Effect::Dispatch(self.broker_dispatch(dispatch))),
            Action::CancelCall { id, reason } => Some(Effect::Cancel { id, reason }),
            Action::CallRecorded(id) => Some(Effect::Recorded(id)),
            Action::Claim | Action::EndSandbox { .. } => {
                self.do_now(action);
                None
            }
        }
    }

    fn trace(&mut self, kind: &EventKind) {
        match kind {
            EventKind::CallEnded { record, .. } => {
                self.call_spans.remove(&record.id);
            }
            EventKind::ProgramEnded(record) => {
                let span = std::mem::replace(&mut self.program_span, tracing::Span::none());
                span.record("state", format!("{:?}", record.state));
                tracing::info!(
                    parent: &span, tenant = %self.shared.tenant, session = %self.shared.id, program = record.number.0,
                    state = ?record.state, reason = record.reason, n_calls = record.n_calls, cpu_us = record.usage.cpu_us,
                    wall_us = record.usage.wall_us, "program ended"
                );
                self.call_spans.clear();
            }
            _ => {}
        }
    }

    fn remember(&mut self, prepared: Arc<Prepared>) {
        if self.declared.as_ref() != Some(&prepared.digest) {
            self.calls.declare_tools(prepared.tools.iter().map(|tool| tool.name.as_str().into()));
            self.declared = Some(prepared.digest.clone());
        }
        // Only the session's own catalog and the newest are ever looked at again.
        let own = self.machine.record().catalog.clone();
        self.prepared.retain(|digest, _| Some(digest) == own.as_ref());
        self.prepared.insert(prepared.digest.clone(), prepared);
    }

    fn until(&self, at: Timestamp) -> tokio::time::Instant {
        tokio::time::Instant::now() + at.since(self.inner.config.environment.now()) + Duration::from_millis(1)
    }

    async fn finish(self) {
        let Self { inner, shared, committer, mut committing, claims, calls, link, commands, .. } = self;
        drop((link, claims, commands));
        drop(committer);
        while committing.join_next().await.is_some() {}
        calls.local_calls_ended().await;
        inner.metrics.sessions.dec();
        inner.forget(&shared);
        shared.tail.end();
    }
}

async fn receive(link: &mut Option<Link>) -> LinkEvent {
    match link {
        Some(link) => link.receiver.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep(until: Option<tokio::time::Instant>) {
    match until {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The reason of a program that got no sandbox: what is in the way, where that is known by name.
fn no_sandbox(error: &ClaimError) -> &'static str {
    match error {
        ClaimError::Blocked { reason, .. } => reason.name(),
        ClaimError::NoPool { .. } => reasons::NO_POOL,
        ClaimError::Unavailable { .. }
        | ClaimError::Exhausted { .. }
        | ClaimError::StartFailed { .. }
        | ClaimError::Queued { .. }
        | ClaimError::QueueFull { .. }
        | ClaimError::Stopping => reasons::NO_SANDBOX,
    }
}

/// A task of ours never panics and is never aborted while it is awaited; if one did panic, the
/// panic goes on here.
fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn replying<T: Send + 'static>(reply: Reply<T>, value: T) -> Effect {
    Effect::Reply(Box::new(move |committed| {
        let _ = reply.send(committed.map(|()| value));
    }))
}

fn program_span(parent: &tracing::Span, shared: &Shared, program: ProgramNumber) -> tracing::Span {
    tracing::info_span!(
        parent: parent, "program",
        tenant = %shared.tenant, session = %shared.id, program = program.0, state = tracing::field::Empty,
    )
}
