//! The calls of the active program: budget, concurrency window, fates.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::event::EventKind;
use crate::ids::{BlobId, CallId, ProgramNumber, SandboxId};
use crate::limits::Limits;
use crate::link::ToRunner;
use crate::program::{
    ArtifactRecord, CALLS_LISTED_MAX, CallError, CallRecord, CallState, LISTED_ARGUMENT_BYTES_MAX, Payload,
};
use crate::reasons;
use crate::time::Timestamp;

use super::programs::{Phase, StopCause};
use super::recovery::Results;
use super::{Action, CancelReason, Context, Dispatch, Machine};

/// How many calls past the budget are recorded one by one; more are only counted, so that a
/// program that loops on the refusal can't fill the log.
const REFUSED_RECORDED_MAX: u64 = 1_000;

/// A call that the broker allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedCall {
    /// The tool's canonical name.
    pub tool: String,
    /// The arguments as JSON text, defaults applied.
    pub arguments: String,
    /// The tool changes nothing.
    pub read_only: bool,
    /// The call may be made again, and runs ahead of the log.
    pub repeatable: bool,
    /// How long the provider has; none for the session's limit.
    pub timeout: Option<Duration>,
}

/// How a dispatched call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It gave a value: checked JSON text.
    Finished(String),
    /// It failed in a way the program may see.
    Failed(CallError),
    /// Its provider failed unexpectedly: the program ends (D10). The text goes to the log only.
    Broken {
        /// Names the log line.
        correlation: String,
    },
    /// No provider ever had it.
    NotStarted(CallError),
    /// A provider had it and nobody can tell what it did.
    Unknown(CallError),
}

#[derive(Debug, Clone)]
struct Open {
    record: CallRecord,
    repeatable: bool,
    timeout: Duration,
    arguments: String,
}

/// The calls of one program.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The first calls, as they are now.
    listed: Vec<CallRecord>,
    listed_argument_bytes: usize,
    /// Calls that have not ended.
    open: BTreeMap<u64, Open>,
    line: VecDeque<u64>,
    n_at_work: usize,
    n_made: u64,
    n_dispatched: u64,
    artifacts: Vec<ArtifactRecord>,
    artifact_bytes: u64,
    /// The blob of every artifact, by the digest of all that it is (P5).
    artifact_blobs: BTreeMap<ArtifactDigest, BlobId>,
    /// What a runner that is awaited may not have.
    pub(super) results: Results,
}

impl Calls {
    pub(super) fn listed(&self) -> Vec<CallRecord> {
        self.listed.clone()
    }

    pub(super) fn n_made(&self) -> u64 {
        self.n_made
    }

    pub(super) fn n_dispatched(&self) -> u64 {
        self.n_dispatched
    }

    pub(super) fn artifacts(&self) -> Vec<ArtifactRecord> {
        self.artifacts.clone()
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Calls of tools that may have had an effect, in order.
    pub(super) fn effective(&self) -> Vec<CallId> {
        let effective = |call: &&CallRecord| {
            !call.read_only && call.dispatched_at.is_some() && call.state != CallState::NotStarted
        };
        self.listed.iter().filter(effective).map(|call| call.id).collect()
    }

    fn list(&mut self, record: &CallRecord) {
        let index = usize::try_from(record.id.number - 1).unwrap_or(usize::MAX);
        if index >= CALLS_LISTED_MAX {
            return;
        }
        match self.listed.get_mut(index) {
            Some(listed) => {
                let arguments = std::mem::replace(&mut listed.arguments, Payload::Omitted { bytes: 0 });
                *listed = CallRecord { arguments, ..record.clone() };
            }
            None => {
                let mut listed = record.clone();
                if let Payload::Inline(text) = &listed.arguments {
                    if self.listed_argument_bytes + text.len() > LISTED_ARGUMENT_BYTES_MAX {
                        listed.arguments = Payload::Omitted { bytes: text.len() as u64 };
                    } else {
                        self.listed_argument_bytes += text.len();
                    }
                }
                self.listed.push(listed);
            }
        }
    }

    /// Puts a recorded event into place, for a session that is taken over.
    pub(super) fn replay(&mut self, kind: &EventKind, at: Timestamp, timeout: Duration) {
        match kind {
            EventKind::CallMade(record) => {
                self.n_made += 1;
                self.n_dispatched += u64::from(record.dispatched_at.is_some());
                self.list(record);
                if !record.state.is_final() {
                    let arguments = match &record.arguments {
                        Payload::Inline(text) => text.clone(),
                        Payload::Blob { .. } | Payload::Omitted { .. } => String::new(),
                    };
                    // Whether it may be made again is the catalog's to say, which is not here.
                    let open = Open { record: record.clone(), repeatable: false, timeout, arguments };
                    match record.state {
                        CallState::Queued => self.line.push_back(record.id.number),
                        _ => self.n_at_work += 1,
                    }
                    self.open.insert(record.id.number, open);
                }
            }
            EventKind::CallDispatched { call } => {
                if let Some(open) = self.open.get_mut(call) {
                    open.record.state = CallState::Dispatched;
                    open.record.dispatched_at = Some(at);
                    self.n_dispatched += 1;
                    self.n_at_work += 1;
                    self.line.retain(|number| number != call);
                    let record = open.record.clone();
                    self.list(&record);
                }
            }
            EventKind::CallEnded { record, .. } => {
                if let Some(open) = self.open.remove(&record.id.number)
                    && open.record.state == CallState::Dispatched
                {
                    self.n_at_work -= 1;
                }
                self.line.retain(|number| *number != record.id.number);
                self.list(record);
            }
            EventKind::Artifact(artifact) => {
                self.artifact_bytes += artifact.bytes;
                self.artifacts.push(artifact.clone());
            }
            _ => {}
        }
    }

    /// The calls that were dispatched and have not ended, to have them answered by whoever has them.
    pub(super) fn dispatched_again(&mut self) -> Vec<Dispatch> {
        let dispatched = |open: &&mut Open| open.record.state == CallState::Dispatched;
        let again = self.open.values_mut().filter(dispatched);
        again.map(|open| Dispatch { maybe_seen: true, ..dispatch(open) }).collect()
    }
}

impl Machine {
    /// The program calls a tool; the broker has checked it. `arguments` is what the program wrote,
    /// for the record of a call that is refused.
    #[expect(clippy::too_many_arguments, reason = "a frame's fields and the broker's verdict on them")]
    pub fn tool_call(
        &mut self,
        ctx: &mut Context<'_>,
        sandbox: SandboxId,
        frame_number: u64,
        program: ProgramNumber,
        call: u64,
        tool: &str,
        arguments: String,
        checked: Result<CheckedCall, CallError>,
    ) {
        if self.sandbox.id() != Some(sandbox) {
            return;
        }
        self.acknowledge(sandbox, frame_number);
        let Some(active) = self.active.as_mut().filter(|active| active.record.number == program) else {
            return;
        };
        match active.phase {
            Phase::Running => {}
            Phase::Stopping { .. } => return,
            Phase::Queued | Phase::Starting { .. } => {
                return self.breach(ctx, "a tool call came before the program's start");
            }
        }
        if call != active.calls.n_made + 1 {
            return self.breach(ctx, "call numbers do not rise by one");
        }
        active.calls.n_made = call;
        if active.calls.open.len() as u64 >= active.run.limits.pending_calls {
            return self.stop_active(ctx, StopCause::CallLimit);
        }
        let over_budget = call > active.run.limits.max_calls;
        let checked = if over_budget { Err(over_max_calls(&active.run.limits)) } else { checked };
        let id = CallId { session: self.record.id, program, number: call };
        match checked {
            Err(error) => self.refuse_call(ctx, id, tool, arguments, error),
            Ok(checked) => self.accept_call(ctx, id, checked),
        }
    }

    fn refuse_call(
        &mut self,
        ctx: &mut Context<'_>,
        id: CallId,
        tool: &str,
        arguments: String,
        error: CallError,
    ) {
        let Some(active) = self.active.as_ref() else { return };
        if id.number <= active.run.limits.max_calls.saturating_add(REFUSED_RECORDED_MAX) {
            let arguments = self.payload(ctx, arguments);
            let record = CallRecord {
                id,
                tool: tool.chars().take(crate::catalog::TOOL_NAME_CHARS_MAX).collect(),
                state: CallState::Failed,
                arguments,
                error: Some(error.clone()),
                read_only: false,
                created_at: ctx.now,
                dispatched_at: None,
                ended_at: Some(ctx.now),
            };
            self.list_call(&record);
            self.event(ctx, Some(id.program), EventKind::CallMade(record));
        }
        self.step.now.push(deliver(id, Err(error)));
    }

    fn accept_call(&mut self, ctx: &mut Context<'_>, id: CallId, checked: CheckedCall) {
        let Some(active) = self.active.as_mut() else { return };
        let limits = &active.run.limits;
        let timeout = checked.timeout.unwrap_or(Duration::from_millis(limits.call_timeout_ms));
        let free = (active.calls.n_at_work as u64) < limits.max_concurrency && active.calls.line.is_empty();
        let mut open = Open {
            record: CallRecord {
                id,
                tool: checked.tool,
                state: CallState::Queued,
                arguments: Payload::Omitted { bytes: 0 },
                error: None,
                read_only: checked.read_only,
                created_at: ctx.now,
                dispatched_at: None,
                ended_at: None,
            },
            repeatable: checked.repeatable,
            timeout,
            arguments: checked.arguments,
        };
        open.record.arguments = self.payload(ctx, open.arguments.clone());
        let dispatch = free.then(|| mark_dispatched(&mut open, ctx.now));
        let record = open.record.clone();
        self.event(ctx, Some(id.program), EventKind::CallMade(record.clone()));
        let Some(active) = self.active.as_mut() else { return };
        active.calls.list(&record);
        let repeatable = open.repeatable;
        active.calls.open.insert(id.number, open);
        match dispatch {
            Some(dispatch) => {
                active.calls.n_at_work += 1;
                active.calls.n_dispatched += 1;
                self.when(repeatable, Action::Dispatch(dispatch));
            }
            None => active.calls.line.push_back(id.number),
        }
    }

    /// The tool of a call that has not ended.
    pub fn tool_of(&self, id: CallId) -> Option<&str> {
        let active = self.active.as_ref().filter(|active| active.record.number == id.program)?;
        active.calls.open.get(&id.number).map(|open| open.record.tool.as_str())
    }

    /// A dispatched call ended. `artifacts` are name, media type and bytes of what it left behind.
    /// An answer to a call that has ended is dropped (I12, K14).
    pub fn answered(
        &mut self,
        ctx: &mut Context<'_>,
        id: CallId,
        outcome: Outcome,
        artifacts: Vec<(String, String, Bytes)>,
    ) {
        let Some(open) = self.take_dispatched(id) else { return };
        let outcome = match self.keep_artifacts(ctx, id, artifacts) {
            Ok(()) => outcome,
            Err(error) => Outcome::Failed(error),
        };
        let broken = match &outcome {
            Outcome::Broken { correlation } => Some(correlation.clone()),
            _ => None,
        };
        let (state, error, value) = parts(outcome);
        let result = match (&value, &error) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(CallError::new(reasons::OUTCOME_UNKNOWN, "the call gave no result")),
        };
        let value = value.map(|value| self.payload(ctx, value));
        self.end_call(ctx, open.record, state, error, value);
        self.step.committed.push(Action::CallRecorded(id));
        match broken {
            Some(correlation) => self.stop_active(ctx, StopCause::Broken { correlation }),
            None => self.when(open.repeatable, deliver(id, result)),
        }
        self.dispatch_next(ctx);
    }

    pub(super) fn cancel_by_program(&mut self, ctx: &mut Context<'_>, program: ProgramNumber, call: u64) {
        let Some(active) = self.active.as_mut().filter(|active| active.record.number == program) else {
            return;
        };
        let Some(open) = active.calls.open.remove(&call) else { return };
        active.calls.line.retain(|number| *number != call);
        let id = open.record.id;
        let state = self.fate_of_cancelled(&open.record);
        if state == CallState::Cancelled {
            self.when(open.repeatable, Action::CancelCall { id, reason: CancelReason::Aborted });
        }
        let error = CallError::new(reasons::CANCELLED, "the program aborted the call");
        self.end_call(ctx, open.record, state, Some(error), None);
        self.dispatch_next(ctx);
    }

    /// Ends every call that has not ended: dispatched ones get `dispatched`, the others never started.
    pub(super) fn end_open_calls(
        &mut self,
        ctx: &mut Context<'_>,
        dispatched: CallState,
        reason: CancelReason,
    ) {
        let Some(active) = self.active.as_mut() else { return };
        active.calls.line.clear();
        active.calls.n_at_work = 0;
        for (_, open) in std::mem::take(&mut active.calls.open) {
            let id = open.record.id;
            let state = match open.record.state {
                CallState::Dispatched => dispatched,
                _ => CallState::NotStarted,
            };
            if state == dispatched {
                self.when(open.repeatable, Action::CancelCall { id, reason });
            }
            self.end_call(ctx, open.record, state, None, None);
        }
    }

    fn fate_of_cancelled(&mut self, record: &CallRecord) -> CallState {
        let Some(active) = self.active.as_mut() else { return CallState::NotStarted };
        if record.state != CallState::Dispatched {
            return CallState::NotStarted;
        }
        active.calls.n_at_work -= 1;
        CallState::Cancelled
    }

    fn take_dispatched(&mut self, id: CallId) -> Option<Open> {
        let active = self.active.as_mut().filter(|active| active.record.number == id.program)?;
        let open = active.calls.open.get(&id.number)?;
        if id.session != self.record.id || open.record.state != CallState::Dispatched {
            return None;
        }
        active.calls.n_at_work -= 1;
        active.calls.open.remove(&id.number)
    }

    fn end_call(
        &mut self,
        ctx: &mut Context<'_>,
        mut record: CallRecord,
        state: CallState,
        error: Option<CallError>,
        value: Option<Payload>,
    ) {
        record.state = state;
        record.error = error;
        record.ended_at = Some(ctx.now);
        self.list_call(&record);
        self.event(ctx, Some(record.id.program), EventKind::CallEnded { record, value });
    }

    pub(super) fn dispatch_next(&mut self, ctx: &mut Context<'_>) {
        while let Some(dispatch) = self.next_in_line(ctx.now) {
            let (id, repeatable) = (dispatch.id, dispatch.repeatable);
            self.event(ctx, Some(id.program), EventKind::CallDispatched { call: id.number });
            self.when(repeatable, Action::Dispatch(dispatch));
        }
    }

    fn next_in_line(&mut self, now: Timestamp) -> Option<Dispatch> {
        let active = self.active.as_mut()?;
        if active.phase != Phase::Running
            || active.calls.n_at_work as u64 >= active.run.limits.max_concurrency
        {
            return None;
        }
        let number = active.calls.line.pop_front()?;
        let open = active.calls.open.get_mut(&number).expect("a call in line has not ended");
        let dispatch = mark_dispatched(open, now);
        let record = open.record.clone();
        active.calls.list(&record);
        active.calls.n_at_work += 1;
        active.calls.n_dispatched += 1;
        Some(dispatch)
    }

    fn keep_artifacts(
        &mut self,
        ctx: &mut Context<'_>,
        id: CallId,
        artifacts: Vec<(String, String, Bytes)>,
    ) -> Result<(), CallError> {
        let Some(active) = self.active.as_mut() else { return Ok(()) };
        let bytes: u64 = artifacts.iter().map(|(_, _, data)| data.len() as u64).sum();
        check_artifacts(&active.run.limits, &active.calls, &artifacts, bytes)?;
        active.calls.artifact_bytes += bytes;
        for (name, media_type, data) in artifacts {
            let bytes = data.len() as u64;
            let blob = self.artifact_blob(ctx, &name, &media_type, data);
            let record = ArtifactRecord { blob, name, media_type, bytes, call: id };
            self.event(ctx, Some(id.program), EventKind::Artifact(record.clone()));
            if let Some(active) = self.active.as_mut() {
                active.calls.artifacts.push(record);
            }
        }
        Ok(())
    }

    /// The blob of an artifact. Equal bytes with an equal name and type are kept once in a program.
    fn artifact_blob(&mut self, ctx: &mut Context<'_>, name: &str, media_type: &str, data: Bytes) -> BlobId {
        let digest = ArtifactDigest::of(name, media_type, &data);
        if let Some(blob) = self.active.as_ref().and_then(|active| active.calls.artifact_blobs.get(&digest)) {
            return *blob;
        }
        let blob = self.blob(ctx, media_type, data);
        if let Some(active) = self.active.as_mut() {
            active.calls.artifact_blobs.insert(digest, blob);
        }
        blob
    }

    fn list_call(&mut self, record: &CallRecord) {
        if let Some(active) = self.active.as_mut() {
            active.calls.list(record);
        }
    }

    /// Does an action at once when it may run ahead of the log, else after the commit. An order to
    /// cancel takes the same way as the dispatch, so that it never passes it.
    fn when(&mut self, ahead: bool, action: Action) {
        let list = if ahead { &mut self.step.now } else { &mut self.step.committed };
        list.push(action);
    }
}

/// The digest of all that an artifact is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ArtifactDigest([u8; 32]);

impl ArtifactDigest {
    fn of(name: &str, media_type: &str, data: &[u8]) -> Self {
        use sha2::{Digest, Sha256};
        let mut digest = Sha256::new();
        for part in [name.as_bytes(), media_type.as_bytes(), data] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }
}

fn mark_dispatched(open: &mut Open, now: Timestamp) -> Dispatch {
    open.record.state = CallState::Dispatched;
    open.record.dispatched_at = Some(now);
    dispatch(open)
}

fn dispatch(open: &mut Open) -> Dispatch {
    Dispatch {
        id: open.record.id,
        tool: open.record.tool.clone(),
        arguments: std::mem::take(&mut open.arguments),
        timeout: open.timeout,
        repeatable: open.repeatable,
        maybe_seen: false,
    }
}

fn deliver(id: CallId, result: Result<String, CallError>) -> Action {
    Action::Send(ToRunner::CallResult { program: id.program, call: id.number, result })
}

fn parts(outcome: Outcome) -> (CallState, Option<CallError>, Option<String>) {
    match outcome {
        Outcome::Finished(value) => (CallState::Finished, None, Some(value)),
        Outcome::Failed(error) => (CallState::Failed, Some(error), None),
        Outcome::NotStarted(error) => (CallState::NotStarted, Some(error), None),
        Outcome::Unknown(error) => (CallState::OutcomeUnknown, Some(error), None),
        Outcome::Broken { correlation } => {
            let message = format!("the tool failed unexpectedly; correlation id {correlation}");
            (CallState::Failed, Some(CallError::new(reasons::INTERNAL_PROGRAM, message)), None)
        }
    }
}

fn over_max_calls(limits: &Limits) -> CallError {
    let message = format!("the program may make {} tool calls and has made them", limits.max_calls);
    CallError::new(reasons::CALL_LIMIT, message)
}

fn check_artifacts(
    limits: &Limits,
    calls: &Calls,
    new: &[(String, String, Bytes)],
    new_bytes: u64,
) -> Result<(), CallError> {
    let over = |message: String| Err(CallError::new(reasons::ARTIFACT_LIMIT, message));
    if (calls.artifacts.len() + new.len()) as u64 > limits.max_artifacts {
        return over(format!("the program may leave {} artifacts", limits.max_artifacts));
    }
    if calls.artifact_bytes + new_bytes > limits.artifacts_bytes {
        return over(format!("the program's artifacts may have {} bytes in all", limits.artifacts_bytes));
    }
    match new.iter().find(|(_, _, data)| data.len() as u64 > limits.artifact_bytes) {
        Some((name, _, data)) => over(format!(
            "artifact {name:?} has {} bytes, over the limit of {}",
            data.len(),
            limits.artifact_bytes
        )),
        None => Ok(()),
    }
}
