//! Programs and their calls as records.

use serde::{Deserialize, Serialize};

use crate::ids::{BlobId, CallId, CatalogDigest, EventSeq, ProgramNumber, SessionId};
use crate::time::Timestamp;

/// How many of a program's calls its record lists.
pub const CALLS_LISTED_MAX: usize = 1_000;
/// Texts up to this size stand in the record; larger ones are blobs, in bytes.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Arguments of all calls in one record, in bytes; beyond it they are left out there.
pub const LISTED_ARGUMENT_BYTES_MAX: usize = 1024 * 1024;

/// What became of a program. Everything from `Completed` on is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProgramState {
    /// Accepted; its sandbox is being got ready.
    Queued,
    /// It runs.
    Running,
    /// It ran to its end.
    Completed,
    /// It was stopped by a caller or by the end of its session.
    Terminated,
    /// It failed by its own doing, limits included.
    Error,
    /// Its host or sandbox was lost while it ran.
    Lost,
    /// It never ran.
    NotStarted,
}

impl ProgramState {
    /// Whether nothing can change any more.
    pub fn is_final(self) -> bool {
        !matches!(self, ProgramState::Queued | ProgramState::Running)
    }
}

/// JSON or other text that may be too large for a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The text.
    Inline(String),
    /// The text is a blob.
    Blob {
        /// Which.
        id: BlobId,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The text is left out of this record; the event that it came with has it.
    Omitted {
        /// Its size in bytes.
        bytes: u64,
    },
}

/// What became of a call. Everything from `Finished` on is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallState {
    /// It waits for its turn.
    Queued,
    /// A provider has it, or it waits for one.
    Dispatched,
    /// It gave a result.
    Finished,
    /// It failed: the tool said so, or it was refused before dispatch.
    Failed,
    /// It was cancelled after dispatch; a provider that had it was told.
    Cancelled,
    /// It never reached a provider.
    NotStarted,
    /// It reached a provider and nobody can tell what it did.
    OutcomeUnknown,
}

impl CallState {
    /// Whether nothing can change any more.
    pub fn is_final(self) -> bool {
        !matches!(self, CallState::Queued | CallState::Dispatched)
    }
}

/// Why a call failed, as the program may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// A stable code: the tool's own, or one of [`crate::reasons`].
    pub code: String,
    /// What happened, safe for a model to read.
    pub message: String,
    /// Whether the same call can succeed later.
    pub retryable: bool,
}

impl CallError {
    /// An error of ours: code from the reasons' table.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), retryable: false }
    }
}

/// A tool call of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// Its id.
    pub id: CallId,
    /// The tool's canonical name, or what the program wrote.
    pub tool: String,
    /// What became of it.
    pub state: CallState,
    /// Its arguments as JSON text.
    pub arguments: Payload,
    /// Set with [`CallState::Failed`].
    pub error: Option<CallError>,
    /// The tool was declared read-only: the call has no effect to repeat.
    pub read_only: bool,
    /// When the program made it.
    pub created_at: Timestamp,
    /// When it was dispatched.
    pub dispatched_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// Something a call left behind that is no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRecord {
    /// The blob that holds it.
    pub blob: BlobId,
    /// Its name.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub bytes: u64,
    /// The call that left it.
    pub call: CallId,
}

/// A program's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueRecord {
    /// JSON text, cut to its budget and still valid.
    pub json: String,
    /// Set when `json` is cut.
    pub cut: Option<ValueCut>,
}

/// The whole of a value that was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueCut {
    /// The size of the whole as JSON text.
    pub original_bytes: u64,
    /// The blob that holds it.
    pub blob: BlobId,
}

/// Why a program failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgramError {
    /// A stable code of [`crate::reasons`].
    pub code: String,
    /// What happened, in a sentence.
    pub message: String,
    /// The exception's class, where there was one.
    pub class: String,
    /// The line in the source, from 1; 0 when unknown.
    pub line: u32,
    /// The column in the source, from 1; 0 when unknown.
    pub column: u32,
    /// The backtrace with the frames of the source only.
    pub backtrace: String,
    /// The calls that took effect or may have; calls to read-only tools are left out.
    pub effective_calls: Vec<CallId>,
    /// Whether running the source again repeats no effect.
    pub safe_to_repeat: bool,
}

/// Something to know about a result that is not a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// A stable code of [`crate::reasons`].
    pub code: String,
    /// What happened, in a sentence.
    pub message: String,
}

/// What a program used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, in microseconds.
    pub cpu_us: u64,
    /// Wall time from accepted to ended, in microseconds.
    pub wall_us: u64,
    /// Largest memory of its host, in bytes.
    pub peak_memory_bytes: u64,
    /// Calls dispatched.
    pub n_calls: u64,
    /// Time the sandbox was held for it, in microseconds.
    pub sandbox_us: u64,
}

/// One execution of source in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRecord {
    /// The session.
    pub session: SessionId,
    /// Its number.
    pub number: ProgramNumber,
    /// The event that accepted it: its first.
    pub first_seq: EventSeq,
    /// The event that ended it: its last; 0 until then.
    pub last_seq: EventSeq,
    /// What became of it.
    pub state: ProgramState,
    /// Why, for `Terminated`, `Lost` and `NotStarted`: a reason of [`crate::reasons`]; else empty.
    pub reason: String,
    /// More about the reason, safe for the caller to read: a signal's name, a limit; else empty.
    pub detail: String,
    /// Its value; only of a completed program.
    pub value: Option<ValueRecord>,
    /// Why it failed; only with `Error`.
    pub error: Option<ProgramError>,
    /// What a reader should know.
    pub warnings: Vec<Warning>,
    /// What it used.
    pub usage: Usage,
    /// Its calls in program order, the first [`CALLS_LISTED_MAX`].
    pub calls: Vec<CallRecord>,
    /// How many it made in all.
    pub n_calls: u64,
    /// What its calls left behind.
    pub artifacts: Vec<ArtifactRecord>,
    /// The language it was written in.
    pub language: String,
    /// The catalog it ran with.
    pub catalog: Option<CatalogDigest>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it began to run.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}
