//! Taking over a session that an earlier start of the service had.
//!
//! Where sandboxes end with the service, its program is lost. Where they don't, the session waits for
//! its runner to dial in again: the program goes on, what the runner doesn't have is sent to it, and
//! calls in doubt are asked after, never guessed (DESIGN section 3).

use std::collections::VecDeque;
use std::time::Duration;

use crate::event::{Event, EventKind};
use crate::ids::SandboxId;
use crate::link::ToRunner;
use crate::program::{CallError, CallState, Payload, ProgramState};
use crate::reasons;
use crate::sandbox::{EndReason, Resumed, SandboxEnd};
use crate::session::{SessionRecord, SessionState};

use super::endings::Ending;
use super::programs::{Active, Execute, Measured, Phase, new_record};
use super::sandboxes::Sandbox;
use super::{Action, Context, Machine};

/// Results of ended calls that are kept for a runner that may not have them, in bytes. The newest
/// ones are: what was answered long ago has arrived.
const RESULTS_BYTES_MAX: usize = 32 << 20;

/// Results that the runner may not have, by the call's number.
#[derive(Debug, Default)]
pub(super) struct Results {
    in_order: VecDeque<(u64, Result<String, CallError>)>,
    bytes: usize,
}

impl Results {
    fn push(&mut self, call: u64, result: Result<String, CallError>, most: usize) {
        let size = |result: &Result<String, CallError>| result.as_ref().map_or(0, String::len);
        self.bytes += size(&result);
        self.in_order.push_back((call, result));
        while self.in_order.len() > most || self.bytes > RESULTS_BYTES_MAX {
            let Some((_, oldest)) = self.in_order.pop_front() else { return };
            self.bytes -= size(&oldest);
        }
    }
}

impl Machine {
    /// A session of the store, taken over with its sandbox gone. `log` has the events of the active
    /// program from its acceptance on; whether it ran is told from them.
    pub fn recover(record: SessionRecord, log: &[Event], ctx: &mut Context<'_>) -> Self {
        let mut machine = Self::with(record, ctx.now);
        machine.active = recovered(&machine.record, log);
        machine.lose_sandbox_of_old_owner(ctx);
        machine
    }

    /// A session of the store whose sandbox may live. Its caller gets the runner back, and tells by
    /// [`Machine::taken_back`] or [`Machine::sandbox_ended`]. Payloads of `log` that are needed again
    /// must be inline: arguments of calls that have not ended, and results.
    pub fn recover_awaiting(
        record: SessionRecord,
        sandbox: SandboxId,
        log: &[Event],
        ctx: &mut Context<'_>,
    ) -> Self {
        let mut machine = Self::with(record, ctx.now);
        machine.active = recovered(&machine.record, log);
        machine.sandbox = Sandbox::Awaited { id: sandbox };
        if machine.record.state != SessionState::Open {
            machine.end_sandbox(ctx, EndReason::Released);
        }
        machine
    }

    /// The runner of a session that was taken over is there again. Nothing when it isn't awaited.
    pub fn taken_back(
        &mut self,
        ctx: &mut Context<'_>,
        sandbox: SandboxId,
        engine_version: &str,
        resumed: &Resumed,
    ) {
        if self.sandbox != (Sandbox::Awaited { id: sandbox }) {
            return;
        }
        self.sandbox = Sandbox::Ready { id: sandbox, engine_version: engine_version.to_owned() };
        self.idle_since = ctx.now;
        let Some(active) = &mut self.active else { return };
        let program = active.record.number;
        match &mut active.phase {
            Phase::Queued => return self.start_queued(ctx),
            // The order to run it was committed and never sent.
            Phase::Starting { .. } | Phase::Running | Phase::Stopping { .. }
                if resumed.last_program < program.0 =>
            {
                let ending = Ending::not_started(reasons::SERVICE_RESTARTED, "");
                return self.end_program(ctx, ending, Measured::default());
            }
            Phase::Stopping { .. } => {
                return self.step.now.push(Action::Send(ToRunner::StopProgram { program }));
            }
            // That it started is among what the runner sends again.
            Phase::Starting { since } => *since = ctx.now,
            Phase::Running => {}
        }
        self.send_results(resumed);
        self.ask_after_calls(ctx);
    }

    fn send_results(&mut self, resumed: &Resumed) {
        let Some(active) = &mut self.active else { return };
        let program = active.record.number;
        let results = std::mem::take(&mut active.calls.results);
        for (call, result) in results.in_order {
            if resumed.applied_calls.contains(&call) {
                continue;
            }
            self.step.now.push(Action::Send(ToRunner::CallResult { program, call, result }));
        }
    }

    /// Has every call that has not ended answered: one that was dispatched may be with its provider.
    fn ask_after_calls(&mut self, ctx: &mut Context<'_>) {
        let Some(active) = &mut self.active else { return };
        let dispatched = active.calls.dispatched_again();
        self.step.now.extend(dispatched.into_iter().map(Action::Dispatch));
        self.dispatch_next(ctx);
    }

    fn lose_sandbox_of_old_owner(&mut self, ctx: &mut Context<'_>) {
        let end = SandboxEnd::new(EndReason::ServiceStopped);
        if let Some(sandbox) = self.record.sandbox.take() {
            self.step.record_changed = true;
            self.event(ctx, None, EventKind::SandboxEnded { sandbox, end });
        }
        self.program_lost_owner(ctx);
        self.close_when_proven(ctx);
    }

    /// The service that ran the program is gone, and a local sandbox with it. A program that was
    /// sent to a runner may have run, so that only one without a sandbox is said not to have started.
    fn program_lost_owner(&mut self, ctx: &mut Context<'_>) {
        let Some(active) = &self.active else { return };
        let ending = match active.phase {
            Phase::Queued => Ending::not_started(reasons::SERVICE_RESTARTED, ""),
            Phase::Starting { .. } | Phase::Running | Phase::Stopping { .. } => {
                Ending::lost(reasons::SERVICE_RESTARTED, "")
            }
        };
        self.end_program(ctx, ending, Measured::default());
    }
}

/// The active program of a session that is taken over, put together from its events.
fn recovered(session: &SessionRecord, log: &[Event]) -> Option<Active> {
    let number = session.active_program?;
    let mut active: Option<Active> = None;
    for event in log.iter().filter(|event| event.program == Some(number)) {
        match (&event.kind, active.as_mut()) {
            (EventKind::ProgramAccepted { language, catalog, limits, .. }, None) => {
                let record = new_record(session, number, language, catalog.clone(), event.seq, event.at);
                let limits = limits.as_deref().unwrap_or(&session.limits).clone();
                // A program that runs needs neither its source nor its inputs again.
                let run = Execute {
                    language: language.clone(),
                    source: String::new(),
                    source_name: String::new(),
                    catalog: catalog.clone(),
                    inputs: None,
                    limits,
                    redact_source: false,
                };
                let phase = match session.sandbox {
                    Some(_) => Phase::Starting { since: event.at },
                    None => Phase::Queued,
                };
                let mut accepted = Active::new(record, run);
                accepted.phase = phase;
                active = Some(accepted);
            }
            (EventKind::ProgramStarted { .. }, Some(active)) => {
                active.phase = Phase::Running;
                active.record.state = ProgramState::Running;
                active.record.started_at = Some(event.at);
            }
            (EventKind::Output { source, .. }, Some(active)) => active.wrote(*source),
            (kind, Some(active)) => {
                let limits = &active.run.limits;
                active.calls.replay(kind, event.at, Duration::from_millis(limits.call_timeout_ms));
                if let Some((call, result)) = result_in(kind) {
                    let most = usize::try_from(limits.pending_calls).unwrap_or(usize::MAX);
                    active.calls.results.push(call, result, most);
                }
            }
            (_, None) => {}
        }
    }
    active
}

/// The result that an event has for the program. A call that the program aborted has none.
fn result_in(kind: &EventKind) -> Option<(u64, Result<String, CallError>)> {
    let (record, value) = match kind {
        EventKind::CallMade(record) => (record, None),
        EventKind::CallEnded { record, value } => (record, value.as_ref()),
        _ => return None,
    };
    let gone = "the service restarted, and the call's result can't be had any more";
    let result = match (record.state, value, &record.error) {
        (CallState::Queued | CallState::Dispatched | CallState::Cancelled, ..) => return None,
        (_, Some(Payload::Inline(text)), _) => Ok(text.clone()),
        (_, _, Some(error)) => Err(error.clone()),
        _ => Err(CallError::new(reasons::OUTCOME_UNKNOWN, gone)),
    };
    Some((record.id.number, result))
}
