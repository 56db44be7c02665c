//! What can go wrong with a request, as its caller learns it.

use std::time::Duration;

use seance_core::ids::{ProgramNumber, SessionId};
use seance_core::machine::Refusal;
use seance_core::sandbox::ClaimError;
use seance_core::{limits, reasons, store};

/// Why a request was not done. [`Error::reason`] is its row in the reasons' table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request can't be honoured as it is.
    #[error("{message}")]
    Invalid {
        /// A reason of the table.
        reason: &'static str,
        /// What is wrong, naming it.
        message: String,
        /// The field, as the API names it; empty when it is the whole request.
        field: &'static str,
    },
    /// A limit is unknown, out of range, or over the session's.
    #[error(transparent)]
    Limit(#[from] limits::Error),
    /// The caller has no such session.
    #[error("there is no session {session}")]
    NoSession { session: SessionId },
    /// Another control of the session is at work (A12).
    #[error("another execute, wait, stop or close of session {session} is at work{note}")]
    ControlActive {
        /// Which session.
        session: SessionId,
        /// What else the caller should know; empty, or begins with a separator.
        note: &'static str,
    },
    /// The program was lost or never started.
    #[error("program {program} of session {session} {what}: {reason}{detail}")]
    ProgramLost {
        /// The session.
        session: SessionId,
        /// The program.
        program: ProgramNumber,
        /// The reason in the program's record.
        reason: &'static str,
        /// "was lost" or "never started".
        what: &'static str,
        /// More; empty, or begins with a separator.
        detail: String,
    },
    /// No sandbox could be had.
    #[error(transparent)]
    Sandbox(#[from] ClaimError),
    /// The runner of a new sandbox did not take the session.
    #[error("the sandbox did not take the session: {message}")]
    SandboxNotReady {
        /// What is known.
        message: String,
    },
    /// The end of a sandbox is not proven (A16).
    #[error("session {session} is closing, and the end of its sandbox is not proven: {message}")]
    CleanupUnproven {
        /// Which session.
        session: SessionId,
        /// What is known.
        message: String,
    },
    /// The tenant has as many sessions or programs as it may.
    #[error("{message}")]
    TooMany {
        /// Which limit.
        message: String,
    },
    /// The store refused or failed.
    #[error("the store could not do it")]
    Store(#[from] store::Error),
    /// The service is stopping.
    #[error("the service is stopping")]
    Stopping,
}

impl Error {
    /// An invalid request.
    pub(crate) fn invalid(reason: &'static str, field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { reason, message: message.into(), field }
    }

    /// The reason in the table.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Refused(refusal) => refusal.reason(),
            Error::Invalid { reason, .. } => reason,
            Error::Limit(limits::Error::Unknown { .. }) => reasons::UNSUPPORTED,
            Error::Limit(_) => reasons::LIMIT_OUT_OF_RANGE,
            Error::NoSession { .. } => reasons::SESSION_NOT_FOUND,
            Error::ControlActive { .. } => reasons::CONTROL_ACTIVE,
            Error::ProgramLost { reason, .. } => reason,
            Error::Sandbox(ClaimError::Unavailable { .. }) => reasons::CONFINEMENT_UNAVAILABLE,
            Error::Sandbox(
                ClaimError::Exhausted { .. } | ClaimError::Queued { .. } | ClaimError::QueueFull { .. },
            ) => reasons::SANDBOX_EXHAUSTED,
            Error::Sandbox(ClaimError::NoPool { .. }) => reasons::NO_POOL,
            Error::Sandbox(ClaimError::Blocked { reason, .. }) => reason.name(),
            Error::Sandbox(ClaimError::StartFailed { .. }) | Error::SandboxNotReady { .. } => {
                reasons::SANDBOX_UNAVAILABLE
            }
            Error::Sandbox(ClaimError::Stopping) | Error::Stopping => reasons::SERVICE_STOPPING,
            Error::CleanupUnproven { .. } => reasons::CLEANUP_UNPROVEN,
            Error::TooMany { .. } => reasons::TOO_MANY_SESSIONS,
            Error::Store(error) => store_reason(error),
        }
    }

    /// Facts for the status: names and values of its metadata.
    pub fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Error::ProgramLost { session, program, detail, .. } => vec![
                ("session_id", session.to_string()),
                ("program_number", program.to_string()),
                ("detail", detail.trim_start_matches([',', ' ']).to_owned()),
            ],
            Error::Refused(Refusal::ProgramActive { program }) => {
                vec![("program_number", program.to_string())]
            }
            Error::ControlActive { session, .. } | Error::CleanupUnproven { session, .. } => {
                vec![("session_id", session.to_string())]
            }
            Error::Sandbox(ClaimError::Queued { position, .. }) => {
                vec![("queue_position", position.to_string())]
            }
            Error::Sandbox(ClaimError::QueueFull { n_waiting }) => {
                vec![("n_waiting", n_waiting.to_string())]
            }
            Error::Invalid { field, .. } if !field.is_empty() => vec![("field", (*field).to_owned())],
            _ => Vec::new(),
        }
    }

    /// When a retry makes sense, where that is known better than "later".
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Sandbox(
                ClaimError::Exhausted { .. } | ClaimError::Queued { .. } | ClaimError::QueueFull { .. },
            )
            | Error::TooMany { .. } => Some(Duration::from_secs(1)),
            // It stands until people or other sessions' ends change it.
            Error::Sandbox(ClaimError::Blocked { .. }) => Some(Duration::from_secs(10)),
            Error::ControlActive { .. } => Some(Duration::from_millis(100)),
            _ => None,
        }
    }
}

fn store_reason(error: &store::Error) -> &'static str {
    match error {
        store::Error::NoSession { .. } => reasons::SESSION_NOT_FOUND,
        store::Error::Full { .. } => reasons::STORE_FULL,
        store::Error::KeyTaken { .. } => reasons::IDEMPOTENCY_KEY_REUSED,
        store::Error::Failed { .. } => reasons::STORE_UNAVAILABLE,
        store::Error::StaleEpoch { .. } => reasons::SERVICE_STOPPING,
        store::Error::OutOfOrder { .. } | store::Error::SandboxUsed { .. } => reasons::INTERNAL,
    }
}
