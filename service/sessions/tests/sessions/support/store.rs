//! The memory store, with writes that fail, wait or lie when a test says so.
//! What it waits passes on the paused clock of its tests (`start_paused`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use seance_core::event::Event;
use seance_core::ids::{BlobId, CatalogDigest, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::program::ProgramRecord;
use seance_core::session::SessionRecord;
use seance_core::store::{
    Append, BlobInfo, DoneRequest, Error, Retention, SessionFilter, SessionStore, StoreSize,
};
use seance_core::time::Timestamp;
use seance_store::MemoryStore;
use tokio::sync::watch;

/// What happens to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// It is done.
    #[default]
    None,
    /// The disk is full.
    Full,
    /// The store fails, and nothing was written.
    Failed,
    /// It is written, and the store says that it failed.
    Lies,
    /// It waits until there is another fault, or none.
    Waits,
}

pub struct FaultStore {
    inner: Arc<MemoryStore>,
    fault: watch::Sender<Fault>,
    /// Random faults and delays, in a hundred writes.
    random: Mutex<Option<(StdRng, u32)>>,
}

impl FaultStore {
    /// Another way to the same store: what one start of the service leaves, the next one finds.
    pub fn over(inner: Arc<MemoryStore>) -> Self {
        Self { inner, fault: watch::Sender::new(Fault::None), random: Mutex::default() }
    }

    pub fn inner(&self) -> Arc<MemoryStore> {
        self.inner.clone()
    }

    /// Sets what happens to writes from now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// From now on so many of a hundred writes fail, and others take their time.
    pub fn set_random(&self, seed: u64, percent: u32) {
        *self.random.lock().unwrap() = Some((StdRng::seed_from_u64(seed), percent));
    }

    /// Ends random faults.
    pub fn heal(&self) {
        *self.random.lock().unwrap() = None;
        self.set(Fault::None);
    }

    async fn fault(&self) -> Fault {
        let drawn = self.random.lock().unwrap().as_mut().map(|(rng, percent)| {
            let fault = match rng.random_range(0..100) < *percent {
                true => [Fault::Full, Fault::Failed, Fault::Lies][rng.random_range(0..3)],
                false => Fault::None,
            };
            (fault, Duration::from_micros([0, 0, 50, 900, 5_000][rng.random_range(0..5)]))
        });
        if let Some((fault, delay)) = drawn {
            tokio::time::sleep(delay).await;
            if fault != Fault::None {
                return fault;
            }
        }
        let mut fault = self.fault.subscribe();
        let settled = fault.wait_for(|fault| *fault != Fault::Waits).await;
        settled.map_or(Fault::None, |fault| *fault)
    }
}

fn failed() -> Error {
    Error::Failed { doing: "writing", source: "a test wants it".into() }
}

#[async_trait]
impl SessionStore for FaultStore {
    async fn create(&self, record: SessionRecord, first: Append) -> Result<(), Error> {
        match self.fault().await {
            Fault::Full => Err(Error::Full { message: "a test wants it".to_owned() }),
            // A session that no one knows of would be one more thing to model.
            Fault::Failed | Fault::Lies => Err(failed()),
            Fault::None | Fault::Waits => self.inner.create(record, first).await,
        }
    }

    async fn append(&self, append: Append) -> Result<(), Error> {
        match self.fault().await {
            Fault::Full => Err(Error::Full { message: "a test wants it".to_owned() }),
            Fault::Failed => Err(failed()),
            Fault::Lies => self.inner.append(append).await.and(Err(failed())),
            Fault::None | Fault::Waits => self.inner.append(append).await,
        }
    }

    async fn take_over(&self, session: SessionId, at: Timestamp) -> Result<SessionRecord, Error> {
        self.inner.take_over(session, at).await
    }

    async fn events(
        &self,
        session: SessionId,
        from: EventSeq,
        n_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        self.inner.events(session, from, n_max, bytes_max).await
    }

    async fn session(&self, tenant: &TenantId, id: SessionId) -> Result<Option<SessionRecord>, Error> {
        self.inner.session(tenant, id).await
    }

    async fn sessions(&self, tenant: &TenantId, filter: SessionFilter) -> Result<Vec<SessionRecord>, Error> {
        self.inner.sessions(tenant, filter).await
    }

    async fn unfinished(&self) -> Result<Vec<SessionRecord>, Error> {
        self.inner.unfinished().await
    }

    async fn program(
        &self,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<Option<ProgramRecord>, Error> {
        self.inner.program(session, number).await
    }

    async fn acknowledged(&self, sandbox: SandboxId) -> Result<u64, Error> {
        self.inner.acknowledged(sandbox).await
    }

    async fn is_used(&self, sandbox: SandboxId) -> Result<bool, Error> {
        self.inner.is_used(sandbox).await
    }

    async fn blob_info(&self, session: SessionId, id: BlobId) -> Result<Option<BlobInfo>, Error> {
        self.inner.blob_info(session, id).await
    }

    async fn blob(&self, session: SessionId, id: BlobId, offset: u64, n_max: usize) -> Result<Bytes, Error> {
        self.inner.blob(session, id, offset, n_max).await
    }

    async fn put_catalog(
        &self,
        tenant: &TenantId,
        digest: &CatalogDigest,
        json: Bytes,
        done: Option<DoneRequest>,
    ) -> Result<(), Error> {
        self.inner.put_catalog(tenant, digest, json, done).await
    }

    async fn catalog(&self, tenant: &TenantId, digest: &CatalogDigest) -> Result<Option<Bytes>, Error> {
        self.inner.catalog(tenant, digest).await
    }

    async fn done_request(
        &self,
        tenant: &TenantId,
        method: &str,
        key: &str,
    ) -> Result<Option<DoneRequest>, Error> {
        self.inner.done_request(tenant, method, key).await
    }

    async fn sweep(&self, retention: Retention) -> Result<u64, Error> {
        self.inner.sweep(retention).await
    }

    async fn size(&self) -> Result<StoreSize, Error> {
        self.inner.size().await
    }

    async fn close(&self) {}
}
