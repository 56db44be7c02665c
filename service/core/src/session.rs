//! Sessions as records.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{CatalogDigest, Epoch, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use crate::limits::Limits;
use crate::time::Timestamp;

/// What a session is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SessionState {
    /// It takes programs.
    Open,
    /// It was closed, but the end of its sandbox is not proven yet.
    Closing,
    /// It is over; its log can be read.
    Closed,
}

/// What the caller opened, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Whom it belongs to.
    pub tenant: TenantId,
    /// Its id.
    pub id: SessionId,
    /// What it is at.
    pub state: SessionState,
    /// Why it is closing or closed; else empty.
    pub reason: String,
    /// The engine's name.
    pub engine: String,
    /// The lowest interpreter version the caller takes; empty for any.
    pub min_version: String,
    /// Optional parts of the engine that are on.
    pub engine_options: Vec<String>,
    /// The limits in force.
    pub limits: Limits,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// The catalog of programs that name none.
    pub catalog: Option<CatalogDigest>,
    /// How long the sandbox is kept with no program running.
    pub idle_timeout: Duration,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Timestamp,
    /// The program that is queued or runs.
    pub active_program: Option<ProgramNumber>,
    /// The last program's number; 0 when none.
    pub last_program: u64,
    /// The sandbox it holds.
    pub sandbox: Option<SandboxId>,
    /// The last event's number.
    pub last_seq: EventSeq,
    /// What programs keep through `store`: JSON text by key.
    pub kept: BTreeMap<String, String>,
    /// The newest observation: the program and the last event it covered.
    pub observed: Option<(ProgramNumber, EventSeq)>,
    /// The owner's epoch.
    pub epoch: Epoch,
}
