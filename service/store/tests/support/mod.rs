//! What the tests of stores share: ids, and the record of a session.

use std::collections::BTreeMap;
use std::time::Duration;

use seance_core::ids::{Epoch, EventSeq, SandboxId, SessionId, TenantId};
use seance_core::limits::Limits;
use seance_core::session::{SessionRecord, SessionState};
use seance_core::time::Timestamp;

/// When everything happens.
pub const AT: Timestamp = Timestamp(1_700_000_000_000_000);

/// Session `n`; later numbers are newer.
pub fn session_id(n: u8) -> SessionId {
    SessionId::mint(AT, [n; 10])
}

/// Sandbox `n`.
pub fn sandbox_id(n: u8) -> SandboxId {
    SandboxId::mint(AT, [n; 10])
}

/// The record of session `n`, open and without an event.
pub fn record(n: u8) -> SessionRecord {
    SessionRecord {
        tenant: TenantId::default_tenant(),
        id: session_id(n),
        state: SessionState::Open,
        reason: String::new(),
        engine: "javascript".to_owned(),
        min_version: String::new(),
        engine_options: Vec::new(),
        limits: Limits::default(),
        labels: BTreeMap::new(),
        catalog: None,
        idle_timeout: Duration::from_secs(60),
        created_at: AT,
        expires_at: AT,
        active_program: None,
        last_program: 0,
        sandbox: None,
        last_seq: EventSeq(0),
        kept: BTreeMap::new(),
        observed: None,
        epoch: Epoch(1),
    }
}
