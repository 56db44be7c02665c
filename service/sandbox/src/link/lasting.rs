//! A link that outlives its streams: what a session has of a runner that dials in over the network.
//!
//! The runner connects, breaks off and connects again; each stream takes the place of the one before.
//! What the session sends meanwhile is kept until the runner shows that it has it; what the runner
//! sends and the session has seen is dropped when it comes again. A link that stays broken for
//! [`LINK_LOST_AFTER`] has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use seance_core::ids::{Epoch, ProgramNumber, SessionId};
use seance_core::link::{Addressed, FromRunner, ToRunner};
use seance_core::sandbox::{EndReason, LinkEvent, LinkGone, LinkReceiver, LinkSender, Resumed, SandboxEnd};
use seance_proto::link::v1alpha1::{
    AttachRequest, AttachResponse, Hello, Resume, Welcome, attach_response::Frame,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::inbox::{Closed, Inbox, Incoming, Received};
use super::kept::Kept;
use super::numbers::{Delivered, Numbers};
use super::outbox::{self, Messages, Sender};
use super::share::{Flow, SendBudget};
use super::{Breach, Budget};
use crate::convert::{self, Aside};

/// How long a broken link may take to come back.
pub const LINK_LOST_AFTER: Duration = Duration::from_secs(30);
/// How long what waits for a runner may stand still before the runner counts as one that doesn't read. A
/// connection that is only cut is found by keep-alive before that.
const UNREAD_MAX: Duration = Duration::from_secs(60);
/// How long what a runner sent before its end was known may take to be read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes what a runner says to the link itself, and over which of its streams, counted from 1.
pub type Listener = Box<dyn Fn(u64, Aside) + Send + Sync>;

/// The service's side of the link to one runner, over all its streams.
pub struct Lasting {
    state: Mutex<State>,
    arrived: Notify,
    room: Notify,
    connected: watch::Sender<bool>,
    ended: watch::Sender<Option<SandboxEnd>>,
    delivered: Delivered,
    listener: Listener,
}

struct State {
    epoch: Epoch,
    acknowledged: u64,
    session: Option<SessionId>,
    /// The session waits for the answer to its Assign.
    is_assigning: bool,
    kept: Kept,
    /// Whether the runner says which results have arrived.
    tells_applied: bool,
    stream: Option<Arc<Sender>>,
    incoming: Option<(u64, Inbox)>,
    n_streams: u64,
    resumed: Resumed,
    connection: Option<Connection>,
    /// How it ends when the stream breaks the next time.
    end_when_cut: Option<SandboxEnd>,
}

/// The connection that the newest stream is on. It may be there longer than the stream is used.
struct Connection {
    cut: CancellationToken,
    flow: Option<Arc<Flow>>,
    /// How much had left when it was last looked at and something waited, and since when.
    unread: Option<(u64, Instant)>,
}

impl Drop for Connection {
    /// Another took its place, or nobody wants the runner any more.
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

/// Why a stream is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The runner lies, or is none of ours.
    #[error(transparent)]
    Breach(#[from] Breach),
    /// Another service owns the session by now.
    #[error("the session has another owner")]
    StaleOwner,
    /// The sandbox has ended.
    #[error("the sandbox has ended")]
    Ended,
    /// There is no room now for what would be sent again.
    #[error("there is no room for what has to be sent again")]
    Full,
}

/// A stream that a runner opened, and what it said first.
#[derive(Debug)]
pub struct Attached {
    /// What it said.
    pub hello: Hello,
    /// The version that is spoken.
    pub version: u32,
    /// The rest.
    pub stream: Streaming<AttachRequest>,
    /// The ticket that it gets.
    pub ticket: String,
    /// The budget for its frames in chunks.
    pub budget: Budget,
    /// The budget for what goes to it.
    pub send_budget: SendBudget,
    /// Ends the connection that the stream is on, whatever still waits there.
    pub cut: CancellationToken,
}

impl Lasting {
    /// A link to a runner without a session.
    pub fn new(listener: Listener) -> Arc<Self> {
        Self::with(State::new(Epoch(0), 0), 0, listener)
    }

    /// A link to a runner that has a session since before this start of the service. `assign` is sent
    /// to a runner that never saw it.
    pub fn taken_back(epoch: Epoch, acknowledged: u64, assign: ToRunner, listener: Listener) -> Arc<Self> {
        let mut state = State::new(epoch, acknowledged);
        if let ToRunner::Assign { session, .. } = assign {
            state.session = Some(session);
        }
        state.kept.keep(&assign);
        Self::with(state, acknowledged, listener)
    }

    fn with(state: State, delivered: u64, listener: Listener) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            arrived: Notify::new(),
            room: Notify::new(),
            connected: watch::Sender::new(false),
            ended: watch::Sender::new(None),
            delivered: Delivered::up_to(delivered),
            listener,
        })
    }

    /// Takes a new stream in place of the one before, and gives its number.
    pub fn connect(&self, attached: Attached) -> Result<(u64, Messages), Refusal> {
        let Attached { hello, version, stream, ticket, budget, send_budget, cut } = attached;
        let mut state = self.lock();
        if self.ended.borrow().is_some() {
            return Err(Refusal::Ended);
        }
        state.resume(hello.resume)?;
        state.tells_applied = version > 1;
        let (epoch, acknowledged) = (state.epoch.0, state.acknowledged);
        let response = |frame| AttachResponse { epoch, frame: Some(frame) };
        let again = state.kept.again().into_iter().map(|frame| response(convert::to_proto(frame)));
        let again: Vec<_> = again.collect();
        let again_bytes = again.iter().map(prost::Message::encoded_len).sum();
        let room = send_budget.keep(0, again_bytes).ok_or(Refusal::Full)?;
        let welcome = Frame::Welcome(Welcome { version, acknowledged, ticket });
        let again = (again, Some(room));
        let (sender, messages) = outbox::channel(response(welcome), again, Some(send_budget.clone()));
        state.kept.budget = Some(send_budget);
        state.connection = Some(Connection { cut, flow: sender.flow(), unread: None });
        let numbers = Numbers::new(acknowledged, self.delivered.clone());
        state.n_streams += 1;
        state.stream = Some(Arc::new(sender));
        state.incoming =
            Some((state.n_streams, Inbox::new(Incoming::Network(Box::new(stream)), numbers, Some(budget))));
        let n_stream = state.n_streams;
        drop(state);
        self.arrived.notify_one();
        self.connected.send_replace(true);
        Ok((n_stream, messages))
    }

    /// Ends the link; the first end stands.
    pub fn end(&self, end: SandboxEnd) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            if is_first {
                *ended = Some(end);
            }
            is_first
        });
        self.room.notify_waiters();
    }

    /// Ends the link in this way when its stream breaks, at once where it has: the runner is being ended,
    /// and won't come back.
    pub fn end_when_cut(&self, end: SandboxEnd) {
        let mut state = self.lock();
        let is_cut = state.n_streams > 0 && state.stream.is_none();
        state.end_when_cut = Some(end.clone());
        drop(state);
        if is_cut {
            self.end(end);
        }
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<SandboxEnd> {
        self.ended.borrow().clone()
    }

    /// Whether there is a stream.
    pub fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Waits until there is a stream, or the end. Cancel-safe.
    pub async fn until_connected(&self) -> Result<(), SandboxEnd> {
        let (mut connected, mut ended) = (self.connected.subscribe(), self.ended.subscribe());
        tokio::select! {
            biased;
            end = ended.wait_for(Option::is_some) => {
                Err(end.ok().and_then(|end| end.clone()).unwrap_or(SandboxEnd::new(EndReason::LinkLost)))
            }
            _ = connected.wait_for(|connected| *connected) => Ok(()),
        }
    }

    /// What the runner said it has, when it last connected.
    pub fn resumed(&self) -> Resumed {
        self.lock().resumed.clone()
    }

    /// Ends the link of a runner that doesn't read what waits for it. Whoever owns links looks now and
    /// then.
    pub fn look_for_unread(&self, now: Instant) {
        let mut state = self.lock();
        let Some(connection) = &mut state.connection else { return };
        let progress = connection.flow.as_deref().and_then(Flow::progress);
        connection.unread = progress.map(|n_sent| match connection.unread {
            Some((before, since)) if before == n_sent => (n_sent, since),
            _ => (n_sent, now),
        });
        if connection.unread.is_some_and(|(_, since)| now >= since + UNREAD_MAX) {
            state.connection = None;
            drop(state);
            let detail = format!("it has read nothing of what waits for it for {UNREAD_MAX:?}");
            self.end(SandboxEnd { reason: EndReason::ProtocolBroken, detail });
        }
    }

    /// Asks the runner to end, now or when it connects again.
    pub fn shut_down(&self) {
        let stream = {
            let mut state = self.lock();
            state.kept.keep(&ToRunner::Shutdown);
            state.stream.clone()
        };
        if let Some(stream) = stream {
            stream.shut_down();
        }
    }

    /// Lets go of the stream, so that it ends when what waits has left.
    pub fn hang_up(&self) {
        let mut state = self.lock();
        (state.stream, state.incoming) = (None, None);
        drop(state);
        self.connected.send_replace(false);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a frame and gives the stream that it goes to now, or nothing when there is no room.
    fn keep(&self, addressed: &Addressed) -> Option<Option<Arc<Sender>>> {
        let mut state = self.lock();
        state.epoch = state.epoch.max(addressed.epoch);
        if !state.kept.has_room(&addressed.frame) {
            if state.tells_applied {
                return None;
            }
            state.kept.make_room();
        }
        match &addressed.frame {
            ToRunner::Assign { session, .. } => {
                state.session = Some(*session);
                state.is_assigning = true;
            }
            ToRunner::Ack { number } => state.acknowledged = state.acknowledged.max(*number),
            _ => {}
        }
        state.kept.keep(&addressed.frame);
        Some(state.stream.clone())
    }

    fn lost(&self, n_stream: u64) {
        let mut state = self.lock();
        if state.n_streams != n_stream {
            return;
        }
        state.stream = None;
        let end = state.end_when_cut.clone();
        drop(state);
        self.connected.send_replace(false);
        if let Some(end) = end {
            self.end(end);
        }
    }

    /// Whether a frame is the session's to see.
    fn passes(&self, frame: &FromRunner) -> bool {
        let mut state = self.lock();
        state.kept.seen(frame);
        match frame {
            FromRunner::Assigned { session } if state.session == Some(*session) => {
                std::mem::take(&mut state.is_assigning)
            }
            _ => true,
        }
    }

    fn aside(&self, n_stream: u64, aside: Aside) {
        if let Aside::Applied { program, calls } = &aside {
            self.lock().kept.applied(*program, calls);
            self.room.notify_waiters();
        }
        (self.listener)(n_stream, aside);
    }
}

impl State {
    fn new(epoch: Epoch, acknowledged: u64) -> Self {
        Self {
            epoch,
            acknowledged,
            session: None,
            is_assigning: false,
            kept: Kept::default(),
            tells_applied: false,
            stream: None,
            incoming: None,
            n_streams: 0,
            resumed: Resumed::default(),
            connection: None,
            end_when_cut: None,
        }
    }

    /// Takes what a runner says it has, as far as that can be so.
    fn resume(&mut self, resume: Option<Resume>) -> Result<(), Refusal> {
        let lie = |field| Err(Refusal::Breach(Breach::BadField { field }));
        let Some(resume) = resume else {
            // It was never connected; then nobody can have been told so either.
            return if self.session.is_none() { Ok(()) } else { lie("hello.resume") };
        };
        if resume.epoch > self.epoch.0 {
            return Err(Refusal::StaleOwner);
        }
        let session = self.session.map_or(String::new(), |session| session.to_string());
        let missed_assign = resume.session_id.is_empty() && self.kept.again().iter().any(is_assign);
        if resume.session_id != session && !missed_assign {
            return lie("hello.resume.session_id");
        }
        if self.session.is_none() {
            // What a warm runner said is of no interest to anyone.
            self.acknowledged = resume.first_unacknowledged.saturating_sub(1).max(self.acknowledged);
        } else if resume.first_unacknowledged > self.acknowledged + 1 || self.kept.is_lossy {
            return lie("hello.resume.first_unacknowledged");
        }
        let program = (resume.program != 0).then_some(ProgramNumber(resume.program));
        if let Some(program) = program {
            self.kept.applied(program, &resume.applied_calls);
            if self.n_streams == 0 {
                self.kept.go_on_with(program);
            }
        }
        let (last_program, applied_calls) = (resume.last_program, resume.applied_calls);
        self.resumed = Resumed { program, last_program, applied_calls };
        Ok(())
    }
}

fn is_assign(frame: &ToRunner) -> bool {
    matches!(frame, ToRunner::Assign { .. })
}

/// Sends to a runner over whatever stream there is.
pub struct LastingSender(pub Arc<Lasting>);

#[async_trait]
impl LinkSender for LastingSender {
    /// Dropped before it is ready, the frame may still go out after a reconnect; all frames may come
    /// twice.
    async fn send(&self, addressed: Addressed) -> Result<(), LinkGone> {
        let link = &self.0;
        let mut ended = link.ended.subscribe();
        let stream = loop {
            let room = link.room.notified();
            let mut room = std::pin::pin!(room);
            room.as_mut().enable();
            if link.ended.borrow().is_some() {
                return Err(LinkGone);
            }
            if let Some(stream) = link.keep(&addressed) {
                break stream;
            }
            room.await;
        };
        if let Some(stream) = stream {
            tokio::select! {
                // A stream that ends meanwhile is no loss: the frame is kept, and goes over the next.
                _ = stream.send(addressed) => {}
                _ = ended.wait_for(Option::is_some) => return Err(LinkGone),
            }
        }
        Ok(())
    }
}

/// Receives from a runner over whatever stream there is.
pub struct LastingReceiver {
    link: Arc<Lasting>,
    ended: watch::Receiver<Option<SandboxEnd>>,
    inbox: Option<(u64, Inbox)>,
    lost_at: Instant,
    drains_until: Option<Instant>,
}

/// What a receiver waited for.
enum Happened {
    Arrived,
    Ended,
    Received(Result<Received, Closed>),
    TimedOut,
}

impl LastingReceiver {
    /// The one receiver of a link.
    pub fn new(link: Arc<Lasting>) -> Self {
        let ended = link.ended.subscribe();
        Self { link, ended, inbox: None, lost_at: Instant::now(), drains_until: None }
    }

    async fn happens(&mut self) -> Happened {
        let until = match (self.drains_until, &self.inbox) {
            (Some(until), _) => Some(until),
            (None, None) => Some(self.lost_at + LINK_LOST_AFTER),
            (None, Some(_)) => None,
        };
        tokio::select! {
            biased;
            () = self.link.arrived.notified(), if self.drains_until.is_none() => Happened::Arrived,
            _ = self.ended.wait_for(Option::is_some), if self.drains_until.is_none() => Happened::Ended,
            received = next(&mut self.inbox) => Happened::Received(received),
            () = sleep(until) => Happened::TimedOut,
        }
    }

    fn closed(&mut self, closed: Closed) {
        let Some((n_stream, _)) = self.inbox.take() else { return };
        self.lost_at = Instant::now();
        if let Closed::Broken(breach) = closed {
            self.link.end(SandboxEnd { reason: EndReason::ProtocolBroken, detail: breach.to_string() });
        }
        self.link.lost(n_stream);
    }
}

#[async_trait]
impl LinkReceiver for LastingReceiver {
    async fn recv(&mut self) -> LinkEvent {
        loop {
            if let (Some(end), None) = (self.link.ended(), &self.inbox) {
                return LinkEvent::Ended(end);
            }
            match self.happens().await {
                Happened::Arrived => {
                    if let Some(inbox) = self.link.lock().incoming.take() {
                        self.inbox = Some(inbox);
                    }
                }
                // What the runner sent before comes first.
                Happened::Ended => self.drains_until = Some(Instant::now() + DRAIN_TIMEOUT),
                Happened::Received(Ok(Received::Frame(numbered))) => {
                    if self.link.passes(&numbered.frame) {
                        return LinkEvent::Frame(numbered);
                    }
                }
                Happened::Received(Ok(Received::Aside(aside))) => {
                    let n_stream = self.inbox.as_ref().map_or(0, |(n_stream, _)| *n_stream);
                    self.link.aside(n_stream, aside);
                }
                Happened::Received(Err(closed)) => self.closed(closed),
                Happened::TimedOut if self.drains_until.is_some() => self.inbox = None,
                Happened::TimedOut => self.link.end(SandboxEnd::new(EndReason::LinkLost)),
            }
        }
    }
}

async fn next(inbox: &mut Option<(u64, Inbox)>) -> Result<Received, Closed> {
    match inbox {
        Some((_, inbox)) => inbox.next().await,
        None => std::future::pending().await,
    }
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
