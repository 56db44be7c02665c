//! The active program: accepted, started, observed, ended.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::event::{EventKind, OutputSource};
use crate::ids::{CatalogDigest, EventSeq, ProgramNumber};
use crate::limits::Limits;
use crate::link::{HostEnd, HostEnded, HostReport, RunProgram, ToRunner};
use crate::program::{
    CallState, ProgramError, ProgramRecord, ProgramState, Usage, ValueCut, ValueRecord, Warning,
};
use crate::reasons;
use crate::sandbox::{EndReason, SandboxEnd};
use crate::session::SessionRecord;
use crate::text::{piece_bytes, truncate_bytes};
use crate::time::Timestamp;
use crate::value::{self, Bounds, JsonText};

use super::calls::Calls;
use super::endings::{Ending, clean_error, clean_warnings, no_value, unreported};
use super::sandboxes::Sandbox;
use super::{Action, CancelReason, Context, Machine, RUNNER_ANSWER_TIMEOUT, Refusal, Stopping};

/// The longest class, code or key that is kept, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 256;
/// Output in one event, in bytes; more is several events, so that none is too large to send.
const OUTPUT_EVENT_BYTES_MAX: usize = 256 * 1024;
/// How long the service lets the runner hold the wall limit before it does so itself.
const WALL_GRACE: std::time::Duration = std::time::Duration::from_millis(250);

/// A program to run, checked at the edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execute {
    /// The language.
    pub language: String,
    /// The source.
    pub source: String,
    /// The file name that errors show.
    pub source_name: String,
    /// The catalog.
    pub catalog: Option<CatalogDigest>,
    /// The inputs as JSON text.
    pub inputs: Option<String>,
    /// The limits.
    pub limits: Limits,
    /// Leave the source out of the log.
    pub redact_source: bool,
}

/// Why the service ends a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopCause {
    /// A caller wants it; the reason says how it said so.
    Caller { reason: &'static str },
    /// It took longer than it may.
    WallLimit,
    /// A provider failed unexpectedly.
    Broken { correlation: String },
    /// It has more calls unanswered than it may.
    CallLimit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for a sandbox.
    Queued,
    /// It was sent to the runner.
    Starting { since: Timestamp },
    /// The runner said that it runs.
    Running,
    /// The runner was asked to end it.
    Stopping { cause: StopCause, since: Timestamp },
}

/// The program that is queued or runs.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) record: ProgramRecord,
    pub(super) run: Execute,
    pub(super) phase: Phase,
    pub(super) calls: Calls,
    text_was_written: bool,
}

impl Active {
    pub(super) fn new(record: ProgramRecord, run: Execute) -> Self {
        Self { record, run, phase: Phase::Queued, calls: Calls::default(), text_was_written: false }
    }

    /// The program wrote something.
    pub(super) fn wrote(&mut self, source: OutputSource) {
        self.text_was_written |= source == OutputSource::Text;
    }

    pub(super) fn snapshot(&self) -> ProgramRecord {
        ProgramRecord {
            calls: self.calls.listed(),
            n_calls: self.calls.n_made(),
            artifacts: self.calls.artifacts(),
            ..self.record.clone()
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let wall = self.record.created_at.after(self.run.limits.wall()).after(WALL_GRACE);
        match self.phase {
            Phase::Queued | Phase::Running => Some(wall),
            Phase::Starting { since } => Some(wall.min(since.after(RUNNER_ANSWER_TIMEOUT))),
            Phase::Stopping { since, .. } => Some(since.after(self.run.limits.cleanup())),
        }
    }
}

impl Machine {
    /// Accepts a program. The answer is the program's number; it counts once committed.
    pub fn execute(&mut self, ctx: &mut Context<'_>, run: Execute) -> Result<ProgramNumber, Refusal> {
        self.refuse_unless_open(ctx.now)?;
        if let Some(active) = &self.active {
            return Err(Refusal::ProgramActive { program: active.record.number });
        }
        let number = ProgramNumber(self.record.last_program + 1);
        self.record.last_program = number.0;
        self.record.active_program = Some(number);
        self.step.record_changed = true;
        let source = if run.redact_source { String::new() } else { run.source.clone() };
        let source = self.payload(ctx, source);
        let (language, catalog) = (run.language.clone(), run.catalog.clone());
        let first_seq = self.record.last_seq.next();
        let record = new_record(&self.record, number, &language, catalog.clone(), first_seq, ctx.now);
        self.step.programs.push(record.clone());
        let limits = (run.limits != self.record.limits).then(|| Box::new(run.limits.clone()));
        self.event(ctx, Some(number), EventKind::ProgramAccepted { language, source, catalog, limits });
        self.active = Some(Active::new(record, run));
        match self.sandbox {
            Sandbox::None => {
                self.sandbox = Sandbox::Claiming;
                self.step.now.push(Action::Claim);
            }
            Sandbox::Claiming | Sandbox::Assigning { .. } | Sandbox::Awaited { .. } => {}
            Sandbox::Ready { .. } => self.start_queued(ctx),
        }
        Ok(number)
    }

    /// Ends a program, the active one when none is named. One that ended before stays as it ended.
    pub fn stop(
        &mut self,
        ctx: &mut Context<'_>,
        program: Option<ProgramNumber>,
        reason: &'static str,
    ) -> Result<Stopping, Refusal> {
        let active = self.active.as_ref().map(|active| active.record.number);
        match (program.or(active), active) {
            (None, _) => Err(Refusal::NoActiveProgram),
            (Some(program), Some(active)) if program == active => {
                self.stop_active(ctx, StopCause::Caller { reason });
                Ok(Stopping::Asked(program))
            }
            (Some(program), _) if program.0 >= 1 && program.0 <= self.record.last_program => {
                Ok(Stopping::AlreadyEnded(program))
            }
            (Some(program), _) => Err(Refusal::NoSuchProgram { program }),
        }
    }

    pub(super) fn stop_active(&mut self, ctx: &mut Context<'_>, cause: StopCause) {
        let Some(active) = self.active.as_mut() else { return };
        let frame = Action::Send(ToRunner::StopProgram { program: active.record.number });
        let stopping = Phase::Stopping { cause: cause.clone(), since: ctx.now };
        match active.phase {
            Phase::Stopping { .. } => return,
            Phase::Queued => {
                let ending = Ending::of_cause(cause, &active.run.limits);
                return self.end_program(ctx, ending, Measured::default());
            }
            // The order to run may still wait for its commit; the order to stop must not pass it.
            Phase::Starting { .. } => self.step.committed.push(frame),
            Phase::Running => self.step.now.push(frame),
        }
        active.phase = stopping;
        self.end_open_calls(ctx, CallState::Cancelled, CancelReason::Stopped);
    }

    pub(super) fn terminate_for_close(&mut self, ctx: &mut Context<'_>) {
        if self.active.is_some() {
            self.end_open_calls(ctx, CallState::Cancelled, CancelReason::SessionClosed);
            self.end_program(ctx, Ending::terminated(reasons::CLOSED_PROGRAM), Measured::default());
        }
    }

    pub(super) fn start_queued(&mut self, ctx: &mut Context<'_>) {
        let too_old = self.runner_is_too_old();
        let Some(active) = self.active.as_mut().filter(|active| active.phase == Phase::Queued) else {
            return;
        };
        if let Some(message) = too_old {
            let ending = Ending::error(reasons::ENGINE_TOO_OLD, message);
            return self.end_program(ctx, ending, Measured::default());
        }
        active.phase = Phase::Starting { since: ctx.now };
        let run = &active.run;
        let spent = ctx.now.since(active.record.created_at);
        let frame = ToRunner::Execute(Box::new(RunProgram {
            program: active.record.number,
            language: run.language.clone(),
            source: run.source.clone(),
            source_name: run.source_name.clone(),
            catalog: run.catalog.clone(),
            inputs: run.inputs.clone(),
            kept: self.record.kept.clone(),
            limits: run.limits.clone(),
            wall_left: run.limits.wall().saturating_sub(spent),
            options: self.record.engine_options.clone(),
        }));
        if let Some(digest) = run.catalog.clone() {
            self.step.committed.push(Action::SendCatalog(digest));
        }
        self.step.committed.push(Action::Send(frame));
    }

    pub(super) fn program_started(&mut self, ctx: &mut Context<'_>, program: ProgramNumber, version: String) {
        let Some(active) = self.active.as_mut().filter(|active| active.record.number == program) else {
            return;
        };
        let engine_version = truncate_bytes(&version, NAME_BYTES_MAX).into_owned();
        match active.phase {
            Phase::Starting { .. } => active.phase = Phase::Running,
            Phase::Stopping { .. } => {}
            Phase::Queued | Phase::Running => {
                return self.breach(ctx, "a program started that was not asked to");
            }
        }
        active.record.state = ProgramState::Running;
        active.record.started_at = Some(ctx.now);
        let record = active.snapshot();
        self.step.programs.push(record);
        self.event(ctx, Some(program), EventKind::ProgramStarted { engine_version });
    }

    pub(super) fn output(
        &mut self,
        ctx: &mut Context<'_>,
        program: ProgramNumber,
        source: OutputSource,
        data: Bytes,
    ) {
        let Some(active) = self.active.as_mut().filter(|active| active.record.number == program) else {
            return;
        };
        let is_text = source == OutputSource::Text;
        let mut separated = is_text && active.text_was_written;
        active.wrote(source);
        let mut left = data;
        loop {
            let data = left.split_to(piece_bytes(&left, OUTPUT_EVENT_BYTES_MAX));
            self.event(ctx, Some(program), EventKind::Output { source, data, separated });
            separated = false;
            if left.is_empty() {
                return;
            }
        }
    }

    pub(super) fn program_ended(&mut self, ctx: &mut Context<'_>, ended: Box<HostEnded>) {
        let Some(active) = self.active.as_mut().filter(|active| active.record.number == ended.program) else {
            return;
        };
        let measured = Measured {
            cpu_us: ended.cpu_us,
            peak_memory_bytes: ended.peak_memory_bytes,
            warnings: ended.report.as_ref().map(|report| report.warnings.clone()).unwrap_or_default(),
        };
        let limits = active.run.limits.clone();
        let cause = match &active.phase {
            Phase::Queued => return self.breach(ctx, "a program ended that was not asked to run"),
            Phase::Stopping { cause, .. } => Some(cause.clone()),
            Phase::Starting { .. } | Phase::Running => None,
        };
        let ending = match (cause, ended.end, ended.report.clone()) {
            // A natural end beats a late stop (A7), but no failure of ours (I18).
            (None | Some(StopCause::Caller { .. }), HostEnd::Reported, Some(report)) => {
                self.reported(ctx, report, &limits)
            }
            (Some(cause), _, _) => Ending::of_cause(cause, &limits),
            (None, end, _) => unreported(end, &ended, &limits),
        };
        self.end_program(ctx, ending, measured);
    }

    fn reported(&mut self, ctx: &mut Context<'_>, report: HostReport, limits: &Limits) -> Ending {
        if let Some(error) = report.error {
            return Ending { error: Some(clean_error(error, limits)), ..Ending::error("", "") };
        }
        let value = match report.value.map(|text| self.value(ctx, text, limits)).transpose() {
            Ok(value) => value,
            Err(ending) => return *ending,
        };
        if let Err(message) = self.keep(report.kept, report.removed, limits) {
            return Ending::error(reasons::PROTOCOL, message);
        }
        Ending { state: ProgramState::Completed, value, ..Ending::terminated("") }
    }

    fn value(
        &mut self,
        ctx: &mut Context<'_>,
        text: String,
        limits: &Limits,
    ) -> Result<ValueRecord, Box<Ending>> {
        let bounds = Bounds::bytes(usize::try_from(limits.value_bytes).unwrap_or(usize::MAX));
        if text.len() as u64 > limits.value_bytes {
            let message = format!("the value has {} bytes as JSON, over {}", text.len(), limits.value_bytes);
            return Err(Box::new(Ending::error(reasons::VALUE_LIMIT, message)));
        }
        let json = JsonText::parse_guest(text, &bounds).map_err(|error| Box::new(no_value(&error)))?;
        let view_bytes = usize::try_from(limits.value_view_bytes).unwrap_or(usize::MAX);
        let Some(cut) = value::cut(&json, view_bytes) else {
            return Ok(ValueRecord { json: json.into_string(), cut: None });
        };
        let original_bytes = json.as_str().len() as u64;
        let blob = self.blob(ctx, "application/json", json.into_string().into());
        Ok(ValueRecord { json: cut.json, cut: Some(ValueCut { original_bytes, blob }) })
    }

    fn keep(
        &mut self,
        kept: BTreeMap<String, String>,
        removed: Vec<String>,
        limits: &Limits,
    ) -> Result<(), String> {
        let bounds = Bounds::bytes(usize::try_from(limits.kept_bytes).unwrap_or(usize::MAX));
        let mut all = self.record.kept.clone();
        for key in removed {
            all.remove(&key);
        }
        for (key, json) in kept {
            value::check(&json, &bounds)
                .map_err(|error| format!("what was kept as {key:?} is no JSON: {error}"))?;
            all.insert(key, json);
        }
        let bytes: u64 = all.iter().map(|(key, json)| (key.len() + json.len()) as u64).sum();
        if bytes > limits.kept_bytes {
            return Err(format!("{bytes} bytes were kept, over the limit of {}", limits.kept_bytes));
        }
        self.record.kept = all;
        Ok(())
    }

    pub(super) fn end_program(&mut self, ctx: &mut Context<'_>, ending: Ending, measured: Measured) {
        self.end_open_calls(ctx, ending.dispatched, CancelReason::Stopped);
        let Some(active) = self.active.take() else { return };
        debug_assert!(!active.calls.has_open(), "every call has a fate when its program ends (case 12)");
        let mut record = active.snapshot();
        let sandbox_us = record.started_at.map_or(0, |at| micros(ctx.now, at));
        record.last_seq = self.record.last_seq.next();
        record.state = ending.state;
        record.reason = ending.reason.to_owned();
        record.detail = truncate_bytes(&ending.detail, NAME_BYTES_MAX * 4).into_owned();
        record.value = ending.value;
        record.warnings = clean_warnings(measured.warnings);
        record.usage = Usage {
            cpu_us: measured.cpu_us,
            wall_us: micros(ctx.now, record.created_at),
            peak_memory_bytes: measured.peak_memory_bytes,
            n_calls: active.calls.n_dispatched(),
            sandbox_us,
        };
        record.ended_at = Some(ctx.now);
        record.error = ending.error.map(|error| {
            let effective_calls = active.calls.effective();
            let safe_to_repeat = effective_calls.is_empty();
            ProgramError { effective_calls, safe_to_repeat, ..error }
        });
        self.record.active_program = None;
        self.idle_since = ctx.now;
        self.step.record_changed = true;
        self.step.programs.push(record.clone());
        let number = record.number;
        self.event(ctx, Some(number), EventKind::ProgramEnded(Box::new(record)));
    }

    pub(super) fn program_without_sandbox(
        &mut self,
        ctx: &mut Context<'_>,
        reason: &'static str,
        message: &str,
    ) {
        if self.active.is_some() {
            self.end_program(ctx, Ending::not_started(reason, message), Measured::default());
        }
    }

    pub(super) fn program_lost_sandbox(&mut self, ctx: &mut Context<'_>, end: &SandboxEnd) {
        let Some(active) = &self.active else { return };
        let what = match (&active.phase, end.detail.as_str()) {
            (_, "") => end.reason.name().to_owned(),
            (_, detail) => format!("{}: {detail}", end.reason.name()),
        };
        let ending = match &active.phase {
            Phase::Queued => Ending::not_started(reasons::NO_SANDBOX, what),
            Phase::Starting { .. } | Phase::Running => Ending::lost(end.reason.name(), end.detail.clone()),
            Phase::Stopping { cause, .. } => Ending::of_cause(cause.clone(), &active.run.limits),
        };
        self.end_program(ctx, ending, Measured::default());
    }

    pub(super) fn runner_refused(
        &mut self,
        ctx: &mut Context<'_>,
        what: &str,
        program: Option<ProgramNumber>,
    ) {
        let starting = |active: &Active| {
            Some(active.record.number) == program && matches!(active.phase, Phase::Starting { .. })
        };
        if self.active.as_ref().is_some_and(starting) || matches!(self.sandbox, Sandbox::Assigning { .. }) {
            self.breach(ctx, &format!("the runner refused: {what}"));
        }
    }

    pub(super) fn tick_program(&mut self, ctx: &mut Context<'_>) {
        let Some(active) = &self.active else { return };
        if active.deadline().is_none_or(|at| ctx.now < at) {
            return;
        }
        let is_unresponsive = match active.phase {
            Phase::Queued | Phase::Running => false,
            // The program's own limit may be shorter than what the runner has to start it.
            Phase::Starting { since } => ctx.now >= since.after(RUNNER_ANSWER_TIMEOUT),
            Phase::Stopping { .. } => true,
        };
        if !is_unresponsive {
            return self.stop_active(ctx, StopCause::WallLimit);
        }
        let Some(id) = self.sandbox.id() else { return };
        let detail = "the runner did not start or end a program in time".to_owned();
        self.sandbox_ended(ctx, id, SandboxEnd { reason: EndReason::Unresponsive, detail });
    }
}

/// What the runner measured and the host warned of.
#[derive(Default)]
pub(super) struct Measured {
    cpu_us: u64,
    peak_memory_bytes: u64,
    warnings: Vec<Warning>,
}

pub(super) fn new_record(
    session: &SessionRecord,
    number: ProgramNumber,
    language: &str,
    catalog: Option<CatalogDigest>,
    first_seq: EventSeq,
    now: Timestamp,
) -> ProgramRecord {
    ProgramRecord {
        session: session.id,
        number,
        first_seq,
        last_seq: EventSeq(0),
        state: ProgramState::Queued,
        reason: String::new(),
        detail: String::new(),
        value: None,
        error: None,
        warnings: Vec::new(),
        usage: Usage::default(),
        calls: Vec::new(),
        n_calls: 0,
        artifacts: Vec::new(),
        language: language.to_owned(),
        catalog,
        created_at: now,
        started_at: None,
        ended_at: None,
    }
}

fn micros(now: Timestamp, then: Timestamp) -> u64 {
    u64::try_from(now.since(then).as_micros()).unwrap_or(u64::MAX)
}
