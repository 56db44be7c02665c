//! The port to the store: sessions, their logs, programs, blobs, catalogs, idempotency keys and
//! used sandboxes.
//!
//! Guarantees: an append is one transaction and is durable when the call returns; what was
//! acknowledged survives a kill at any point. A record of another tenant is never given.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::ids::{BlobId, CatalogDigest, Epoch, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use crate::program::ProgramRecord;
use crate::session::{SessionRecord, SessionState};
use crate::time::Timestamp;

/// The longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 128;

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another owner has taken the session: nothing was written.
    #[error("session {session} has another owner: epoch {ours:?} is stale")]
    StaleEpoch { session: SessionId, ours: Epoch },
    /// The session is not in the store.
    #[error("session {session} is not in the store")]
    NoSession { session: SessionId },
    /// The events do not follow the last one: nothing was written.
    #[error("events of session {session} from {given} do not follow {last}")]
    OutOfOrder { session: SessionId, given: EventSeq, last: EventSeq },
    /// The sandbox was used before: nothing was written.
    #[error("sandbox {sandbox} was used before")]
    SandboxUsed { sandbox: SandboxId },
    /// The idempotency key is taken: nothing was written. Look it up.
    #[error("idempotency key {key:?} is taken")]
    KeyTaken { key: String },
    /// The disk or a configured cap is full: nothing was written.
    #[error("the store is full: {message}")]
    Full { message: String },
    /// The store can't be reached or failed: nothing is known to be written.
    #[error("the store failed while {doing}")]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// The cause, for the log.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Bytes to keep beside a session's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBlob {
    /// Its id.
    pub id: BlobId,
    /// Its media type.
    pub media_type: String,
    /// Its bytes.
    pub data: Bytes,
}

/// A blob's facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobInfo {
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub bytes: u64,
}

/// A request that was done, kept for 24 hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneRequest {
    /// The method, such as "Execute".
    pub method: String,
    /// The caller's key, at most [`IDEMPOTENCY_KEY_BYTES_MAX`].
    pub key: String,
    /// The digest of the whole request.
    pub request_digest: String,
    /// What it made: a session id, a program's number, or nothing.
    pub outcome: String,
    /// When it was done.
    pub at: Timestamp,
}

/// One transaction on one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// Whose session.
    pub tenant: TenantId,
    /// Which.
    pub session: SessionId,
    /// The owner's epoch: refused when another is in force.
    pub epoch: Epoch,
    /// The events, numbered from the session's last one on.
    pub events: Vec<Event>,
    /// The session as it is after them; none when only `last_seq` moved.
    pub record: Option<Box<SessionRecord>>,
    /// Programs that changed.
    pub programs: Vec<ProgramRecord>,
    /// New blobs.
    pub blobs: Vec<NewBlob>,
    /// A sandbox that is used from now on, and never again.
    pub uses_sandbox: Option<SandboxId>,
    /// The runner's frames up to this number are in these events.
    pub acknowledges: Option<(SandboxId, u64)>,
    /// The request that this does.
    pub done: Option<DoneRequest>,
}

impl Append {
    /// An append of nothing.
    pub fn empty(tenant: TenantId, session: SessionId, epoch: Epoch) -> Self {
        Self {
            tenant,
            session,
            epoch,
            events: Vec::new(),
            record: None,
            programs: Vec::new(),
            blobs: Vec::new(),
            uses_sandbox: None,
            acknowledges: None,
            done: None,
        }
    }
}

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionFilter {
    /// Only at this state.
    pub state: Option<SessionState>,
    /// Only with all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Only sessions older than this one (ids sort by age): the page token.
    pub before: Option<SessionId>,
    /// At most this many.
    pub n_max: usize,
}

/// What is deleted, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Sessions that were closed before this go, with all they have.
    pub closed_before: Timestamp,
    /// Requests that were done before this are forgotten.
    pub done_before: Timestamp,
    /// The most bytes of closed sessions that are kept; the oldest go first.
    pub closed_bytes_max: u64,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSize {
    /// Sessions.
    pub n_sessions: u64,
    /// Events.
    pub n_events: u64,
    /// Bytes of events and blobs.
    pub bytes: u64,
}

/// Keeps sessions.
///
/// Cancellation: a dropped call may still be done as a whole or not at all; it is never done in
/// part.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Makes a session with its first events. One transaction.
    async fn create(&self, record: SessionRecord, first: Append) -> Result<(), Error>;

    /// Appends to a session. One transaction.
    async fn append(&self, append: Append) -> Result<(), Error>;

    /// Takes a session over: its epoch rises by one, an event is appended, and the record with both
    /// is given back. One transaction.
    async fn take_over(&self, session: SessionId, at: Timestamp) -> Result<SessionRecord, Error>;

    /// Events from `from` on, in order: at most `n_max` and, after the first, `bytes_max`.
    async fn events(
        &self,
        session: SessionId,
        from: EventSeq,
        n_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error>;

    /// A session of a tenant.
    async fn session(&self, tenant: &TenantId, id: SessionId) -> Result<Option<SessionRecord>, Error>;

    /// Sessions of a tenant, newest first.
    async fn sessions(&self, tenant: &TenantId, filter: SessionFilter) -> Result<Vec<SessionRecord>, Error>;

    /// All sessions of all tenants that are not closed, for the start of the service.
    async fn unfinished(&self) -> Result<Vec<SessionRecord>, Error>;

    /// A program, as it was when it last changed.
    async fn program(
        &self,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<Option<ProgramRecord>, Error>;

    /// The number up to which a sandbox's frames are committed; 0 when none.
    async fn acknowledged(&self, sandbox: SandboxId) -> Result<u64, Error>;

    /// Whether a sandbox was used by a session, be it one that is kept no more.
    async fn is_used(&self, sandbox: SandboxId) -> Result<bool, Error>;

    /// A blob's facts.
    async fn blob_info(&self, session: SessionId, id: BlobId) -> Result<Option<BlobInfo>, Error>;

    /// Bytes of a blob from `offset` on, at most `n_max`.
    async fn blob(&self, session: SessionId, id: BlobId, offset: u64, n_max: usize) -> Result<Bytes, Error>;

    /// Keeps a catalog of a tenant, as the JSON of [`crate::catalog::Catalog::to_json`].
    async fn put_catalog(
        &self,
        tenant: &TenantId,
        digest: &CatalogDigest,
        json: Bytes,
        done: Option<DoneRequest>,
    ) -> Result<(), Error>;

    /// A catalog of a tenant.
    async fn catalog(&self, tenant: &TenantId, digest: &CatalogDigest) -> Result<Option<Bytes>, Error>;

    /// A request that was done.
    async fn done_request(
        &self,
        tenant: &TenantId,
        method: &str,
        key: &str,
    ) -> Result<Option<DoneRequest>, Error>;

    /// Deletes what retention says. Gives the number of sessions deleted.
    async fn sweep(&self, retention: Retention) -> Result<u64, Error>;

    /// How much there is.
    async fn size(&self) -> Result<StoreSize, Error>;

    /// Finishes what is queued and lets go of the files. Later calls fail.
    async fn close(&self);
}
