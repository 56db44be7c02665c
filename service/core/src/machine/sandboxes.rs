//! The sandbox of a session: claimed, assigned, used, ended.

use crate::event::EventKind;
use crate::ids::SandboxId;
use crate::link::{FromRunner, Numbered, ToRunner};
use crate::sandbox::{EndReason, SandboxEnd};
use crate::session::SessionState;
use crate::time::Timestamp;

use super::{Action, Context, Machine, RUNNER_ANSWER_TIMEOUT};

/// What a session has of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sandbox {
    /// None.
    None,
    /// One is being got.
    Claiming,
    /// One is recorded as used and was given the session; it has not answered.
    Assigning { id: SandboxId, engine_version: String, since: Timestamp },
    /// One of an earlier start of the service, whose runner is to dial in again.
    Awaited { id: SandboxId },
    /// One that takes programs.
    Ready { id: SandboxId, engine_version: String },
}

impl Sandbox {
    pub(super) fn id(&self) -> Option<SandboxId> {
        match self {
            Sandbox::None | Sandbox::Claiming => None,
            Sandbox::Assigning { id, .. } | Sandbox::Awaited { id } | Sandbox::Ready { id, .. } => Some(*id),
        }
    }
}

impl Machine {
    /// The sandbox in use.
    pub fn sandbox_id(&self) -> Option<SandboxId> {
        self.sandbox.id()
    }

    /// Whether the runner has taken the session.
    pub fn sandbox_ready(&self) -> bool {
        matches!(self.sandbox, Sandbox::Ready { .. })
    }

    /// A sandbox was got. It is used from the next commit on, and never again.
    pub fn sandbox_claimed(&mut self, ctx: &mut Context<'_>, id: SandboxId, engine_version: &str) {
        self.record.sandbox = Some(id);
        self.step.record_changed = true;
        self.step.uses_sandbox = Some(id);
        self.event(ctx, None, EventKind::SandboxAssigned { sandbox: id });
        let engine_version = engine_version.to_owned();
        let waiting =
            std::mem::replace(&mut self.sandbox, Sandbox::Assigning { id, engine_version, since: ctx.now });
        if self.record.state != SessionState::Open || waiting != Sandbox::Claiming {
            self.end_sandbox(ctx, EndReason::Released);
            return;
        }
        let (session, engine) = (self.record.id, self.record.engine.clone());
        self.step.committed.push(Action::Send(ToRunner::Assign { session, engine, deadline: None }));
    }

    /// No sandbox could be got. `reason` is what the program ends with: a status reason of the table.
    pub fn claim_failed(&mut self, ctx: &mut Context<'_>, reason: &'static str, message: &str) {
        if self.sandbox == Sandbox::Claiming {
            self.sandbox = Sandbox::None;
            self.program_without_sandbox(ctx, reason, message);
        }
    }

    /// A frame came from the runner of `sandbox`. Tool calls come through [`Machine::tool_call`].
    pub fn frame(&mut self, ctx: &mut Context<'_>, sandbox: SandboxId, numbered: Numbered) {
        if self.sandbox.id() != Some(sandbox) {
            return;
        }
        self.acknowledge(sandbox, numbered.number);
        match numbered.frame {
            FromRunner::Assigned { session } => self.assigned(ctx, session == self.record.id),
            FromRunner::ProgramStarted { program, engine_version } => {
                self.program_started(ctx, program, engine_version);
            }
            FromRunner::Output { program, source, data } => self.output(ctx, program, source, data),
            FromRunner::CancelCall { program, call } => self.cancel_by_program(ctx, program, call),
            FromRunner::ProgramEnded(ended) => self.program_ended(ctx, ended),
            FromRunner::HostExited { signal, exit_status, stderr_bytes } => {
                let how = how_it_ended(&signal, exit_status);
                self.event(ctx, None, EventKind::HostExited { how, stderr_bytes });
            }
            FromRunner::Refused { reason, detail, program } => {
                self.runner_refused(ctx, &format!("{reason}: {detail}"), program);
            }
            FromRunner::ToolCall { .. } => self.breach(ctx, "a tool call came unchecked"),
        }
    }

    /// The sandbox ended by itself.
    pub fn sandbox_ended(&mut self, ctx: &mut Context<'_>, sandbox: SandboxId, end: SandboxEnd) {
        if self.sandbox.id() != Some(sandbox) {
            return;
        }
        self.forget_sandbox(ctx, sandbox, end.clone());
        self.program_lost_sandbox(ctx, &end);
    }

    /// Ends the sandbox in use, if there is one.
    pub(super) fn end_sandbox(&mut self, ctx: &mut Context<'_>, reason: EndReason) {
        match self.sandbox.id() {
            Some(id) => self.forget_sandbox(ctx, id, SandboxEnd::new(reason)),
            None => self.sandbox = Sandbox::None,
        }
    }

    fn forget_sandbox(&mut self, ctx: &mut Context<'_>, sandbox: SandboxId, end: SandboxEnd) {
        let reason = end.reason;
        self.sandbox = Sandbox::None;
        self.record.sandbox = None;
        self.step.record_changed = true;
        self.unproven.insert(sandbox, reason);
        self.event(ctx, None, EventKind::SandboxEnded { sandbox, end });
        self.step.now.push(Action::EndSandbox { sandbox, reason });
    }

    fn assigned(&mut self, ctx: &mut Context<'_>, ours: bool) {
        match &self.sandbox {
            Sandbox::Assigning { id, engine_version, .. } if ours => {
                self.sandbox = Sandbox::Ready { id: *id, engine_version: engine_version.clone() };
                self.idle_since = ctx.now;
                self.start_queued(ctx);
            }
            Sandbox::Assigning { .. } => self.breach(ctx, "the runner took another session"),
            Sandbox::None | Sandbox::Claiming | Sandbox::Awaited { .. } | Sandbox::Ready { .. } => {
                self.breach(ctx, "the runner was not asked to take a session");
            }
        }
    }

    /// The runner broke the protocol: the sandbox ends.
    pub(super) fn breach(&mut self, ctx: &mut Context<'_>, detail: &str) {
        let Some(id) = self.sandbox.id() else { return };
        let end = SandboxEnd { reason: EndReason::ProtocolBroken, detail: detail.to_owned() };
        self.sandbox_ended(ctx, id, end);
    }

    pub(super) fn acknowledge(&mut self, sandbox: SandboxId, number: u64) {
        if number > 0 {
            self.step.acknowledges = Some((sandbox, number));
            self.step.committed.push(Action::Send(ToRunner::Ack { number }));
        }
    }

    pub(super) fn sandbox_deadline(&self) -> Option<Timestamp> {
        match &self.sandbox {
            // The backend says when it is too late for one that is awaited.
            Sandbox::None | Sandbox::Claiming | Sandbox::Awaited { .. } => None,
            Sandbox::Assigning { since, .. } => Some(since.after(RUNNER_ANSWER_TIMEOUT)),
            Sandbox::Ready { .. } if self.active.is_some() => None,
            Sandbox::Ready { .. } => Some(self.idle_since.after(self.record.idle_timeout)),
        }
    }

    pub(super) fn tick_sandbox(&mut self, ctx: &mut Context<'_>) {
        if self.sandbox_deadline().is_none_or(|at| ctx.now < at) {
            return;
        }
        match &self.sandbox {
            Sandbox::None | Sandbox::Claiming | Sandbox::Awaited { .. } => {}
            Sandbox::Assigning { id, .. } => {
                let (id, detail) = (*id, "the runner did not take the session".to_owned());
                self.sandbox_ended(ctx, id, SandboxEnd { reason: EndReason::Unresponsive, detail });
            }
            Sandbox::Ready { .. } => self.end_sandbox(ctx, EndReason::Idle),
        }
    }

    pub(super) fn runner_is_too_old(&self) -> Option<String> {
        let Sandbox::Ready { engine_version, .. } = &self.sandbox else { return None };
        let wanted = &self.record.min_version;
        if wanted.is_empty() || !version_is_below(engine_version, wanted) {
            return None;
        }
        let engine = &self.record.engine;
        Some(format!("the {engine} engine is version {engine_version}; the session needs at least {wanted}"))
    }
}

/// How a process ended, for people.
pub(super) fn how_it_ended(signal: &str, exit_status: i32) -> String {
    if signal.is_empty() { format!("exit status {exit_status}") } else { format!("signal {signal}") }
}

/// Compares dotted versions number by number, from the first digit on: a name before it, as in
/// "quickjs-ng 0.16.2", is no part of the version. What is no number counts as 0.
fn version_is_below(found: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        let version = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0)).collect()
    };
    let (mut found, mut wanted) = (numbers(found), numbers(wanted));
    let n = found.len().max(wanted.len());
    found.resize(n, 0);
    wanted.resize(n, 0);
    found < wanted
}
