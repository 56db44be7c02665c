//! A runner as a session has it: to it, from it, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use seance_core::ids::{SandboxId, SessionId, TenantId};
use seance_core::link::{Addressed, FromRunner, ToRunner};
use seance_core::sandbox::{
    Claimed, EndReason, EndUnproven, LinkEvent, LinkGone, LinkReceiver, LinkSender, SandboxEnd,
    SandboxHandle, TakeBack,
};
use seance_operator_api::sandbox::{SessionRef, reason};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::ends;
use super::world::{Phase, Runner, World};
use crate::link::{Aside, Lasting, LastingReceiver, LastingSender, Listener};

/// How long the last words of a runner may take.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(10);

/// Hears what a runner says to the link itself.
pub(super) fn listener(world: &Arc<World>, id: SandboxId) -> Listener {
    let world = Arc::downgrade(world);
    Box::new(move |n_stream, aside| {
        let Some(world) = world.upgrade() else { return };
        if let Some(runner) = world.lock().runners.get_mut(&id)
            && runner.n_stream == n_stream
        {
            // It speaks, so it has the ticket it was welcomed with.
            runner.generation_min = runner.generation;
        }
        match aside {
            Aside::Isolation { tried, memory_peak_bytes } => world.isolation(id, tried, memory_peak_bytes),
            Aside::Goodbye => said_goodbye(&world, id),
            Aside::Applied { .. } => {}
        }
    })
}

fn said_goodbye(world: &World, id: SandboxId) {
    world.change(|inner| {
        let Some(runner) = inner.runners.get_mut(&id) else { return };
        runner.said_goodbye = true;
        runner.link.hang_up();
        runner.link.end(SandboxEnd::new(EndReason::RunnerExited));
    });
}

/// What a reader gives back when it is stopped: the receiver, and what was read from it too late.
pub(super) struct Unclaimed {
    receiver: LastingReceiver,
    unread: Option<LinkEvent>,
}

/// A reader of a runner without a session. It gives nothing back when the runner ended before.
pub(super) type Reader = JoinHandle<Option<Unclaimed>>;

/// Reads from a runner without a session until it is stopped or ends.
pub(super) fn read_warm(
    world: &Arc<World>,
    id: SandboxId,
    link: &Arc<Lasting>,
) -> (oneshot::Sender<()>, Reader) {
    let (stop, stopped) = oneshot::channel();
    let receiver = LastingReceiver::new(Arc::clone(link));
    (stop, tokio::spawn(read_until(Arc::clone(world), id, receiver, stopped)))
}

async fn read_until(
    world: Arc<World>,
    id: SandboxId,
    mut receiver: LastingReceiver,
    mut stopped: oneshot::Receiver<()>,
) -> Option<Unclaimed> {
    let end = loop {
        let event = tokio::select! {
            biased;
            Ok(()) = &mut stopped, if !stopped.is_terminated() => return Some(Unclaimed { receiver, unread: None }),
            event = receiver.recv() => event,
        };
        // Between the two looks it may have been given to a session, which this is for.
        if stopped.try_recv().is_ok() {
            return Some(Unclaimed { receiver, unread: Some(event) });
        }
        match event {
            LinkEvent::Frame(numbered) => {
                if !matches!(numbered.frame, FromRunner::HostExited { .. }) {
                    let detail = "a frame of a session came from a runner that has none".to_owned();
                    break SandboxEnd { reason: EndReason::ProtocolBroken, detail };
                }
            }
            LinkEvent::Ended(end) => break end,
        }
    };
    world.change(|inner| {
        if !matches!(inner.runners.get(&id), Some(runner) if matches!(runner.phase, Phase::Warm { .. })) {
            return;
        }
        match end.reason {
            // It may come back, as new: no session knows it.
            EndReason::LinkLost => {
                inner.forget(id);
            }
            EndReason::ProtocolBroken => {
                tracing::warn!(sandbox = %id, detail = end.detail, "a runner misbehaved and is never used");
                inner.release(id, reason::released::MISBEHAVED, end);
            }
            _ => inner.release(id, reason::released::RETIRED, end),
        }
    });
    farewell(&world, id, receiver).await;
    None
}

/// Hears the last words of a runner that nobody wants any more, and lets go of its stream.
async fn farewell(world: &World, id: SandboxId, mut receiver: LastingReceiver) {
    let listen = async { while let LinkEvent::Frame(_) = receiver.recv().await {} };
    drop(tokio::time::timeout(FAREWELL_TIMEOUT, listen).await);
    let inner = world.lock();
    if let Some(runner) = inner.runners.get(&id).filter(|runner| !matches!(runner.phase, Phase::Warm { .. }))
    {
        runner.link.hang_up();
    }
}

/// Gives a runner that was taken off the list to a session.
pub(super) fn claimed(
    world: &Arc<World>,
    id: SandboxId,
    engine: &str,
    session_max: Duration,
    reader: Reader,
) -> Option<Claimed> {
    let inner = world.lock();
    let runner = inner.runners.get(&id)?;
    let Phase::Claimed { tenant, .. } = &runner.phase else { return None };
    let version = runner.engines.iter().find(|(name, _)| name == engine).map(|(_, version)| version.clone());
    let link = Arc::clone(&runner.link);
    let sender = Arc::new(Sender {
        world: Arc::clone(world),
        id,
        tenant: tenant.clone(),
        session_max,
        link: LastingSender(Arc::clone(&link)),
    });
    let receiver =
        Box::new(Receiver { world: Arc::clone(world), id, link, source: Some(Source::Reader(reader)) });
    let handle = Arc::new(Handle::new(Arc::clone(world), id));
    Some(Claimed { id, engine_version: version.unwrap_or_default(), sender, receiver, handle })
}

struct Sender {
    world: Arc<World>,
    id: SandboxId,
    tenant: TenantId,
    session_max: Duration,
    link: LastingSender,
}

#[async_trait]
impl LinkSender for Sender {
    async fn send(&self, addressed: Addressed) -> Result<(), LinkGone> {
        if let ToRunner::Assign { session, deadline, .. } = &addressed.frame {
            // It is sent when it is committed, and not before.
            self.assigned(*session, deadline.unwrap_or(self.session_max));
        }
        self.link.send(addressed).await
    }
}

impl Sender {
    fn assigned(&self, session: SessionId, life: Duration) {
        let given = session_ref(session, &self.tenant, life);
        self.world.change(|inner| {
            let Some(runner) = inner.runners.get_mut(&self.id) else { return };
            runner.judge.freeze();
            if let Phase::Claimed { session, .. } = &mut runner.phase {
                session.get_or_insert(given);
            }
            inner.dirty.insert(runner.sandbox.clone());
        });
    }
}

/// A session as its Sandbox names it.
pub(super) fn session_ref(session: SessionId, tenant: &TenantId, life: Duration) -> SessionRef {
    let deadline = Timestamp::now().checked_add(life).unwrap_or(Timestamp::MAX);
    // Whole seconds are what Kubernetes keeps.
    let deadline = Timestamp::from_second(deadline.as_second()).unwrap_or(deadline);
    SessionRef { id: session.to_string(), tenant: tenant.to_string(), deadline: Time(deadline) }
}

struct Receiver {
    world: Arc<World>,
    id: SandboxId,
    link: Arc<Lasting>,
    source: Option<Source>,
}

enum Source {
    /// The one that read while there was no session still has it, for a moment.
    Reader(Reader),
    Own(Box<LastingReceiver>),
}

#[async_trait]
impl LinkReceiver for Receiver {
    async fn recv(&mut self) -> LinkEvent {
        if let Some(Source::Reader(reader)) = &mut self.source {
            let Unclaimed { receiver, unread } = match reader.await {
                Ok(Some(unclaimed)) => unclaimed,
                Ok(None) | Err(_) => {
                    self.source = None;
                    return self.gone();
                }
            };
            self.source = Some(Source::Own(Box::new(receiver)));
            if let Some(event) = unread {
                return event;
            }
        }
        match &mut self.source {
            Some(Source::Own(receiver)) => receiver.recv().await,
            Some(Source::Reader(_)) | None => self.gone(),
        }
    }
}

impl Receiver {
    fn gone(&self) -> LinkEvent {
        LinkEvent::Ended(self.link.ended().unwrap_or(SandboxEnd::new(EndReason::LinkLost)))
    }
}

impl Drop for Receiver {
    /// The session wants no more of it; whether the runner says goodbye is still to be heard.
    fn drop(&mut self) {
        let (Some(source), Ok(runtime)) = (self.source.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (world, id) = (Arc::clone(&self.world), self.id);
        runtime.spawn(async move {
            let receiver = match source {
                Source::Own(receiver) => *receiver,
                Source::Reader(reader) => match reader.await {
                    Ok(Some(Unclaimed { receiver, .. })) => receiver,
                    Ok(None) | Err(_) => return,
                },
            };
            farewell(&world, id, receiver).await;
        });
    }
}

/// The end of a sandbox that was claimed. Ended when dropped.
pub(super) struct Handle {
    world: Arc<World>,
    id: SandboxId,
    is_left: AtomicBool,
}

impl Handle {
    pub(super) fn new(world: Arc<World>, id: SandboxId) -> Self {
        Self { world, id, is_left: AtomicBool::new(false) }
    }

    /// Another handle has it now.
    pub(super) fn hand_over(self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    fn release(&self, end: SandboxEnd) {
        let released = match end.reason {
            EndReason::ProtocolBroken => reason::released::MISBEHAVED,
            _ => reason::released::SESSION_ENDED,
        };
        self.world.change(|inner| inner.release(self.id, released, end));
    }
}

#[async_trait]
impl SandboxHandle for Handle {
    async fn end(&self, reason: EndReason, within: Duration) -> Result<(), EndUnproven> {
        self.release(SandboxEnd::new(reason));
        let deadline = Instant::now() + within;
        let id = self.id;
        let proven = self.world.wait_for(deadline, |inner| inner.is_proven_gone(id).then_some(()));
        if proven.await.is_some() {
            self.world.change(|inner| inner.proven(id));
            return Ok(());
        }
        let mut inner = self.world.lock();
        let runner = inner.runners.get_mut(&id);
        let (name, said_goodbye) = runner.map_or_else(Default::default, |runner| {
            runner.is_unproven = true;
            (runner.sandbox.clone(), runner.said_goodbye)
        });
        let missing = if said_goodbye {
            "its runner has ended, and the cluster has not taken the deletion yet"
        } else {
            "neither its runner nor its pod is known to have ended"
        };
        let message = format!("the end of Sandbox {name} was asked for {within:?} ago; {missing}");
        Err(EndUnproven { message })
    }

    fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        // The runner dials again until the next start of the service answers.
        if let Some(runner) = self.world.lock().runners.get(&self.id) {
            runner.link.hang_up();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Ended already or asked for before, this changes nothing.
        if !self.is_left.load(Ordering::Relaxed) {
            self.release(SandboxEnd::new(EndReason::Released));
        }
    }
}

/// Expects the runner of a session that had it before this start of the service.
pub(super) fn expect_back(
    world: &Arc<World>,
    request: &TakeBack,
    session_max: Duration,
) -> Result<Arc<Lasting>, SandboxEnd> {
    let id = request.sandbox;
    let mut inner = world.lock();
    let sandbox = inner.sandbox_of(id);
    if let Some(end) = sandbox.and_then(ends::finished) {
        return Err(end);
    }
    if sandbox.is_none() && inner.is_listed {
        return Err(SandboxEnd::new(EndReason::PodDeleted));
    }
    let known = sandbox.map(|sandbox| (sandbox.metadata.name.clone(), sandbox.spec.clone()));
    let (name, spec) = known.map_or((None, None), |(name, spec)| (name, Some(spec)));
    // One that came as a runner without a session never got its Assign, or hides that it did: it dials
    // again, and is told then.
    let (mut generation_min, mut generation) = (0, 0);
    if let Some(before) = inner.runners.get(&id) {
        if before.is_promised || !matches!(before.phase, Phase::Warm { .. }) {
            return Err(SandboxEnd::new(EndReason::ProtocolBroken));
        }
        (generation_min, generation) = (before.generation_min, before.generation);
        before.link.hang_up();
        inner.forget(id);
    }
    let session = spec.as_ref().and_then(|spec| spec.session.clone());
    let session = session.unwrap_or_else(|| session_ref(request.session, &request.tenant, session_max));
    let assign = ToRunner::Assign {
        session: request.session,
        engine: request.engine.clone(),
        deadline: Some(session_max),
    };
    let link = Lasting::taken_back(request.epoch, request.acknowledged, assign, listener(world, id));
    let (sandbox, pool) = (name.unwrap_or_default(), spec.map(|spec| spec.pool).unwrap_or_default());
    let phase = Phase::Claimed { tenant: request.tenant.clone(), session: Some(session) };
    let mut runner = Runner::new(sandbox, pool, Arc::clone(&link), phase);
    runner.judge.freeze();
    (runner.generation_min, runner.generation) = (generation_min, generation);
    inner.runners.insert(id, runner);
    drop(inner);
    world.tell();
    Ok(link)
}

/// In the place of a reader of a link that nobody has read from yet.
pub(super) fn no_reader(link: &Arc<Lasting>) -> Reader {
    let receiver = LastingReceiver::new(Arc::clone(link));
    tokio::spawn(std::future::ready(Some(Unclaimed { receiver, unread: None })))
}
