//! What a session's task shares with its callers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use seance_core::event::Event;
use seance_core::ids::{EventSeq, ProgramNumber, SessionId, TenantId};
use seance_core::machine::Execute;
use seance_core::program::{CallRecord, ProgramRecord};
use seance_core::sandbox::QueuePosition;
use seance_core::session::SessionRecord;
use seance_core::store::DoneRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::error::Error;
use crate::log::Tail;
use crate::once::OnceGuard;
use crate::prepare::Prepared;

/// Commands that wait for a session's task. More make their callers wait.
pub(crate) const COMMANDS_MAX: usize = 16;

/// Held by the one control that is at work (A12).
pub(crate) type ControlGuard = OwnedSemaphorePermit;

/// An answer to one command.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Which program was accepted, and where its events begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accepted {
    pub(crate) program: ProgramNumber,
    pub(crate) first: EventSeq,
}

/// The active program at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) program: ProgramRecord,
    pub(crate) pending: Vec<CallRecord>,
    /// Some pending call is served by nobody.
    pub(crate) needs_answer: bool,
    /// The last event that was committed before it.
    pub(crate) last: EventSeq,
}

/// What became of a new session's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Its runner has not answered.
    Awaited,
    /// Its runner has taken the session.
    Ready,
    /// It is gone.
    Gone,
}

/// What callers ask of a session's task.
pub(crate) enum Command {
    Execute {
        run: Box<Execute>,
        prepared: Option<Arc<Prepared>>,
        /// Its outcome is the program's number, which the machine gives.
        done: Option<Box<(DoneRequest, OnceGuard)>>,
        span: tracing::Span,
        reply: Reply<Accepted>,
    },
    Stop {
        program: Option<ProgramNumber>,
        reason: &'static str,
        reply: Reply<ProgramNumber>,
    },
    Close {
        reason: &'static str,
        reply: Reply<SessionRecord>,
    },
    Observed {
        program: ProgramNumber,
        up_to: EventSeq,
    },
    /// The active program; none when it is not active (any more).
    Snapshot {
        program: ProgramNumber,
        reply: Reply<Option<Snapshot>>,
    },
    /// The service stops: the sandbox ends, the session stays.
    Leave {
        reply: oneshot::Sender<()>,
    },
}

/// A session whose task runs.
pub(crate) struct Shared {
    pub(crate) tenant: TenantId,
    pub(crate) id: SessionId,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) tail: Arc<Tail>,
    /// The record as it was last committed.
    pub(crate) record: watch::Sender<Arc<SessionRecord>>,
    /// The newest observation that callers were given; the record follows with its commit.
    observed: Mutex<Option<(ProgramNumber, EventSeq)>>,
    /// The newest program of which a caller was told how it ended. The end of a program that an
    /// earlier start of the service ran is news.
    told: AtomicU64,
    /// Where the session stands in line for a sandbox.
    pub(crate) queue_position: QueuePosition,
    control: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(record: &SessionRecord, commands: mpsc::Sender<Command>) -> Self {
        Self {
            tenant: record.tenant.clone(),
            id: record.id,
            commands,
            tail: Arc::new(Tail::new(record.last_seq)),
            record: watch::Sender::new(Arc::new(record.clone())),
            observed: Mutex::new(record.observed),
            told: AtomicU64::new(record.active_program.map_or(record.last_program, |active| active.0 - 1)),
            queue_position: QueuePosition::default(),
            control: Arc::new(Semaphore::new(1)),
        }
    }

    /// Takes the control, if no one has it.
    pub(crate) fn control(&self) -> Result<ControlGuard, Error> {
        self.control.clone().try_acquire_owned().map_err(|_| Error::ControlActive {
            session: self.id,
            note: "; it goes on, and this one changed nothing",
        })
    }

    /// Sends a command and waits for its answer; [`Error::Stopping`] when the task is over.
    ///
    /// Cancel-safe: a command that was sent is done as a whole.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Error::Stopping)?;
        answer.await.map_err(|_| Error::Stopping)?
    }

    /// The newest observation that callers were given.
    pub(crate) fn observed(&self) -> Option<(ProgramNumber, EventSeq)> {
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest program, where it has ended and no caller was told how (case 54, I5).
    pub(crate) fn news(&self) -> Option<ProgramNumber> {
        let newest = self.record.borrow().last_program;
        (newest > self.told.load(Ordering::Acquire)).then_some(ProgramNumber(newest))
    }

    /// A caller is told how a program ended.
    pub(crate) fn set_told(&self, program: ProgramNumber) {
        self.told.fetch_max(program.0, Ordering::AcqRel);
    }

    /// A caller is given an observation: the next one without a cursor goes on behind it.
    pub(crate) fn set_observed(&self, program: ProgramNumber, up_to: EventSeq) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        *observed = (*observed).max(Some((program, up_to)));
    }

    /// Publishes what was committed.
    pub(crate) fn committed(&self, events: Vec<Event>, record: Option<Arc<SessionRecord>>) {
        if let Some(record) = record {
            self.record.send_replace(record);
        }
        self.tail.publish(events);
    }
}
