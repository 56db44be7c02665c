//! The default store: one SQLite database, one task that writes, a few connections that read.
//!
//! Callers encode their appends and hand them to the writer over a bounded queue. The writer takes
//! what is queued, checks each append by itself, and writes all that pass in one transaction: the
//! price of a durable commit is shared, and a refused append costs its neighbours nothing.

mod bare;
mod batch;
mod files;
mod log;
mod read;
mod schema;
mod sweep;
mod tables;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use seance_core::event::Event;
use seance_core::ids::{BlobId, CatalogDigest, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::program::ProgramRecord;
use seance_core::session::SessionRecord;
use seance_core::store::{
    Append, BlobInfo, DoneRequest, Error, Retention, SessionFilter, SessionStore, StoreSize,
};
use seance_core::time::Timestamp;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

pub use bare::measure_bare_commit;
pub use files::OpenError;

use crate::codec::failed;
use crate::rules::{APPEND_BYTES_MAX, Staged, check_key};
use batch::NewCatalog;
use writer::{Answer, Job, Write, Writer};

/// Jobs that wait for the writer. A caller waits for a place while it is full.
const JOBS_MAX: usize = 1_024;
/// KiB of appends that wait for the writer or are being written. A caller waits for room while they
/// are all taken; an append over this size waits until it is alone.
const ROOM_KIB: u32 = 32 * 1024;
/// Connections that read. Callers wait for one in the order in which they came while all are busy.
const READERS: u32 = 4;
/// How long: longer than any request has, so that it is the caller's own deadline which ends its wait, and a
/// machine that is slow for a while isn't taken for a store that failed. Those who wait are no more than there
/// are requests and sessions, which have bounds of their own.
const READER_WITHIN: Duration = Duration::from_secs(15 * 60);
/// How long a connection waits for a lock. Only a tool from outside can hold one for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteConfig {
    /// The database file. Its directory is made when there is none.
    pub path: PathBuf,
    /// The most bytes the database may take; none for what the disk has. Over it appends are
    /// refused as [`Error::Full`] until a sweep makes room. The write-ahead log comes on top: about
    /// 4 MiB, and for a moment the size of the largest transaction.
    pub bytes_max: Option<u64>,
}

impl SqliteConfig {
    /// A store at `path` without a cap.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), bytes_max: None }
    }

    fn connect_options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
    }
}

/// A store in a SQLite database, owned by one process at a time.
///
/// Guarantees
/// - *Durable*: an append that was answered with `Ok` is on the disk (write-ahead log, synchronised
///   at every commit) and survives a kill of the process or of the machine.
/// - *Whole*: an append is done as a whole or not at all, and so is what it says of the record, of
///   programs, blobs, the sandbox, acknowledged frames and the request.
/// - *Alone*: a refused append changes nothing and fails no other, though they share a commit.
/// - *Fenced*: an append under another epoch than the one in force is refused.
/// - *Gapless*: a session's events are numbered from 1 with no gap, and the record that is given
///   back names the last one.
/// - *Resolved*: when a commit fails and its outcome is unknown, the database is read before anyone
///   is answered.
/// - *Once*: a sandbox that was used is never taken again; retention does not forget it.
/// - *Apart*: what is asked for with a tenant is found only for that tenant.
/// - *Usable when full*: [`Error::Full`] loses nothing that was answered, reads go on, and appends
///   go on after a sweep.
///
/// Cancellation: a call that is dropped while it waits for room is not done; later it is done as a
/// whole without its caller.
///
/// [`SessionStore::close`] waits for what is queued. A store that is dropped without it finishes
/// what is queued in the background and lets go of the lock then.
pub struct SqliteStore {
    jobs: RwLock<Option<mpsc::Sender<Job>>>,
    room: Arc<Semaphore>,
    readers: SqlitePool,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl SqliteStore {
    /// Opens a store, and makes it when there is none. Needs a Tokio runtime, which also runs the
    /// writer.
    ///
    /// # Errors
    /// [`OpenError`]: another process has it, it is of a newer version, it is no store, or the
    /// files can't be had.
    pub async fn open(config: SqliteConfig) -> Result<Self, OpenError> {
        let lock = files::prepare(&config.path)?;
        let failed = |doing| move |error| files::database_error(doing, error);
        let mut connection =
            writer::connect(&config).await.map_err(failed("opening the database for writing"))?;
        schema::migrate(&config.path, &mut connection).await?;
        let writer = Writer::new(config.clone(), connection, lock)
            .await
            .map_err(failed("reading the store's totals"))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(READER_WITHIN)
            .connect_with(config.connect_options().read_only(true))
            .await
            .map_err(failed("opening the database for reading"))?;
        let (jobs, queue) = mpsc::channel(JOBS_MAX);
        Ok(Self {
            jobs: RwLock::new(Some(jobs)),
            room: Arc::new(Semaphore::new(ROOM_KIB as usize)),
            readers,
            writer: Mutex::new(Some(tokio::spawn(writer.run(queue)))),
        })
    }

    /// Waits for room, hands a job to the writer and waits for its answer.
    async fn ask<T>(
        &self,
        doing: &'static str,
        weight: usize,
        job: impl FnOnce(OwnedSemaphorePermit, Answer<T>) -> Job,
    ) -> Result<T, Error> {
        let gone = || failed(doing, "the store is closed");
        let jobs = self.jobs.read().map_err(|_| gone())?.clone().ok_or_else(gone)?;
        let kib = u32::try_from(weight / 1024 + 1).unwrap_or(ROOM_KIB).min(ROOM_KIB);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| gone())?;
        let (answer, answered) = oneshot::channel();
        jobs.send(job(room, answer)).await.map_err(|_| gone())?;
        drop(jobs);
        answered.await.map_err(|_| failed(doing, "the store's writer ended"))?
    }

    async fn write(&self, doing: &'static str, staged: Staged) -> Result<(), Error> {
        let weight = staged.weight();
        self.ask(doing, weight, |room, answer| {
            Job::Write(Write::Append { staged: Box::new(staged), answer, _room: room })
        })
        .await
    }
}

#[async_trait]
impl SessionStore for SqliteStore {
    async fn create(&self, record: SessionRecord, first: Append) -> Result<(), Error> {
        self.write("creating a session", Staged::create(record, first)?).await
    }

    async fn append(&self, append: Append) -> Result<(), Error> {
        self.write("appending", Staged::append(append)?).await
    }

    async fn take_over(&self, session: SessionId, at: Timestamp) -> Result<SessionRecord, Error> {
        self.ask("taking a session over", 0, |room, answer| {
            Job::Write(Write::TakeOver { session, at, answer, _room: room })
        })
        .await
    }

    async fn events(
        &self,
        session: SessionId,
        from: EventSeq,
        n_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        read::events(&self.readers, session, from, n_max, bytes_max).await
    }

    async fn session(&self, tenant: &TenantId, id: SessionId) -> Result<Option<SessionRecord>, Error> {
        read::session(&self.readers, tenant, id).await
    }

    async fn sessions(&self, tenant: &TenantId, filter: SessionFilter) -> Result<Vec<SessionRecord>, Error> {
        read::sessions(&self.readers, tenant, &filter).await
    }

    async fn unfinished(&self) -> Result<Vec<SessionRecord>, Error> {
        read::unfinished(&self.readers).await
    }

    async fn program(
        &self,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<Option<ProgramRecord>, Error> {
        read::program(&self.readers, session, number).await
    }

    async fn acknowledged(&self, sandbox: SandboxId) -> Result<u64, Error> {
        read::acknowledged(&self.readers, sandbox).await
    }

    async fn is_used(&self, sandbox: SandboxId) -> Result<bool, Error> {
        read::is_used(&self.readers, sandbox).await
    }

    async fn blob_info(&self, session: SessionId, id: BlobId) -> Result<Option<BlobInfo>, Error> {
        read::blob_info(&self.readers, session, id).await
    }

    async fn blob(&self, session: SessionId, id: BlobId, offset: u64, n_max: usize) -> Result<Bytes, Error> {
        read::blob(&self.readers, session, id, offset, n_max).await
    }

    async fn put_catalog(
        &self,
        tenant: &TenantId,
        digest: &CatalogDigest,
        json: Bytes,
        done: Option<DoneRequest>,
    ) -> Result<(), Error> {
        done.as_ref().map(check_key).transpose()?;
        if json.len() > APPEND_BYTES_MAX {
            return Err(failed("keeping a catalog", "the catalog is too large"));
        }
        let catalog = Box::new(NewCatalog {
            tenant: tenant.clone(),
            digest: digest.clone(),
            json,
            put_at: Timestamp::from_system(SystemTime::now()),
            done,
        });
        let weight = catalog.json.len();
        self.ask("keeping a catalog", weight, |room, answer| {
            Job::Write(Write::Catalog { catalog, answer, _room: room })
        })
        .await
    }

    async fn catalog(&self, tenant: &TenantId, digest: &CatalogDigest) -> Result<Option<Bytes>, Error> {
        read::catalog(&self.readers, tenant, digest).await
    }

    async fn done_request(
        &self,
        tenant: &TenantId,
        method: &str,
        key: &str,
    ) -> Result<Option<DoneRequest>, Error> {
        read::done_request(&self.readers, tenant, method, key).await
    }

    async fn sweep(&self, retention: Retention) -> Result<u64, Error> {
        self.ask("sweeping", 0, |room, answer| Job::Sweep { retention, answer, _room: room }).await
    }

    async fn size(&self) -> Result<StoreSize, Error> {
        read::size(&self.readers).await
    }

    /// The readers go first: the last connection to close folds the write-ahead log into the
    /// database, and only the writer's can.
    async fn close(&self) {
        self.readers.close().await;
        if let Ok(mut jobs) = self.jobs.write() {
            jobs.take();
        }
        let mut writer = self.writer.lock().await;
        if let Some(task) = writer.as_mut() {
            if let Err(error) = task.await {
                tracing::error!(%error, "the store's writer did not end well");
            }
            *writer = None;
        }
    }
}

#[cfg(test)]
mod tests;
