//! One transaction of many appends: what each adds is packed by table, so that a batch of any size
//! is one statement and one trip to the database's thread.
//!
//! Rejected: a savepoint per append (several trips each, and the trips are what costs), and lists
//! of `VALUES` (another statement for every number of rows).

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use seance_core::ids::{CatalogDigest, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::session::SessionState;
use seance_core::store::{DoneRequest, Error, NewBlob};
use seance_core::time::Timestamp;
use serde::Serialize;
use sqlx::Arguments;
use sqlx::sqlite::SqliteArguments;

use super::tables::{TABLES, Table};
use crate::rules::{CatalogTotals, Head, PUT_AGAIN_AFTER, Staged, StagedEvent, admit, taken_over};

/// Bytes of a blob in one row.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;

/// A session's key in the database, and its head.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub key: i64,
    pub head: Head,
}

/// The row of `totals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub commits: i64,
    pub n_sessions: i64,
    pub n_events: i64,
    pub bytes: i64,
}

/// A catalog to keep.
#[derive(Debug)]
pub(super) struct NewCatalog {
    pub tenant: TenantId,
    pub digest: CatalogDigest,
    pub json: Bytes,
    pub put_at: Timestamp,
    pub done: Option<DoneRequest>,
}

/// An idempotency key with its scope: tenant, method, key.
pub(super) type RequestKey = (String, String, String);

/// A catalog with its scope.
pub(super) type CatalogKey = (TenantId, CatalogDigest);

/// What is known before a batch is made; it is kept up to date while it is made.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The sessions of the batch that exist.
    pub heads: HashMap<SessionId, Known>,
    /// The sandboxes of the batch that were used.
    pub used: HashSet<SandboxId>,
    /// The keys of the batch that are taken.
    pub taken: HashSet<RequestKey>,
    /// The catalogs of the batch that are kept, and when they were put.
    pub catalogs: HashMap<CatalogKey, Timestamp>,
    /// What the tenants of the batch's catalogs keep.
    pub catalog_totals: HashMap<TenantId, CatalogTotals>,
    /// The key of the next new session.
    pub next_session: i64,
    pub totals: Totals,
}

/// A transaction in the making.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub facts: Facts,
    /// Bytes that sessions grew by.
    grown: HashMap<SessionId, i64>,
    sessions: Rows,
    events: Rows,
    records: Rows,
    programs: Rows,
    blobs: Rows,
    chunks: Rows,
    sandboxes: Rows,
    requests: Rows,
    catalogs: Rows,
    catalogs_again: Rows,
    catalog_names: Rows,
}

impl Batch {
    pub fn new(facts: Facts) -> Self {
        Self { facts, ..Self::default() }
    }

    /// Adds an append, or says why it is refused; then nothing was added.
    pub fn append(&mut self, staged: &Staged) -> Result<(), Error> {
        let known = self.facts.heads.get(&staged.session);
        let head = admit(known.map(|known| &known.head), staged)?;
        let key = known.map(|known| known.key);
        if let Some(sandbox) = staged.uses_sandbox
            && self.facts.used.contains(&sandbox)
        {
            return Err(Error::SandboxUsed { sandbox });
        }
        self.check_free(&staged.tenant, staged.done.as_ref())?;
        let key = key.unwrap_or_else(|| self.new_session(staged));
        self.add(key, staged);
        self.move_head(staged.session, Known { key, head }, staged.events.len(), staged.bytes());
        Ok(())
    }

    /// Adds a takeover, or says why it is refused; then nothing was added.
    pub fn take_over(&mut self, session: SessionId, at: Timestamp) -> Result<(), Error> {
        let known = self.facts.heads.get(&session).ok_or(Error::NoSession { session })?;
        let key = known.key;
        let (head, event) = taken_over(&known.head, at)?;
        self.add_event(key, &event);
        self.move_head(session, Known { key, head }, 1, event.body.len() as u64);
        Ok(())
    }

    /// Adds a catalog, or says why it is refused; then nothing was added.
    pub fn catalog(&mut self, catalog: &NewCatalog) -> Result<(), Error> {
        let NewCatalog { tenant, digest, json, put_at, done } = catalog;
        self.check_free(tenant, done.as_ref())?;
        let key = (tenant.clone(), digest.clone());
        match self.facts.catalogs.get(&key) {
            Some(before) if put_at.since(*before) < PUT_AGAIN_AFTER => {}
            Some(_) => self.catalogs_again.push((tenant.as_str(), digest.as_str(), put_at.0)),
            None => {
                let totals = self.facts.catalog_totals.get(tenant).copied().unwrap_or_default();
                let totals = totals.with(tenant, json.len())?;
                self.facts.catalog_totals.insert(tenant.clone(), totals);
                let (at, n) = self.catalogs.keep(json);
                self.catalogs.push((tenant.as_str(), digest.as_str(), at, n, put_at.0));
            }
        }
        self.facts.catalogs.insert(key, *put_at);
        self.add_request(tenant, done.as_ref());
        Ok(())
    }

    /// What to bind to [`super::tables::insert`], which is the whole transaction, and its number in
    /// `totals`.
    pub fn into_arguments(mut self) -> (Facts, SqliteArguments) {
        self.facts.totals.commits += 1;
        let heads = self.heads();
        let mut arguments = SqliteArguments::default();
        let rows = [
            self.sessions,
            self.events,
            heads,
            self.records,
            self.programs,
            self.blobs,
            self.chunks,
            self.sandboxes,
            self.requests,
            self.catalogs,
            self.catalogs_again,
            self.catalog_names,
        ];
        for (table, rows) in TABLES.into_iter().zip(rows) {
            rows.bind(table, &mut arguments);
        }
        let totals = self.facts.totals;
        for total in [totals.commits, totals.n_sessions, totals.n_events, totals.bytes] {
            bind(&mut arguments, total);
        }
        (self.facts, arguments)
    }

    fn new_session(&mut self, staged: &Staged) -> i64 {
        let key = self.facts.next_session;
        self.facts.next_session += 1;
        self.facts.totals.n_sessions += 1;
        self.sessions.push((key, staged.session, staged.tenant.as_str()));
        key
    }

    fn add(&mut self, key: i64, staged: &Staged) {
        for event in &staged.events {
            self.add_event(key, event);
        }
        if let Some(record) = &staged.record {
            let (at, n) = self.records.keep(&record.body);
            self.records.push((key, &record.labels, at, n));
        }
        for (number, body) in &staged.programs {
            self.add_program(key, *number, body);
        }
        for blob in &staged.blobs {
            self.add_blob(key, blob);
        }
        if let Some(sandbox) = staged.uses_sandbox {
            self.facts.used.insert(sandbox);
            self.sandboxes.push((sandbox, 1, 0));
        }
        if let Some((sandbox, number)) = staged.acknowledges {
            self.sandboxes.push((sandbox, 0, int(number)));
        }
        for digest in &staged.catalogs {
            self.catalog_names.push((staged.tenant.as_str(), digest.as_str(), key));
        }
        self.add_request(&staged.tenant, staged.done.as_ref());
    }

    fn add_event(&mut self, key: i64, event: &StagedEvent) {
        let (at, n) = self.events.keep(&event.body);
        self.events.push((key, int(event.seq.0), at, n));
    }

    fn add_program(&mut self, key: i64, number: ProgramNumber, body: &[u8]) {
        let (at, n) = self.programs.keep(body);
        self.programs.push((key, int(number.0), at, n));
    }

    fn add_blob(&mut self, key: i64, blob: &NewBlob) {
        self.blobs.push((key, blob.id, &blob.media_type, blob.data.len()));
        for (number, chunk) in blob.data.chunks(CHUNK_BYTES).enumerate() {
            let (at, n) = self.chunks.keep(chunk);
            self.chunks.push((key, blob.id, number, at, n));
        }
    }

    fn add_request(&mut self, tenant: &TenantId, done: Option<&DoneRequest>) {
        let Some(done) = done else { return };
        self.facts.taken.insert(request_key(tenant, done));
        let DoneRequest { method, key, request_digest, outcome, at } = done;
        self.requests.push((tenant.as_str(), method, key, request_digest, outcome, at.0));
    }

    fn check_free(&self, tenant: &TenantId, done: Option<&DoneRequest>) -> Result<(), Error> {
        match done {
            Some(done) if self.facts.taken.contains(&request_key(tenant, done)) => {
                Err(Error::KeyTaken { key: done.key.clone() })
            }
            _ => Ok(()),
        }
    }

    fn move_head(&mut self, session: SessionId, known: Known, n_events: usize, bytes: u64) {
        let bytes = int(bytes);
        *self.grown.entry(session).or_default() += bytes;
        self.facts.totals.n_events += int(n_events as u64);
        self.facts.totals.bytes += bytes;
        self.facts.heads.insert(session, known);
    }

    /// Heads move once for all that the batch does to their session.
    fn heads(&self) -> Rows {
        let mut rows = Rows::default();
        for (session, bytes) in &self.grown {
            let Known { key, head } = &self.facts.heads[session];
            rows.push((
                key,
                state_number(head.state),
                int(head.epoch.0),
                int(head.last_seq.0),
                head.last_at.0,
                head.closed_at.map(|at| at.0),
                bytes,
            ));
        }
        rows
    }
}

/// Rows of one table: a JSON array with an array per row, and beside it the bytes, which rows name
/// by place and length.
#[derive(Debug, Default)]
struct Rows {
    json: Vec<u8>,
    bytes: Vec<u8>,
}

impl Rows {
    /// Takes bytes in. Gives their place, from 1 as in SQL, and their length.
    fn keep(&mut self, bytes: &[u8]) -> (usize, usize) {
        let at = self.bytes.len() + 1;
        self.bytes.extend_from_slice(bytes);
        (at, bytes.len())
    }

    fn push(&mut self, columns: impl Serialize) {
        self.json.push(if self.json.is_empty() { b'[' } else { b',' });
        serde_json::to_writer(&mut self.json, &columns)
            .expect("numbers and texts are JSON, and memory takes them all");
    }

    /// Nothing where there are no rows.
    fn bind(mut self, table: Table, arguments: &mut SqliteArguments) {
        if !self.json.is_empty() {
            self.json.push(b']');
        }
        let is_some = !self.json.is_empty();
        if table.has_bytes {
            bind(arguments, is_some.then_some(self.bytes));
        }
        let json = String::from_utf8(self.json).expect("serde_json writes UTF-8");
        bind(arguments, is_some.then_some(json));
    }
}

/// The scope of a request's key.
pub(super) fn request_key(tenant: &TenantId, done: &DoneRequest) -> RequestKey {
    (tenant.as_str().to_owned(), done.method.clone(), done.key.clone())
}

/// SQLite's integers have a sign. Nothing here counts that far; a number from outside that does is
/// the largest one.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn state_number(state: SessionState) -> i64 {
    match state {
        SessionState::Open => 0,
        SessionState::Closing => 1,
        SessionState::Closed => 2,
    }
}

pub(super) fn state_of_number(number: i64) -> Option<SessionState> {
    [SessionState::Open, SessionState::Closing, SessionState::Closed]
        .into_iter()
        .find(|state| state_number(*state) == number)
}

fn bind<'q, T>(arguments: &mut SqliteArguments, value: T)
where
    T: sqlx::Encode<'q, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + 'q,
{
    arguments.add(value).expect("numbers, texts and bytes always encode");
}
