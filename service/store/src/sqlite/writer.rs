//! The one task that writes. It owns the writing connection and the lock on the files, and knows
//! the heads of the sessions that were written lately, so that most appends are checked without
//! asking the database.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use seance_core::ids::{Epoch, EventSeq, SandboxId, SessionId, TenantId};
use seance_core::session::SessionRecord;
use seance_core::store::{Error, Retention};
use seance_core::time::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::SqliteConfig;
use super::batch::{
    Batch, CatalogKey, Facts, Known, NewCatalog, RequestKey, Totals, request_key, state_of_number,
};
use super::files::Lock;
use super::sweep::Forget;
use super::{log, tables};
use crate::codec::{decode_record, failed};
use crate::rules::{CatalogTotals, Head, Staged};

/// The most jobs in one transaction.
const BATCH_MAX: usize = 512;
/// The most heads kept in memory; over it all are forgotten and read again as they are needed.
const HEADS_MAX: usize = 20_000;

/// Where an answer goes. Nobody may be waiting for it any more.
pub(super) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// What the writer is asked for. Room is given back when the job is done.
pub(super) enum Job {
    Write(Write),
    Sweep { retention: Retention, answer: Answer<u64>, _room: OwnedSemaphorePermit },
}

/// What goes into a transaction with others.
pub(super) enum Write {
    Append { staged: Box<Staged>, answer: Answer<()>, _room: OwnedSemaphorePermit },
    Catalog { catalog: Box<NewCatalog>, answer: Answer<()>, _room: OwnedSemaphorePermit },
    TakeOver { session: SessionId, at: Timestamp, answer: Answer<SessionRecord>, _room: OwnedSemaphorePermit },
}

/// Why a transaction is not in the database. Many callers may be told of one.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Full(String),
    Failed(Arc<sqlx::Error>),
}

impl Failure {
    pub fn error(&self) -> Error {
        match self {
            Failure::Full(message) => Error::Full { message: message.clone() },
            Failure::Failed(source) => failed("writing to the store", Arc::clone(source)),
        }
    }
}

impl From<sqlx::Error> for Failure {
    /// SQLite says FULL (13) for a full disk and for a full database alike.
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error() {
            Some(database) if database.code().as_deref() == Some("13") => {
                Failure::Full(database.message().to_owned())
            }
            _ => Failure::Failed(Arc::new(error)),
        }
    }
}

/// The writer's state.
pub(super) struct Writer {
    config: SqliteConfig,
    /// None after it failed in a way that may have left it unusable; the next use opens another.
    connection: Option<SqliteConnection>,
    heads: HashMap<SessionId, Known>,
    pub(super) totals: Totals,
    next_session: i64,
    /// Sessions that are deleted may still have rows, and requests and catalogs from before these
    /// times are forgotten.
    pub(super) purging: Option<Forget>,
    /// Sweeps that are answered when nothing is left to purge.
    pub(super) sweeps: Vec<(Answer<u64>, u64)>,
    _lock: Lock,
}

/// Opens a connection that writes, with the configured cap.
pub(super) async fn connect(config: &SqliteConfig) -> Result<SqliteConnection, sqlx::Error> {
    let mut connection = config.connect_options().connect().await?;
    if let Some(bytes_max) = config.bytes_max {
        let page_bytes: i64 = sqlx::query("PRAGMA page_size").fetch_one(&mut connection).await?.try_get(0)?;
        let pages = bytes_max / u64::try_from(page_bytes).unwrap_or(4096).max(1);
        let pages = pages.clamp(1, u64::from(u32::MAX - 1));
        let pragma = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
        sqlx::query(pragma).fetch_one(&mut connection).await?;
    }
    Ok(connection)
}

impl Writer {
    pub async fn new(
        config: SqliteConfig,
        mut connection: SqliteConnection,
        lock: Lock,
    ) -> Result<Self, sqlx::Error> {
        tables::set_up(&mut connection).await?;
        log::make_room(&mut connection).await?;
        let mut writer = Self {
            config,
            connection: Some(connection),
            heads: HashMap::new(),
            totals: Totals::default(),
            next_session: 1,
            purging: Some(Forget::NOTHING),
            sweeps: Vec::new(),
            _lock: lock,
        };
        writer.recall().await?;
        Ok(writer)
    }

    /// Works until all callers are gone and the queue is empty; then closes the database.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut jobs = Vec::new();
        loop {
            if let Some(forget) = self.purging {
                self.purge(forget).await;
                take_queued(&mut queue, &mut jobs);
            } else if queue.recv_many(&mut jobs, BATCH_MAX).await == 0 {
                break;
            }
            self.serve(std::mem::take(&mut jobs)).await;
        }
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "the store's database did not close well");
        }
    }

    /// Does a batch. A takeover has a transaction of its own, after the others, so that the record it
    /// gives back is of its own epoch.
    async fn serve(&mut self, jobs: Vec<Job>) {
        let (mut shared, mut single) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Write(write @ (Write::Append { .. } | Write::Catalog { .. })) => shared.push(write),
                Job::Write(Write::TakeOver { .. }) | Job::Sweep { .. } => single.push(job),
            }
        }
        self.write(shared).await;
        for job in single {
            match job {
                Job::Write(write) => self.write(vec![write]).await,
                Job::Sweep { retention, answer, _room } => self.sweep(retention, answer).await,
            }
        }
    }

    /// Writes jobs in one transaction. If it fails each is tried alone, so that one that does not
    /// fit fails no other.
    async fn write(&mut self, jobs: Vec<Write>) {
        match self.try_write(&jobs).await {
            Ok(verdicts) => {
                for (job, verdict) in jobs.into_iter().zip(verdicts) {
                    self.settle(job, verdict).await;
                }
            }
            Err(failure) if jobs.len() == 1 || self.connection.is_none() => {
                for job in jobs {
                    self.settle(job, Err(failure.error())).await;
                }
            }
            Err(_) => {
                for job in jobs {
                    let verdict = match self.try_write(std::slice::from_ref(&job)).await {
                        Ok(mut verdicts) => verdicts.pop().unwrap_or(Ok(())),
                        Err(failure) => Err(failure.error()),
                    };
                    self.settle(job, verdict).await;
                }
            }
        }
    }

    /// One transaction. Gives a verdict for each job; with `Err` nothing was written.
    async fn try_write(&mut self, jobs: &[Write]) -> Result<Vec<Result<(), Error>>, Failure> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = Batch::new(self.facts(jobs).await?);
        let verdicts: Vec<_> = jobs
            .iter()
            .map(|job| match job {
                Write::Append { staged, .. } => batch.append(staged),
                Write::Catalog { catalog, .. } => batch.catalog(catalog),
                Write::TakeOver { session, at, .. } => batch.take_over(*session, *at),
            })
            .collect();
        if verdicts.iter().any(Result::is_ok) {
            let (facts, arguments) = batch.into_arguments();
            self.commit(facts.totals.commits, sqlx::query_with(tables::insert(), arguments)).await?;
            self.remember(facts);
        }
        Ok(verdicts)
    }

    async fn settle(&mut self, job: Write, verdict: Result<(), Error>) {
        // A caller that went away needs no answer.
        let _ = match job {
            Write::Append { answer, .. } | Write::Catalog { answer, .. } => answer.send(verdict).is_ok(),
            Write::TakeOver { session, answer, .. } => {
                let record = match verdict {
                    Ok(()) => self.record(session).await,
                    Err(error) => Err(error),
                };
                answer.send(record).is_ok()
            }
        };
    }

    /// Runs a transaction that ends with its commit and sets `totals.commits` to `number`. When it
    /// fails, the database says whether it is in force.
    pub(super) async fn commit(
        &mut self,
        number: i64,
        transaction: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
    ) -> Result<(), Failure> {
        let connection = self.connection().await?;
        let Err(error) = transaction.execute(&mut *connection).await else { return Ok(()) };
        let rolled_back = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
        if rolled_back.is_err() {
            // SQLite rolled back by itself, or nobody can tell: only a new connection sees nothing
            // but what is committed.
            self.disconnect().await;
        }
        self.heads.clear();
        match self.recall().await {
            Ok(()) if self.totals.commits == number => Ok(()),
            Ok(()) => Err(error.into()),
            Err(unread) => {
                tracing::error!(%error, %unread, "the outcome of a commit could not be read");
                self.disconnect().await;
                Err(error.into())
            }
        }
    }

    /// The connection that writes; a new one where the last failed.
    pub(super) async fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        if self.connection.is_none() {
            let mut connection = connect(&self.config).await?;
            tables::set_up(&mut connection).await?;
            self.connection = Some(connection);
            self.heads.clear();
            Box::pin(self.recall()).await?;
        }
        self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    async fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "a failed connection did not close well");
        }
    }

    /// Reads the totals and the next session's key.
    pub(super) async fn recall(&mut self) -> Result<(), sqlx::Error> {
        let connection = self.connection().await?;
        let row = sqlx::query(
            "SELECT commits, n_sessions, n_events, bytes,
                    (SELECT coalesce(max(session), 0) + 1 FROM sessions)
             FROM totals",
        )
        .fetch_one(connection)
        .await?;
        self.totals = Totals {
            commits: row.try_get(0)?,
            n_sessions: row.try_get(1)?,
            n_events: row.try_get(2)?,
            bytes: row.try_get(3)?,
        };
        self.next_session = row.try_get(4)?;
        Ok(())
    }

    /// Forgets the heads: sessions were deleted.
    pub(super) fn forget_heads(&mut self) {
        self.heads.clear();
    }

    fn remember(&mut self, facts: Facts) {
        if self.heads.len() + facts.heads.len() > HEADS_MAX {
            self.heads.clear();
        }
        self.heads.extend(facts.heads);
        self.totals = facts.totals;
        self.next_session = facts.next_session;
    }

    /// A session's record right after its takeover.
    async fn record(&mut self, session: SessionId) -> Result<SessionRecord, Error> {
        let doing = "reading the record of a session taken over";
        let known = self.heads.get(&session).cloned().ok_or(Error::NoSession { session })?;
        let connection = self.connection().await.map_err(|error| failed(doing, error))?;
        let body: Vec<u8> = sqlx::query("SELECT body FROM records WHERE session = ?")
            .bind(known.key)
            .fetch_one(connection)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(|error| failed(doing, error))?;
        decode_record(&body, &known.head)
    }

    /// What must be known of the sessions, sandboxes and keys that jobs name.
    async fn facts(&mut self, jobs: &[Write]) -> Result<Facts, Failure> {
        let named = Named::of(jobs);
        self.connection().await?;
        let mut heads = HashMap::new();
        let mut unknown = Vec::new();
        for session in named.sessions {
            match self.heads.get(&session) {
                Some(known) => drop(heads.insert(session, known.clone())),
                None => unknown.push(session),
            }
        }
        heads.extend(self.read_heads(&unknown).await?);
        Ok(Facts {
            heads,
            used: self.read_used(&named.sandboxes).await?,
            taken: self.read_taken(&named.keys).await?,
            catalogs: self.read_catalogs(&named.catalogs).await?,
            catalog_totals: self.read_catalog_totals(&named.catalogs).await?,
            next_session: self.next_session,
            totals: self.totals,
        })
    }

    async fn read_heads(&mut self, sessions: &[SessionId]) -> Result<Vec<(SessionId, Known)>, sqlx::Error> {
        let sql = "SELECT sessions.id, tenant, state, epoch, last_seq, last_at, closed_at, session
                   FROM json_each(?) AS j JOIN sessions ON sessions.id = j.value WHERE doomed = 0";
        self.lookup(sql, sessions, |row| {
            let known = Known { head: head_of_row(row)?, key: row.try_get("session")? };
            Ok((parsed(row, "id")?, known))
        })
        .await
    }

    async fn read_used(&mut self, sandboxes: &[SandboxId]) -> Result<HashSet<SandboxId>, sqlx::Error> {
        let sql = "SELECT sandboxes.id FROM json_each(?) AS j JOIN sandboxes ON sandboxes.id = j.value
                   WHERE used = 1";
        Ok(self.lookup(sql, sandboxes, |row| parsed(row, "id")).await?.into_iter().collect())
    }

    async fn read_taken(&mut self, keys: &[RequestKey]) -> Result<HashSet<RequestKey>, sqlx::Error> {
        let sql = "SELECT requests.tenant, requests.method, requests.key FROM json_each(?) AS j
                   JOIN requests ON requests.tenant = j.value->>0 AND requests.method = j.value->>1
                       AND requests.key = j.value->>2";
        let taken = self.lookup(sql, keys, |row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)));
        Ok(taken.await?.into_iter().collect())
    }

    async fn read_catalogs(
        &mut self,
        catalogs: &[CatalogKey],
    ) -> Result<HashMap<CatalogKey, Timestamp>, sqlx::Error> {
        let sql = "SELECT catalogs.tenant, catalogs.digest, put_at FROM json_each(?) AS j
                   JOIN catalogs ON catalogs.tenant = j.value->>0 AND catalogs.digest = j.value->>1";
        let kept = self.lookup(sql, catalogs, |row| {
            Ok(((parsed(row, "tenant")?, parsed(row, "digest")?), Timestamp(row.try_get("put_at")?)))
        });
        Ok(kept.await?.into_iter().collect())
    }

    async fn read_catalog_totals(
        &mut self,
        catalogs: &[CatalogKey],
    ) -> Result<HashMap<TenantId, CatalogTotals>, sqlx::Error> {
        let tenants: BTreeSet<_> = catalogs.iter().map(|(tenant, _)| tenant).collect();
        let tenants: Vec<_> = tenants.into_iter().collect();
        let sql = "SELECT tenant, n_catalogs, bytes FROM json_each(?) AS j
                   JOIN catalog_totals ON tenant = j.value";
        let totals = self.lookup(sql, &tenants, |row| {
            let number = |column| Ok::<_, sqlx::Error>(row.try_get::<i64, _>(column)?.unsigned_abs());
            let totals = CatalogTotals { n_catalogs: number("n_catalogs")?, bytes: number("bytes")? };
            Ok((parsed(row, "tenant")?, totals))
        });
        Ok(totals.await?.into_iter().collect())
    }

    /// Rows for a list of things; asks nothing for none.
    async fn lookup<T>(
        &mut self,
        sql: &'static str,
        things: &[impl serde::Serialize],
        read: impl Fn(&SqliteRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, sqlx::Error> {
        if things.is_empty() {
            return Ok(Vec::new());
        }
        let json = serde_json::to_string(things).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let connection = self.connection().await?;
        let rows = sqlx::query(sql).bind(json).fetch_all(connection).await?;
        rows.iter().map(read).collect()
    }
}

/// What jobs name, each once.
struct Named {
    sessions: HashSet<SessionId>,
    sandboxes: Vec<SandboxId>,
    keys: Vec<RequestKey>,
    catalogs: Vec<CatalogKey>,
}

impl Named {
    fn of(jobs: &[Write]) -> Self {
        let mut named =
            Self { sessions: HashSet::new(), sandboxes: Vec::new(), keys: Vec::new(), catalogs: Vec::new() };
        for job in jobs {
            match job {
                Write::Append { staged, .. } => {
                    named.sessions.insert(staged.session);
                    named.sandboxes.extend(staged.uses_sandbox);
                    named.keys.extend(staged.done.iter().map(|done| request_key(&staged.tenant, done)));
                }
                Write::Catalog { catalog, .. } => {
                    named.catalogs.push((catalog.tenant.clone(), catalog.digest.clone()));
                    named.keys.extend(catalog.done.iter().map(|done| request_key(&catalog.tenant, done)));
                }
                Write::TakeOver { session, .. } => drop(named.sessions.insert(*session)),
            }
        }
        named
    }
}

/// Takes what is queued now, at most a batch.
fn take_queued(queue: &mut mpsc::Receiver<Job>, jobs: &mut Vec<Job>) {
    while jobs.len() < BATCH_MAX
        && let Ok(job) = queue.try_recv()
    {
        jobs.push(job);
    }
}

/// A head of a row with the columns of `sessions`.
pub(super) fn head_of_row(row: &SqliteRow) -> Result<Head, sqlx::Error> {
    let number = |column| -> Result<u64, sqlx::Error> {
        let value: i64 = row.try_get(column)?;
        u64::try_from(value).map_err(|error| undecodable(column, error))
    };
    let state = state_of_number(row.try_get("state")?);
    Ok(Head {
        tenant: parsed(row, "tenant")?,
        state: state.ok_or_else(|| undecodable("state", "no such state"))?,
        epoch: Epoch(number("epoch")?),
        last_seq: EventSeq(number("last_seq")?),
        last_at: Timestamp(row.try_get("last_at")?),
        closed_at: row.try_get::<Option<i64>, _>("closed_at")?.map(Timestamp),
    })
}

fn parsed<T>(row: &SqliteRow, column: &'static str) -> Result<T, sqlx::Error>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.try_get::<&str, _>(column)?.parse().map_err(|error: T::Err| undecodable(column, error))
}

fn undecodable(
    column: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: source.into() }
}
