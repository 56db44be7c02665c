//! What goes between a session, the broker and whoever answers its calls.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use seance_core::ids::CallId;
use seance_core::limits::Limits;
use seance_core::program::{CallError, CallState};
use seance_core::reasons;
use tokio_util::sync::CancellationToken;

/// What one call may give back, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultLimits {
    /// The value or text. Over it the call fails with `result_too_large`.
    pub result_bytes: u64,
    /// One artifact. Over it the call fails with `artifact_limit`.
    pub artifact_bytes: u64,
    /// All artifacts of the call. Over it the call fails with `artifact_limit`.
    pub artifacts_bytes: u64,
    /// An error's message. Over it the middle is cut.
    pub error_bytes: u64,
}

impl From<&Limits> for ResultLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            result_bytes: limits.result_bytes,
            artifact_bytes: limits.artifact_bytes,
            artifacts_bytes: limits.artifacts_bytes,
            error_bytes: limits.error_bytes,
        }
    }
}

/// A call that the session has reserved and recorded, to be answered.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// Its id, which is the provider's idempotency key.
    pub id: CallId,
    /// The tool's canonical name (D16).
    pub tool: Arc<str>,
    /// Its checked arguments as JSON text.
    pub arguments: Arc<str>,
    /// How long the provider has, from when the call is first given to one.
    pub timeout: Duration,
    /// The tool was declared read-only or replay-safe: the call may be sent again.
    pub repeatable: bool,
    /// A provider may have it already, because another start of the service dispatched it. It waits
    /// for that provider to say so.
    pub maybe_seen: bool,
    /// The W3C trace context of the call.
    pub traceparent: Option<Arc<str>>,
    /// What it may give back.
    pub limits: ResultLimits,
}

/// Why a call was not taken. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// The session is closed.
    #[error("the session is closed")]
    Closed,
    /// A call of this id is at work or its answer isn't fetched yet.
    #[error("the call is already dispatched")]
    Duplicate,
    /// [`super::CALLS_MAX`] calls are at work or answered and not fetched.
    #[error("too many calls are unanswered")]
    Full,
}

/// Bytes that a call leaves behind beside its value (P3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactBytes {
    /// Its name; made safe before the session sees it.
    pub name: String,
    /// Its media type; made safe before the session sees it.
    pub media_type: String,
    /// Its bytes.
    pub data: Bytes,
}

/// What a provider gives for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A structured value as JSON text, not checked yet.
    Value(String),
    /// Text.
    Text(String),
    /// An expected failure that the program can catch.
    Error(CallError),
    /// An unexpected failure (D10): it ends the program, and its text goes to the log only.
    Failure(String),
    /// The provider says that it did not begin: nothing has taken effect. Its text goes to the log
    /// only.
    NotStarted(String),
}

/// A provider's result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The value or why there is none.
    pub content: Content,
    /// What the call leaves behind.
    pub artifacts: Vec<ArtifactBytes>,
}

impl From<Content> for ToolResult {
    fn from(content: Content) -> Self {
        Self { content, artifacts: Vec::new() }
    }
}

/// How a dispatched call ended. Sizes are within the call's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A structured value as JSON text, not checked against the schema yet.
    Value(String),
    /// Text.
    Text(String),
    /// An expected failure.
    Error(CallError),
    /// An unexpected failure (D10): it ends the program, and its text goes to the log only.
    Failure(String),
    /// Nobody served the tool in time; the call wasn't started.
    NoProvider,
    /// The provider did not answer in time.
    Timeout,
    /// The call provably never reached a provider.
    NotStarted,
    /// It reached a provider and nobody can tell what it did.
    Unknown,
}

impl Outcome {
    /// The state of the call's record.
    pub fn state(&self) -> CallState {
        match self {
            Outcome::Value(_) | Outcome::Text(_) => CallState::Finished,
            Outcome::Error(_) | Outcome::Failure(_) => CallState::Failed,
            Outcome::NoProvider | Outcome::NotStarted => CallState::NotStarted,
            Outcome::Timeout | Outcome::Unknown => CallState::OutcomeUnknown,
        }
    }

    /// What the program catches, where the call gave no value. The text of an unexpected failure
    /// is not in it (case 43).
    pub fn error(&self) -> Option<CallError> {
        match self {
            Outcome::Value(_) | Outcome::Text(_) => None,
            Outcome::Error(error) => Some(error.clone()),
            Outcome::Failure(_) => Some(ours(reasons::INTERNAL_PROGRAM)),
            Outcome::NoProvider => Some(ours(reasons::NO_PROVIDER)),
            Outcome::Timeout => Some(ours(reasons::CALL_TIMEOUT)),
            Outcome::NotStarted => Some(ours(reasons::NOT_STARTED_CALL)),
            Outcome::Unknown => Some(ours(reasons::OUTCOME_UNKNOWN)),
        }
    }
}

/// An error of the reasons' table, in its own words.
fn ours(code: &str) -> CallError {
    let row = reasons::TABLE.iter().find(|reason| reason.name == code).expect("our codes are in the table");
    let message = format!("{} {}", row.meaning, row.remedy);
    CallError { code: code.to_owned(), message, retryable: row.retry }
}

/// The end of a dispatched call. Every call that [`super::SessionCalls::dispatch`] took comes once,
/// unless a cancel or the end of the session took it first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The call.
    pub call: CallId,
    /// How it ended.
    pub outcome: Outcome,
    /// What it left behind: none unless it gave a value or an expected failure.
    pub artifacts: Vec<ArtifactBytes>,
}

/// Why a call's result is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// The program was stopped or ended.
    Stopped,
    /// The program gave up on the call.
    Aborted,
    /// The call took longer than it may.
    Timeout,
    /// The session was closed.
    SessionClosed,
}

impl CancelReason {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            CancelReason::Stopped => "STOPPED",
            CancelReason::Aborted => "ABORTED",
            CancelReason::Timeout => "TIMEOUT",
            CancelReason::SessionClosed => "SESSION_CLOSED",
        }
    }
}

/// What a cancelled call is known to have come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancelled {
    /// It never reached a provider.
    NotStarted,
    /// A provider had it and was told.
    Told,
    /// It reached a provider that is lost and can't be told.
    Unknown,
    /// It had ended already: its [`Answered`] is there or was fetched, or it was never dispatched.
    Over,
}

/// What a provider's stream is to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToProvider {
    /// A call to answer.
    Call(ProviderCall),
    /// A call whose result is no longer wanted.
    Cancel {
        /// The call.
        call: CallId,
        /// Why.
        reason: CancelReason,
    },
    /// The result of a call is durable: the provider may forget it.
    Recorded {
        /// The call.
        call: CallId,
    },
}

/// A call as a provider gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderCall {
    /// Its id, the idempotency key.
    pub id: CallId,
    /// The tool's canonical name.
    pub tool: Arc<str>,
    /// Its arguments as JSON text.
    pub arguments: Arc<str>,
    /// How much time is left.
    pub timeout: Duration,
    /// The W3C trace context of the call.
    pub traceparent: Option<Arc<str>>,
    /// It may have been sent before; only with tools declared read-only or replay-safe.
    pub repeated: bool,
}

/// What a provider says when it attaches.
#[derive(Debug, Clone, Default)]
pub struct Attach {
    /// The tools it serves; all that no other provider serves when empty.
    pub tools: Vec<String>,
    /// It was attached before, and the lists below say what became of the calls it had. A call in
    /// none of them was never seen.
    pub again: bool,
    /// Calls it is still at work on.
    pub held: Vec<CallId>,
    /// Calls it has finished.
    pub finished: Vec<(CallId, ToolResult)>,
    /// Calls it can't tell of.
    pub unknown: Vec<CallId>,
}

/// Why a provider could not attach. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another provider serves the tool; `*` is all that no one else serves.
    #[error("another provider serves {tool:?}")]
    Conflict { tool: String },
    /// No such session is open here.
    #[error("no such session is open")]
    NoSession,
    /// The session declared its tools and has none of this name.
    #[error("the session has no tool {tool:?}")]
    UnknownTool { tool: String },
    /// The request contradicts itself or is too long.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Why an answer was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The session is not open here, or has dispatched no such call.
    #[error("there is no such call")]
    NotFound,
    /// The call has ended.
    #[error("the call has ended")]
    NotPending,
    /// A provider has the call and will answer it.
    #[error("a provider has the call")]
    Served,
}

/// What became of a result that a provider's stream brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It ends the call.
    Delivered,
    /// The call had ended; the result is dropped (K14, I12).
    Late,
    /// The call is pending but this provider doesn't have it; the result is dropped.
    NotYours,
}

/// A call as an in-process tool gets it.
#[derive(Debug, Clone)]
pub struct LocalCall {
    /// What every provider gets.
    pub call: ProviderCall,
    /// Set when the result is no longer wanted. The tool then has
    /// [`super::LOCAL_CANCEL_GRACE`] to end by itself before its future is dropped.
    pub cancelled: CancellationToken,
}

/// A tool, or several, in this process.
#[async_trait]
pub trait ToolHandler: Send + Sync + 'static {
    /// Answers a call.
    ///
    /// The first poll happens in the session's own task, so that an answer that is ready at once
    /// costs no task: what blocks or computes for long belongs on another thread. A panic becomes
    /// an unexpected failure. The future is dropped when it outlives its cancellation.
    async fn call(&self, call: LocalCall) -> ToolResult;
}
