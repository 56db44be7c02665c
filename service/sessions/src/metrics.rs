//! The metrics of sessions. Labels come from small enums, never from ids.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};
use seance_core::event::EventKind;
use seance_core::program::{CallState, ProgramState};

/// Counts what sessions do.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) sessions: IntGauge,
    pub(crate) programs_active: IntGauge,
    programs: IntCounterVec,
    calls: IntCounterVec,
    pub(crate) open_seconds: Histogram,
}

impl Metrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            sessions: IntGauge::new("seance_sessions", "Sessions whose task runs.")?,
            programs_active: IntGauge::new("seance_programs_active", "Programs that are queued or run.")?,
            programs: IntCounterVec::new(
                Opts::new("seance_programs_total", "Programs that ended, by state."),
                &["state"],
            )?,
            calls: IntCounterVec::new(
                Opts::new("seance_tool_calls_total", "Tool calls that ended, by state."),
                &["state"],
            )?,
            open_seconds: Histogram::with_opts(
                HistogramOpts::new("seance_open_seconds", "Time to open a session, in seconds.")
                    .buckets(vec![0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0]),
            )?,
        };
        registry.register(Box::new(metrics.sessions.clone()))?;
        registry.register(Box::new(metrics.programs_active.clone()))?;
        registry.register(Box::new(metrics.programs.clone()))?;
        registry.register(Box::new(metrics.calls.clone()))?;
        registry.register(Box::new(metrics.open_seconds.clone()))?;
        Ok(metrics)
    }

    /// Counts an event that is about to be committed.
    pub(crate) fn count(&self, kind: &EventKind) {
        match kind {
            EventKind::ProgramAccepted { .. } => self.programs_active.inc(),
            EventKind::ProgramEnded(record) => {
                self.programs_active.dec();
                self.programs.with_label_values(&[program_label(record.state)]).inc();
            }
            EventKind::CallMade(record) | EventKind::CallEnded { record, .. } if record.state.is_final() => {
                self.calls.with_label_values(&[call_label(record.state)]).inc();
            }
            _ => {}
        }
    }
}

fn program_label(state: ProgramState) -> &'static str {
    match state {
        ProgramState::Queued => "queued",
        ProgramState::Running => "running",
        ProgramState::Completed => "completed",
        ProgramState::Terminated => "terminated",
        ProgramState::Error => "error",
        ProgramState::Lost => "lost",
        ProgramState::NotStarted => "not_started",
    }
}

fn call_label(state: CallState) -> &'static str {
    match state {
        CallState::Queued => "queued",
        CallState::Dispatched => "dispatched",
        CallState::Finished => "finished",
        CallState::Failed => "failed",
        CallState::Cancelled => "cancelled",
        CallState::NotStarted => "not_started",
        CallState::OutcomeUnknown => "outcome_unknown",
    }
}
