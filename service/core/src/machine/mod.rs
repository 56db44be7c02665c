//! The session machine: what happens to a session, with no IO.
//!
//! Every input is a method. It changes the machine and leaves a [`Step`]: events to commit, actions
//! to do at once, and actions that wait for the commit (DESIGN section 9 says which). Time and
//! randomness come in with the input. A refused input is a [`Refusal`] and leaves nothing.
//!
//! What the machine does *not* know: sockets, stores, tasks, protos, schemas, languages.

mod calls;
mod endings;
mod programs;
mod recovery;
mod sandboxes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::{Event, EventKind};
use crate::ids::{CallId, CatalogDigest, EventSeq, ProgramNumber, SandboxId};
use crate::link::ToRunner;
use crate::program::{INLINE_BYTES_MAX, Payload, ProgramRecord};
use crate::reasons;
use crate::sandbox::EndReason;
use crate::session::{SessionRecord, SessionState};
use crate::store::NewBlob;
use crate::time::Timestamp;

use programs::Active;
use sandboxes::Sandbox;

pub use calls::{CheckedCall, Outcome};
pub use programs::Execute;

/// How long a runner may take to accept its session, and a program to start.
pub const RUNNER_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What an input brings from outside.
pub struct Context<'a> {
    /// Now.
    pub now: Timestamp,
    /// Fresh random bytes for ids.
    pub random: &'a mut (dyn FnMut() -> [u8; 10] + Send),
}

/// Why a call's provider is told to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The program was stopped, or ended otherwise.
    Stopped,
    /// The program aborted the call.
    Aborted,
    /// The session was closed.
    SessionClosed,
}

/// A call to get answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    /// The call.
    pub id: CallId,
    /// The tool's canonical name.
    pub tool: String,
    /// The checked arguments as JSON text.
    pub arguments: String,
    /// How long the provider has.
    pub timeout: Duration,
    /// Whether the call may be made again.
    pub repeatable: bool,
    /// A provider may have it already, from an earlier start of the service.
    pub maybe_seen: bool,
}

/// Something to do in the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Get a sandbox; answer with `sandbox_claimed` or `claim_failed`.
    Claim,
    /// Send a catalog to the runner of the sandbox in use.
    SendCatalog(CatalogDigest),
    /// Send a frame to the runner of the sandbox in use.
    Send(ToRunner),
    /// End a sandbox; answer with `end_proven` or `end_unproven`.
    EndSandbox {
        /// Which.
        sandbox: SandboxId,
        /// Why.
        reason: EndReason,
    },
    /// Get a call answered; answer with `answered`.
    Dispatch(Dispatch),
    /// Tell a call's provider to give up.
    CancelCall {
        /// The call.
        id: CallId,
        /// Why.
        reason: CancelReason,
    },
    /// Tell a call's provider that its result is recorded.
    CallRecorded(CallId),
}

/// What an input leaves to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Events to commit, in order.
    pub events: Vec<Event>,
    /// Programs that changed.
    pub programs: Vec<ProgramRecord>,
    /// Blobs that the events name.
    pub blobs: Vec<NewBlob>,
    /// The session's record changed in more than its last event.
    pub record_changed: bool,
    /// A sandbox that is used from this commit on.
    pub uses_sandbox: Option<SandboxId>,
    /// The runner's frames up to this number are in these events.
    pub acknowledges: Option<(SandboxId, u64)>,
    /// To do at once, in order.
    pub now: Vec<Action>,
    /// To do after the commit, in order.
    pub committed: Vec<Action>,
}

impl Step {
    /// Whether there is something to commit.
    pub fn commits(&self) -> bool {
        !self.events.is_empty() || self.record_changed || self.acknowledges.is_some()
    }
}

/// Why an input was refused. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A program is queued or runs (A9).
    #[error("program {program} of this session is active; wait for it or stop it")]
    ProgramActive { program: ProgramNumber },
    /// No program is queued or runs, and none was named (A8).
    #[error("no program of this session is active")]
    NoActiveProgram,
    /// The session has no such program.
    #[error("this session has no program {program}")]
    NoSuchProgram { program: ProgramNumber },
    /// The session is closing or closed (A19).
    #[error("session {session} is closed")]
    Closed { session: crate::ids::SessionId },
    /// The session reached its end of life.
    #[error("session {session} has reached its session_ttl")]
    Expired { session: crate::ids::SessionId },
}

impl Refusal {
    /// The reason in the table.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::ProgramActive { .. } => reasons::PROGRAM_ACTIVE,
            Refusal::NoActiveProgram => reasons::NO_ACTIVE_PROGRAM,
            Refusal::NoSuchProgram { .. } => reasons::PROGRAM_NOT_FOUND,
            Refusal::Closed { .. } => reasons::SESSION_CLOSED,
            Refusal::Expired { .. } => reasons::SESSION_EXPIRED,
        }
    }
}

/// What became of a request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// The program is being ended; an event will tell.
    Asked(ProgramNumber),
    /// It had ended before.
    AlreadyEnded(ProgramNumber),
}

/// A session.
#[derive(Debug)]
pub struct Machine {
    record: SessionRecord,
    sandbox: Sandbox,
    /// Sandboxes whose end was asked for and is not proven.
    unproven: BTreeMap<SandboxId, EndReason>,
    active: Option<Active>,
    idle_since: Timestamp,
    step: Step,
}

impl Machine {
    /// A new session that has just claimed a sandbox. The record is as the caller made it, with no
    /// event yet.
    pub fn open(
        record: SessionRecord,
        sandbox: SandboxId,
        engine_version: &str,
        ctx: &mut Context<'_>,
    ) -> Self {
        let engine = record.engine.clone();
        let mut machine = Self::with(record, ctx.now);
        machine.event(ctx, None, EventKind::SessionOpened { engine });
        machine.sandbox = Sandbox::Claiming;
        machine.sandbox_claimed(ctx, sandbox, engine_version);
        machine
    }

    fn with(record: SessionRecord, now: Timestamp) -> Self {
        Self {
            record,
            sandbox: Sandbox::None,
            unproven: BTreeMap::new(),
            active: None,
            idle_since: now,
            step: Step::default(),
        }
    }

    /// The session as it is now.
    pub fn record(&self) -> &SessionRecord {
        &self.record
    }

    /// Takes what the inputs since the last call left to be done.
    pub fn take_step(&mut self) -> Step {
        std::mem::take(&mut self.step)
    }

    /// The active program as it is now.
    pub fn active(&self) -> Option<ProgramRecord> {
        self.active.as_ref().map(Active::snapshot)
    }

    /// The active program's catalog.
    pub fn active_catalog(&self) -> Option<(ProgramNumber, Option<&CatalogDigest>)> {
        self.active.as_ref().map(|active| (active.record.number, active.record.catalog.as_ref()))
    }

    /// The limits of the active program.
    pub fn active_limits(&self) -> Option<&crate::limits::Limits> {
        self.active.as_ref().map(|active| &active.run.limits)
    }

    /// Whether the session's end is proven.
    pub fn is_closed(&self) -> bool {
        self.record.state == SessionState::Closed
    }

    /// Closes the session: its program ends, its sandbox too. Asked again while the end is not
    /// proven, it asks for the end again (A15, A16).
    pub fn close(&mut self, ctx: &mut Context<'_>, reason: &str) {
        match self.record.state {
            SessionState::Closed => {}
            SessionState::Closing => {
                for (sandbox, reason) in self.unproven.clone() {
                    self.step.now.push(Action::EndSandbox { sandbox, reason });
                }
            }
            SessionState::Open => {
                self.record.state = SessionState::Closing;
                self.record.reason = reason.to_owned();
                self.step.record_changed = true;
                self.event(ctx, None, EventKind::SessionClosing { reason: reason.to_owned() });
                self.terminate_for_close(ctx);
                self.end_sandbox(ctx, EndReason::Released);
                self.close_when_proven(ctx);
            }
        }
    }

    /// A caller observed a program up to an event.
    pub fn observed(&mut self, ctx: &mut Context<'_>, program: ProgramNumber, up_to: EventSeq) {
        let newer = self.record.observed.is_none_or(|seen| seen < (program, up_to));
        if self.record.state == SessionState::Closed || !newer || up_to > self.record.last_seq {
            return;
        }
        self.record.observed = Some((program, up_to));
        self.step.record_changed = true;
        self.event(ctx, Some(program), EventKind::Observed { up_to });
    }

    /// When [`Machine::tick`] has something to do, if nothing else happens.
    pub fn next_tick(&self) -> Option<Timestamp> {
        if self.record.state != SessionState::Open {
            return None;
        }
        let mut next = self.record.expires_at;
        if let Some(at) = self.sandbox_deadline() {
            next = next.min(at);
        }
        if let Some(at) = self.active.as_ref().and_then(Active::deadline) {
            next = next.min(at);
        }
        Some(next)
    }

    /// Does what is due: limits of the program, idle sandboxes, the session's own end.
    pub fn tick(&mut self, ctx: &mut Context<'_>) {
        if self.record.state != SessionState::Open {
            return;
        }
        self.tick_program(ctx);
        self.tick_sandbox(ctx);
        if ctx.now >= self.record.expires_at {
            self.close(ctx, reasons::SESSION_TTL);
        }
    }

    /// The end of a sandbox is proven.
    pub fn end_proven(&mut self, ctx: &mut Context<'_>, sandbox: SandboxId) {
        if self.unproven.remove(&sandbox).is_some() {
            self.close_when_proven(ctx);
        }
    }

    /// Whether the proof of some sandbox's end is still out.
    pub fn awaits_proof(&self) -> bool {
        !self.unproven.is_empty()
    }

    fn close_when_proven(&mut self, ctx: &mut Context<'_>) {
        if self.record.state == SessionState::Closing && self.unproven.is_empty() {
            self.record.state = SessionState::Closed;
            self.step.record_changed = true;
            self.event(ctx, None, EventKind::SessionClosed);
        }
    }

    fn refuse_unless_open(&self, now: Timestamp) -> Result<(), Refusal> {
        let session = self.record.id;
        let expired = self.record.reason == reasons::SESSION_TTL;
        match self.record.state {
            SessionState::Open if now < self.record.expires_at => Ok(()),
            SessionState::Open => Err(Refusal::Expired { session }),
            SessionState::Closing | SessionState::Closed if expired => Err(Refusal::Expired { session }),
            SessionState::Closing | SessionState::Closed => Err(Refusal::Closed { session }),
        }
    }

    fn event(&mut self, ctx: &mut Context<'_>, program: Option<ProgramNumber>, kind: EventKind) -> EventSeq {
        let seq = self.record.last_seq.next();
        self.record.last_seq = seq;
        self.step.events.push(Event { seq, at: ctx.now, program, kind });
        seq
    }

    fn payload(&mut self, ctx: &mut Context<'_>, text: String) -> Payload {
        if text.len() <= INLINE_BYTES_MAX {
            return Payload::Inline(text);
        }
        let bytes = text.len() as u64;
        let id = self.blob(ctx, "application/json", text.into());
        Payload::Blob { id, bytes }
    }

    fn blob(&mut self, ctx: &mut Context<'_>, media_type: &str, data: bytes::Bytes) -> crate::ids::BlobId {
        let id = crate::ids::BlobId::mint(ctx.now, (ctx.random)());
        self.step.blobs.push(NewBlob { id, media_type: media_type.to_owned(), data });
        id
    }
}
