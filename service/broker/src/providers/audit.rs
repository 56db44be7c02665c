//! An audit event for each call dispatched and ended. Never arguments or results: who reads the
//! log may not read those.

use seance_core::ids::{CallId, SessionId, TenantId};
use seance_core::program::CallState;

use super::types::{Dispatch, Outcome};

/// Whose calls they are.
#[derive(Debug, Clone)]
pub(super) struct Audit {
    pub(super) tenant: TenantId,
    pub(super) session: SessionId,
}

impl Audit {
    pub(super) fn dispatched(&self, call: &Dispatch) {
        self.event(call.id, &call.tool, "DISPATCHED");
    }

    pub(super) fn finished(&self, call: &Dispatch, outcome: &Outcome) {
        self.event(
            call.id,
            &call.tool,
            match outcome.state() {
                CallState::Queued => "QUEUED",
                CallState::Dispatched => "DISPATCHED",
                CallState::Finished => "FINISHED",
                CallState::Failed => "FAILED",
                CallState::Cancelled => "CANCELLED",
                CallState::NotStarted => "NOT_STARTED",
                CallState::OutcomeUnknown => "OUTCOME_UNKNOWN",
            },
        );
    }

    /// The end of a call that the session took back.
    pub(super) fn ended(&self, call: &Dispatch, state: &'static str) {
        self.event(call.id, &call.tool, state);
    }

    /// A call goes out again after its provider was lost: because the provider never saw it, or
    /// because its tool was declared repeatable.
    pub(super) fn sent_again(&self, call: &Dispatch, repeated: bool) {
        self.event(call.id, &call.tool, if repeated { "REPEATED" } else { "NEVER_SEEN_SENT_AGAIN" });
    }

    fn event(&self, call: CallId, tool: &str, state: &'static str) {
        tracing::info!(
            target: "seance::audit",
            tenant = %self.tenant,
            session = %self.session,
            program = call.program.0,
            call = %call,
            tool,
            state,
            "tool call"
        );
    }
}
