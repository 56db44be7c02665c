//! Events: the records of a session's log. What callers observe is read from these.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{CatalogDigest, Epoch, EventSeq, ProgramNumber, SandboxId};
use crate::limits::Limits;
use crate::program::{ArtifactRecord, CallRecord, Payload, ProgramRecord};
use crate::sandbox::SandboxEnd;
use crate::time::Timestamp;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputSource {
    /// `text()` or its equivalent.
    Text,
    /// Standard output of the program's host.
    Stdout,
    /// Standard error of the program's host.
    Stderr,
}

/// One record of a session's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number in the session.
    pub seq: EventSeq,
    /// When it was recorded.
    pub at: Timestamp,
    /// The program it is about; none for the session itself.
    pub program: Option<ProgramNumber>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// The session was opened.
    SessionOpened {
        /// The engine's name.
        engine: String,
    },
    /// A sandbox was assigned.
    SandboxAssigned {
        /// Which.
        sandbox: SandboxId,
    },
    /// The sandbox ended.
    SandboxEnded {
        /// Which.
        sandbox: SandboxId,
        /// Why.
        end: SandboxEnd,
    },
    /// A program was accepted.
    ProgramAccepted {
        /// The language it is written in.
        language: String,
        /// The source; empty where redaction is on.
        source: Payload,
        /// The catalog it runs with.
        catalog: Option<CatalogDigest>,
        /// Its limits; none for the session's.
        #[serde(default)]
        limits: Option<Box<Limits>>,
    },
    /// A program began to run.
    ProgramStarted {
        /// The interpreter's version.
        engine_version: String,
    },
    /// A program wrote output.
    Output {
        /// Where it came from.
        source: OutputSource,
        /// The bytes as they came, the separator not included.
        data: Bytes,
        /// A newline stands before it, because `text()` was called before (H7).
        separated: bool,
    },
    /// A program made a call. Its state is `Queued`, `Dispatched` or, when refused, `Failed`.
    CallMade(CallRecord),
    /// A call left the line and was dispatched.
    CallDispatched {
        /// The call's number.
        call: u64,
    },
    /// A call ended. Its state is final.
    CallEnded {
        /// The call as it is now.
        record: CallRecord,
        /// The value as JSON text, with `Finished`.
        value: Option<Payload>,
    },
    /// A call left something behind.
    Artifact(ArtifactRecord),
    /// A program ended.
    ProgramEnded(Box<ProgramRecord>),
    /// A host that ran no program ended.
    HostExited {
        /// How, such as "signal SIGKILL".
        how: String,
        /// Bytes it wrote to standard error.
        stderr_bytes: u64,
    },
    /// A caller observed a program up to an event.
    Observed {
        /// The event.
        up_to: EventSeq,
    },
    /// The session is closing.
    SessionClosing {
        /// Why.
        reason: String,
    },
    /// The session is closed.
    SessionClosed,
    /// Another start of the service owns the session.
    OwnerChanged {
        /// The new epoch.
        epoch: Epoch,
    },
}
