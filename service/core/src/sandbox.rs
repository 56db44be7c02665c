//! The port to sandboxes: get one for a session, talk to its runner, end it, learn why it ended.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, ProgramNumber, SandboxId, SessionId, TenantId};
use crate::link::{Addressed, Numbered};

/// Why a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxEnd {
    /// The reason.
    pub reason: EndReason,
    /// More, safe for the caller to read: a limit and its peak, a node's name.
    pub detail: String,
}

impl SandboxEnd {
    /// An end with nothing more to say.
    pub fn new(reason: EndReason) -> Self {
        Self { reason, detail: String::new() }
    }
}

/// The reasons for which sandboxes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndReason {
    /// The session ended it: it was closed.
    Released,
    /// The session ended it: no program ran for its idle time.
    Idle,
    /// The runner process ended by itself.
    RunnerExited,
    /// The link broke and did not come back in time.
    LinkLost,
    /// The service that owned a local sandbox stopped.
    ServiceStopped,
    /// Its memory ran out.
    OutOfMemory,
    /// The runner broke the link's protocol.
    ProtocolBroken,
    /// It reached its deadline.
    Deadline,
    /// Its runner did not do what it was asked in time.
    Unresponsive,
    /// A signal ended its runner.
    RunnerKilled,
    /// Its node was short of something, or it used more disk than it may.
    Evicted,
    /// Its node was drained.
    Drained,
    /// Something of higher priority needed its place.
    Preempted,
    /// Its node went away or no longer answers.
    NodeLost,
    /// Somebody else deleted its pod.
    PodDeleted,
    /// A way out of it opened that has to be closed.
    IsolationNotProven,
}

impl EndReason {
    /// The reason as it stands in events and [`crate::reasons`].
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Released => "RELEASED",
            EndReason::Idle => "IDLE",
            EndReason::RunnerExited => "RUNNER_EXITED",
            EndReason::LinkLost => "LINK_LOST",
            EndReason::ServiceStopped => "SERVICE_STOPPED",
            EndReason::OutOfMemory => "OUT_OF_MEMORY",
            EndReason::ProtocolBroken => "PROTOCOL_BROKEN",
            EndReason::Deadline => "DEADLINE",
            EndReason::Unresponsive => "UNRESPONSIVE",
            EndReason::RunnerKilled => "RUNNER_KILLED",
            EndReason::Evicted => "EVICTED",
            EndReason::Drained => "DRAINED",
            EndReason::Preempted => "PREEMPTED",
            EndReason::NodeLost => "NODE_LOST",
            EndReason::PodDeleted => "POD_DELETED",
            EndReason::IsolationNotProven => "ISOLATION_NOT_PROVEN",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a caller stands in line for a sandbox: 1 is next, 0 is in no line. The backend tells it while
/// a claim waits, and whoever has a clone can look at any time.
#[derive(Debug, Clone, Default)]
pub struct QueuePosition(Arc<AtomicU32>);

impl QueuePosition {
    /// Where the caller stands now.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Says where the caller stands.
    pub fn set(&self, position: usize) {
        self.0.store(u32::try_from(position).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// What a session needs of a sandbox.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Whom it is for.
    pub tenant: TenantId,
    /// The engine's name.
    pub engine: String,
    /// The memory a program may use, in bytes.
    pub memory_bytes: u64,
    /// How long the caller waits.
    pub wait: Duration,
    /// Where it stands in line while it waits.
    pub position: QueuePosition,
}

/// Why no sandbox could be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// None can be made here; the remedy says what to do.
    #[error("no sandbox can be made here: {message}; {remedy}")]
    Unavailable {
        /// What is missing.
        message: String,
        /// What to do about it.
        remedy: String,
    },
    /// All are in use and the caller's time is over.
    #[error("no sandbox became free within {waited:?}")]
    Exhausted {
        /// How long it waited.
        waited: Duration,
    },
    /// One was started and did not get ready.
    #[error("a sandbox was started and did not get ready: {message}")]
    StartFailed {
        /// What happened.
        message: String,
    },
    /// None was free, and the caller's time was over while it waited in line.
    #[error("no sandbox became free within {waited:?}; {} were ahead in line", .position - 1)]
    Queued {
        /// How long it waited.
        waited: Duration,
        /// Where it stood in line at the end: 1 is next.
        position: usize,
    },
    /// None is free, and as many callers wait as may.
    #[error("no sandbox is free and {n_waiting} callers wait for one already")]
    QueueFull {
        /// How many wait.
        n_waiting: usize,
    },
    /// No pool has what was asked for.
    #[error("no pool fits: {message}")]
    NoPool {
        /// What none has.
        message: String,
    },
    /// Something is in the way of what the caller waits for, and will not go away by waiting.
    #[error("a sandbox was asked for and can't start: {message}")]
    Blocked {
        /// What is in the way.
        reason: BlockReason,
        /// More, for people.
        message: String,
    },
    /// The backend is shutting down.
    #[error("the service is stopping")]
    Stopping,
}

/// What keeps a new sandbox from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockReason {
    /// Nodes can't get its image.
    ImagePullFailed,
    /// No node has room for it.
    Unschedulable,
    /// A quota is used up.
    QuotaExceeded,
    /// A way out is open that has to be closed.
    IsolationNotProven,
}

impl BlockReason {
    /// The reason as it stands in [`crate::reasons`].
    pub fn name(self) -> &'static str {
        match self {
            BlockReason::ImagePullFailed => "IMAGE_PULL_FAILED",
            BlockReason::Unschedulable => "UNSCHEDULABLE",
            BlockReason::QuotaExceeded => "QUOTA_EXCEEDED",
            BlockReason::IsolationNotProven => "ISOLATION_NOT_PROVEN",
        }
    }
}

/// A sandbox that a session had when an earlier start of the service ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeBack {
    /// The sandbox, as it stands in the session's record.
    pub sandbox: SandboxId,
    /// The session.
    pub session: SessionId,
    /// Whom it belongs to.
    pub tenant: TenantId,
    /// The engine's name.
    pub engine: String,
    /// The owner's new epoch.
    pub epoch: Epoch,
    /// The runner's frames up to this number are committed.
    pub acknowledged: u64,
}

/// What a runner that was taken back knows. Hostile like all that comes from a sandbox: it may only
/// be used to leave out what it says it has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resumed {
    /// The program that runs there.
    pub program: Option<ProgramNumber>,
    /// The highest number of a program that it was given; 0 for none.
    pub last_program: u64,
    /// Calls of the running program that were answered to it, in order.
    pub applied_calls: Vec<u64>,
}

/// The link to the runner is gone; [`LinkReceiver::recv`] says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the link to the runner is gone")]
pub struct LinkGone;

/// The end of a sandbox could not be proven in time. It is never used again, and the backend goes
/// on ending it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the end of the sandbox could not be proven: {message}")]
pub struct EndUnproven {
    /// What is known.
    pub message: String,
}

/// What comes over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// A frame.
    Frame(Numbered),
    /// The sandbox ended. Nothing follows; asking again says the same.
    Ended(SandboxEnd),
}

/// Sends frames to a runner.
#[async_trait]
pub trait LinkSender: Send + Sync {
    /// Queues a frame. Waits while the bounded queue is full.
    ///
    /// Cancel-safe: dropped before it is ready, nothing was sent.
    async fn send(&self, frame: Addressed) -> Result<(), LinkGone>;
}

/// Receives frames from a runner.
#[async_trait]
pub trait LinkReceiver: Send {
    /// The next frame, or why there are no more. Frames that came before the end come before it.
    ///
    /// Cancel-safe: nothing is lost when dropped.
    async fn recv(&mut self) -> LinkEvent;
}

/// Ends a sandbox.
#[async_trait]
pub trait SandboxHandle: Send + Sync {
    /// Ends the sandbox and everything in it, and waits at most `within` for the proof: the runner
    /// and all it started are gone. Idempotent; asked again it tells the truth of that moment.
    ///
    /// Cancel-safe: the end goes on when dropped.
    async fn end(&self, reason: EndReason, within: Duration) -> Result<(), EndUnproven>;

    /// The service leaves the sandbox as it is, to be taken back at its next start: dropping this
    /// ends nothing any more. Where [`SandboxBackend::outlives_service`] is false it changes nothing.
    fn leave(&self) {}
}

/// A sandbox that no one else has or will ever get.
pub struct Claimed {
    /// Its id, never assigned again.
    pub id: SandboxId,
    /// The interpreter's version, as the runner said.
    pub engine_version: String,
    /// To its runner.
    pub sender: Arc<dyn LinkSender>,
    /// From its runner.
    pub receiver: Box<dyn LinkReceiver>,
    /// Its end.
    pub handle: Arc<dyn SandboxHandle>,
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An engine that a backend's sandboxes have, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineStatus {
    /// The engine's name.
    pub name: String,
    /// The interpreter's version, or why it is unavailable and what to do.
    pub version: Result<String, String>,
}

/// Makes sandboxes.
#[async_trait]
pub trait SandboxBackend: Send + Sync {
    /// "local" or "kubernetes".
    fn name(&self) -> &'static str;

    /// The confinement in force, by name; what is missing is not listed.
    fn confinement(&self) -> Vec<String>;

    /// The engines.
    fn engines(&self) -> Vec<EngineStatus>;

    /// Gets a sandbox whose runner is connected and warm. It is not assigned yet: the caller
    /// records the sandbox as used and then sends [`crate::link::ToRunner::Assign`].
    ///
    /// While it waits in line the request's position says where; afterwards that is 0. It doesn't wait
    /// for what will not come in time: see [`ClaimError::Blocked`].
    ///
    /// Cancel-safe: a sandbox that was got for a dropped call is ended.
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ClaimError>;

    /// Whether sandboxes outlive the service: sessions get their runners back by
    /// [`SandboxBackend::take_back`] after a restart, and leave them when the service stops.
    fn outlives_service(&self) -> bool {
        false
    }

    /// Waits until the runner of a session that was assigned before this start of the service dials in
    /// again, and gives it back to its session; or says how its sandbox ended. The runner sends again
    /// what comes after `acknowledged`, the session what the runner doesn't have: all frames to a
    /// runner may be repeated. Assign isn't the session's to send again.
    ///
    /// A backend whose sandboxes end with the service, and only such a one, says so at once.
    ///
    /// Cancel-safe: a sandbox that was got for a dropped call is ended.
    async fn take_back(&self, request: TakeBack) -> Result<(Claimed, Resumed), SandboxEnd> {
        let _ = request;
        Err(SandboxEnd::new(EndReason::ServiceStopped))
    }

    /// How many sandboxes exist that no session holds and no pool keeps: must be 0.
    fn n_leaked(&self) -> usize;

    /// Refuses new claims and ends every sandbox, at most within `within`.
    async fn shutdown(&self, within: Duration);
}
