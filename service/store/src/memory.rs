//! The store of tests: all in memory, by the same rules and with the same encoding as the others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use seance_core::event::Event;
use seance_core::ids::{BlobId, CatalogDigest, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::program::ProgramRecord;
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{
    Append, BlobInfo, DoneRequest, Error, NewBlob, Retention, SessionFilter, SessionStore, StoreSize,
};
use seance_core::time::Timestamp;

use crate::codec::{decode, decode_record, failed};
use crate::rules::{CatalogTotals, Head, PUT_AGAIN_AFTER, Staged, admit, check_key, taken_over};

/// A store in memory. Nothing outlives it.
///
/// Guarantees: those of [`SessionStore`], but for durability. Every call is done at its first poll.
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeMap<SessionId, Session>,
    sandboxes: HashMap<SandboxId, Sandbox>,
    requests: BTreeMap<(TenantId, String, String), DoneRequest>,
    catalogs: HashMap<(TenantId, CatalogDigest), Catalog>,
    catalog_totals: HashMap<TenantId, CatalogTotals>,
    closed: bool,
}

struct Catalog {
    json: Bytes,
    put_at: Timestamp,
}

struct Session {
    head: Head,
    record: Bytes,
    /// Event number n is at n - 1.
    events: Vec<Bytes>,
    programs: BTreeMap<ProgramNumber, Bytes>,
    blobs: HashMap<BlobId, NewBlob>,
    /// The catalogs that it names.
    catalogs: BTreeSet<CatalogDigest>,
    bytes: u64,
}

#[derive(Default)]
struct Sandbox {
    used: bool,
    acknowledged: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state.lock().map_err(|_| failed("locking the store", "a call panicked"))?;
        if state.closed {
            return Err(failed("calling the store", "the store is closed"));
        }
        Ok(state)
    }
}

impl State {
    fn session(&self, id: SessionId) -> Result<&Session, Error> {
        self.sessions.get(&id).ok_or(Error::NoSession { session: id })
    }

    fn check_free(&self, tenant: &TenantId, done: &DoneRequest) -> Result<(), Error> {
        match self.requests.contains_key(&request_key(tenant, done)) {
            true => Err(Error::KeyTaken { key: done.key.clone() }),
            false => Ok(()),
        }
    }

    fn append(&mut self, staged: Staged) -> Result<(), Error> {
        let head = admit(self.sessions.get(&staged.session).map(|session| &session.head), &staged)?;
        if let Some(sandbox) = staged.uses_sandbox
            && self.sandboxes.get(&sandbox).is_some_and(|known| known.used)
        {
            return Err(Error::SandboxUsed { sandbox });
        }
        if let Some(done) = &staged.done {
            self.check_free(&staged.tenant, done)?;
        }
        self.apply(head, staged);
        Ok(())
    }

    fn apply(&mut self, head: Head, staged: Staged) {
        let bytes = staged.bytes();
        let session = self.sessions.entry(staged.session).or_insert_with(|| Session::new(&head));
        session.head = head;
        session.bytes += bytes;
        session.events.extend(staged.events.into_iter().map(|event| event.body));
        session.programs.extend(staged.programs);
        session.catalogs.extend(staged.catalogs);
        if let Some(record) = staged.record {
            session.record = record.body;
        }
        for blob in staged.blobs {
            session.blobs.entry(blob.id).or_insert(blob);
        }
        if let Some(sandbox) = staged.uses_sandbox {
            self.sandboxes.entry(sandbox).or_default().used = true;
        }
        if let Some((sandbox, number)) = staged.acknowledges {
            let sandbox = self.sandboxes.entry(sandbox).or_default();
            sandbox.acknowledged = sandbox.acknowledged.max(number);
        }
        if let Some(done) = staged.done {
            self.requests.insert(request_key(&staged.tenant, &done), done);
        }
    }

    /// Closed sessions that retention deletes.
    fn doomed(&self, retention: &Retention) -> Vec<SessionId> {
        let mut closed: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.head.state == SessionState::Closed)
            .map(|(id, session)| (session.head.closed_at, *id, session.bytes))
            .collect();
        closed.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = 0_u64;
        let mut doomed = Vec::new();
        for (closed_at, id, bytes) in closed {
            kept = kept.saturating_add(bytes);
            if closed_at < Some(retention.closed_before) || kept > retention.closed_bytes_max {
                doomed.push(id);
            }
        }
        doomed
    }

    /// Forgets catalogs that were put before, and that no session names.
    fn forget_catalogs(&mut self, before: Timestamp) {
        let names = |session: &Session| {
            let tenant = session.head.tenant.clone();
            session.catalogs.iter().map(move |digest| (tenant.clone(), digest.clone())).collect::<Vec<_>>()
        };
        let named: HashSet<_> = self.sessions.values().flat_map(names).collect();
        let totals = &mut self.catalog_totals;
        self.catalogs.retain(|key, catalog| {
            let is_kept = catalog.put_at >= before || named.contains(key);
            if !is_kept && let Some(totals) = totals.get_mut(&key.0) {
                totals.n_catalogs -= 1;
                totals.bytes -= catalog.json.len() as u64;
            }
            is_kept
        });
    }
}

impl Session {
    fn new(head: &Head) -> Self {
        Self {
            head: head.clone(),
            record: Bytes::new(),
            events: Vec::new(),
            programs: BTreeMap::new(),
            blobs: HashMap::new(),
            catalogs: BTreeSet::new(),
            bytes: 0,
        }
    }

    fn record(&self) -> Result<SessionRecord, Error> {
        decode_record(&self.record, &self.head)
    }
}

fn request_key(tenant: &TenantId, done: &DoneRequest) -> (TenantId, String, String) {
    (tenant.clone(), done.method.clone(), done.key.clone())
}

#[async_trait]
impl SessionStore for MemoryStore {
    async fn create(&self, record: SessionRecord, first: Append) -> Result<(), Error> {
        self.state()?.append(Staged::create(record, first)?)
    }

    async fn append(&self, append: Append) -> Result<(), Error> {
        self.state()?.append(Staged::append(append)?)
    }

    async fn take_over(&self, session: SessionId, at: Timestamp) -> Result<SessionRecord, Error> {
        let mut state = self.state()?;
        let taken = state.sessions.get_mut(&session).ok_or(Error::NoSession { session })?;
        let (head, event) = taken_over(&taken.head, at)?;
        taken.head = head;
        taken.bytes += event.body.len() as u64;
        taken.events.push(event.body);
        taken.record()
    }

    async fn events(
        &self,
        session: SessionId,
        from: EventSeq,
        n_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        let state = self.state()?;
        let first = usize::try_from(from.0.saturating_sub(1)).unwrap_or(usize::MAX);
        let mut bytes = 0_usize;
        let mut events = Vec::new();
        for body in state.session(session)?.events.iter().skip(first).take(n_max) {
            bytes = bytes.saturating_add(body.len());
            if !events.is_empty() && bytes > bytes_max {
                break;
            }
            events.push(decode(body)?);
        }
        Ok(events)
    }

    async fn session(&self, tenant: &TenantId, id: SessionId) -> Result<Option<SessionRecord>, Error> {
        let state = self.state()?;
        let session = state.sessions.get(&id).filter(|session| session.head.tenant == *tenant);
        session.map(Session::record).transpose()
    }

    async fn sessions(&self, tenant: &TenantId, filter: SessionFilter) -> Result<Vec<SessionRecord>, Error> {
        let state = self.state()?;
        let mut found = Vec::new();
        for (id, session) in state.sessions.iter().rev() {
            let wanted = session.head.tenant == *tenant
                && filter.before.is_none_or(|before| *id < before)
                && filter.state.is_none_or(|state| state == session.head.state);
            if found.len() >= filter.n_max || !wanted {
                continue;
            }
            let record = session.record()?;
            if filter.labels.iter().all(|(name, value)| record.labels.get(name) == Some(value)) {
                found.push(record);
            }
        }
        Ok(found)
    }

    async fn unfinished(&self) -> Result<Vec<SessionRecord>, Error> {
        let state = self.state()?;
        let open = state.sessions.values().filter(|session| session.head.state != SessionState::Closed);
        open.map(Session::record).collect()
    }

    async fn program(
        &self,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<Option<ProgramRecord>, Error> {
        let state = self.state()?;
        let body = state.sessions.get(&session).and_then(|session| session.programs.get(&number));
        body.map(|body| decode(body)).transpose()
    }

    async fn acknowledged(&self, sandbox: SandboxId) -> Result<u64, Error> {
        Ok(self.state()?.sandboxes.get(&sandbox).map_or(0, |sandbox| sandbox.acknowledged))
    }

    async fn is_used(&self, sandbox: SandboxId) -> Result<bool, Error> {
        Ok(self.state()?.sandboxes.get(&sandbox).is_some_and(|sandbox| sandbox.used))
    }

    async fn blob_info(&self, session: SessionId, id: BlobId) -> Result<Option<BlobInfo>, Error> {
        let state = self.state()?;
        let blob = state.sessions.get(&session).and_then(|session| session.blobs.get(&id));
        Ok(blob.map(|blob| BlobInfo { media_type: blob.media_type.clone(), bytes: blob.data.len() as u64 }))
    }

    async fn blob(&self, session: SessionId, id: BlobId, offset: u64, n_max: usize) -> Result<Bytes, Error> {
        let state = self.state()?;
        let blob = state.session(session)?.blobs.get(&id);
        let data = &blob.ok_or_else(|| failed("reading a blob", "the session has no such blob"))?.data;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        Ok(data.slice(start..start.saturating_add(n_max).min(data.len())))
    }

    async fn put_catalog(
        &self,
        tenant: &TenantId,
        digest: &CatalogDigest,
        json: Bytes,
        done: Option<DoneRequest>,
    ) -> Result<(), Error> {
        let mut state = self.state()?;
        if let Some(done) = &done {
            check_key(done)?;
            state.check_free(tenant, done)?;
        }
        let put_at = Timestamp::from_system(SystemTime::now());
        let key = (tenant.clone(), digest.clone());
        match state.catalogs.get_mut(&key) {
            Some(catalog) if put_at.since(catalog.put_at) >= PUT_AGAIN_AFTER => catalog.put_at = put_at,
            Some(_) => {}
            None => {
                let totals = state.catalog_totals.get(tenant).copied().unwrap_or_default();
                let totals = totals.with(tenant, json.len())?;
                state.catalog_totals.insert(tenant.clone(), totals);
                state.catalogs.insert(key, Catalog { json, put_at });
            }
        }
        if let Some(done) = done {
            state.requests.insert(request_key(tenant, &done), done);
        }
        Ok(())
    }

    async fn catalog(&self, tenant: &TenantId, digest: &CatalogDigest) -> Result<Option<Bytes>, Error> {
        let state = self.state()?;
        Ok(state.catalogs.get(&(tenant.clone(), digest.clone())).map(|catalog| catalog.json.clone()))
    }

    async fn done_request(
        &self,
        tenant: &TenantId,
        method: &str,
        key: &str,
    ) -> Result<Option<DoneRequest>, Error> {
        let key = (tenant.clone(), method.to_owned(), key.to_owned());
        Ok(self.state()?.requests.get(&key).cloned())
    }

    async fn sweep(&self, retention: Retention) -> Result<u64, Error> {
        let mut state = self.state()?;
        let doomed = state.doomed(&retention);
        for id in &doomed {
            state.sessions.remove(id);
        }
        state.requests.retain(|_, done| done.at >= retention.done_before);
        state.forget_catalogs(retention.closed_before);
        Ok(doomed.len() as u64)
    }

    async fn size(&self) -> Result<StoreSize, Error> {
        let state = self.state()?;
        Ok(StoreSize {
            n_sessions: state.sessions.len() as u64,
            n_events: state.sessions.values().map(|session| session.events.len() as u64).sum(),
            bytes: state.sessions.values().map(|session| session.bytes).sum(),
        })
    }

    async fn close(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.closed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use seance_core::ids::TenantId;
    use seance_core::store::{Retention, SessionStore};
    use seance_core::time::Timestamp;

    use super::MemoryStore;
    use crate::TENANT_CATALOGS_MAX;
    use crate::conformance::{Fixture, check_full_of_catalogs, put};

    fn fixture() -> Fixture {
        Fixture { store: Arc::new(MemoryStore::new()), dir: None }
    }

    crate::conformance::suite!(fixture());

    #[tokio::test]
    async fn a_tenant_keeps_catalogs_within_bounds() {
        let store = MemoryStore::new();
        let tenant = TenantId::default_tenant();
        for n in 0..usize::try_from(TENANT_CATALOGS_MAX).unwrap() {
            put(&store, &tenant, n).await;
        }
        check_full_of_catalogs(&store, 0).await;
        let retention = Retention {
            closed_before: Timestamp(i64::MAX),
            done_before: Timestamp(i64::MIN),
            closed_bytes_max: u64::MAX,
        };
        store.sweep(retention).await.unwrap();
        put(&store, &tenant, usize::MAX).await;
    }
}
