//! How programs end: what a cause, a lost process or a host's report comes to in the record.

use crate::limits::Limits;
use crate::link::HostEnd;
use crate::program::{CallState, ProgramError, ProgramState, ValueRecord, Warning};
use crate::reasons;
use crate::text::truncate_bytes;
use crate::value;

use super::programs::{NAME_BYTES_MAX, StopCause};
use super::sandboxes::how_it_ended;

/// Warnings of one program that are kept.
const WARNINGS_MAX: usize = 100;

/// How a program ended, in its record's terms.
pub(super) struct Ending {
    pub(super) state: ProgramState,
    pub(super) reason: &'static str,
    pub(super) detail: String,
    pub(super) value: Option<ValueRecord>,
    pub(super) error: Option<ProgramError>,
    /// What became of calls that a provider has.
    pub(super) dispatched: CallState,
}

impl Ending {
    pub(super) fn terminated(reason: &'static str) -> Self {
        Self {
            state: ProgramState::Terminated,
            reason,
            detail: String::new(),
            value: None,
            error: None,
            dispatched: CallState::Cancelled,
        }
    }

    pub(super) fn error(code: &str, message: impl Into<String>) -> Self {
        let error =
            ProgramError { code: code.to_owned(), message: message.into(), ..ProgramError::default() };
        Self { state: ProgramState::Error, error: Some(error), ..Self::terminated("") }
    }

    pub(super) fn lost(reason: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            state: ProgramState::Lost,
            detail,
            dispatched: CallState::OutcomeUnknown,
            ..Self::terminated(reason)
        }
    }

    pub(super) fn not_started(reason: &'static str, detail: impl Into<String>) -> Self {
        Self { state: ProgramState::NotStarted, detail: detail.into(), ..Self::terminated(reason) }
    }

    pub(super) fn of_cause(cause: StopCause, limits: &Limits) -> Self {
        match cause {
            StopCause::Caller { reason } => Self::terminated(reason),
            StopCause::WallLimit => wall_limit(limits),
            StopCause::Broken { correlation } => Self::error(
                reasons::INTERNAL_PROGRAM,
                format!("a tool failed unexpectedly; correlation id {correlation}"),
            ),
            StopCause::CallLimit => Self::error(
                reasons::CALL_LIMIT,
                format!("the program has more than {} calls unanswered", limits.pending_calls),
            ),
        }
    }
}

pub(super) fn unreported(end: HostEnd, ended: &crate::link::HostEnded, limits: &Limits) -> Ending {
    let peak = ended.peak_memory_bytes;
    match end {
        HostEnd::WallLimit => wall_limit(limits),
        HostEnd::MemoryLimit => Ending::error(
            reasons::MEMORY_LIMIT,
            format!("the program used more memory than {} bytes (peak {peak})", limits.memory_bytes),
        ),
        HostEnd::ProcessLimit => {
            Ending::error(reasons::PROCESS_LIMIT, "the program had more processes or threads than it may")
        }
        HostEnd::CpuLimit => Ending::error(
            reasons::CPU_LIMIT,
            format!("the program used more processor time than {} ms", limits.cpu_ms),
        ),
        HostEnd::OutputLimit => Ending::error(
            reasons::OUTPUT_LIMIT,
            format!("the program wrote more output than {} bytes", limits.output_bytes),
        ),
        HostEnd::TurnLimit => {
            Ending::error(reasons::TURN_LIMIT, format!("a turn took longer than {} ms", limits.turn_ms))
        }
        HostEnd::Protocol => Ending::error(
            reasons::PROTOCOL,
            format!("the program's host broke its protocol: {}", truncate_bytes(&ended.detail, 1024)),
        ),
        HostEnd::Reported | HostEnd::Stopped | HostEnd::Lost => {
            let how = how_it_ended(truncate_bytes(&ended.signal, 32).as_ref(), ended.exit_status);
            Ending::lost(reasons::HOST_LOST, how)
        }
    }
}

fn wall_limit(limits: &Limits) -> Ending {
    let message = format!("the program timed out: it took longer than {} ms", limits.wall_ms);
    Ending::error(reasons::WALL_LIMIT, message)
}

/// What a value that is outside our bounds comes to: a program can make one that is too large for
/// them, but only a host that breaks its protocol sends what is no JSON.
pub(super) fn no_value(error: &value::Error) -> Ending {
    let code = match error {
        value::Error::Digits { .. } => reasons::NUMBER_LIMIT,
        value::Error::Bytes { .. } | value::Error::Count { .. } => reasons::VALUE_LIMIT,
        value::Error::Depth { .. } => reasons::UNSERIALIZABLE,
        value::Error::NumberOverflow { .. }
        | value::Error::LoneSurrogate { .. }
        | value::Error::Syntax { .. } => reasons::PROTOCOL,
    };
    Ending::error(code, format!("the value can't be taken: {error}"))
}

/// A host can name only codes that are a program's own doing.
pub(super) fn clean_error(error: ProgramError, limits: &Limits) -> ProgramError {
    const OF_HOSTS: &[&str] = &[
        reasons::SYNTAX_ERROR,
        reasons::IMPORT_DENIED,
        reasons::DEADLOCK,
        reasons::TURN_LIMIT,
        reasons::CPU_LIMIT,
        reasons::MEMORY_LIMIT,
        reasons::OUTPUT_LIMIT,
        reasons::VALUE_LIMIT,
        reasons::UNSERIALIZABLE,
        reasons::NUMBER_LIMIT,
        reasons::CALL_LIMIT,
        reasons::STORE_LIMIT,
    ];
    let code = OF_HOSTS.iter().find(|code| **code == error.code).copied().unwrap_or(reasons::EXCEPTION);
    let budget = usize::try_from(limits.error_bytes).unwrap_or(usize::MAX);
    ProgramError {
        code: code.to_owned(),
        message: truncate_bytes(&error.message, budget).into_owned(),
        class: truncate_bytes(&error.class, NAME_BYTES_MAX).into_owned(),
        line: error.line,
        column: error.column,
        backtrace: truncate_bytes(&error.backtrace, budget).into_owned(),
        effective_calls: Vec::new(),
        safe_to_repeat: false,
    }
}

pub(super) fn clean_warnings(warnings: Vec<Warning>) -> Vec<Warning> {
    const CODES: &[&str] = &[reasons::UNAWAITED_CALL, reasons::UNHANDLED_REJECTION, reasons::LOSSY_VALUE];
    warnings
        .into_iter()
        .filter(|warning| CODES.contains(&warning.code.as_str()))
        .take(WARNINGS_MAX)
        .map(|warning| Warning { message: truncate_bytes(&warning.message, 1024).into_owned(), ..warning })
        .collect()
}
