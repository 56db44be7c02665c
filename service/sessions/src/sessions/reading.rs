//! Reading sessions: records, programs, events, blobs.

use super::*;

impl Sessions {
    /// One session.
    pub async fn get(&self, tenant: &TenantId, session: SessionId) -> Result<SessionRecord, Error> {
        Ok((*self.find(tenant, session).await?.record()).clone())
    }

    /// Sessions of a tenant, newest first.
    pub async fn list(&self, tenant: &TenantId, filter: SessionFilter) -> Result<Vec<SessionRecord>, Error> {
        Ok(self.inner.store.sessions(tenant, filter).await?)
    }

    /// A program.
    pub async fn program(
        &self,
        tenant: &TenantId,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<ProgramRecord, Error> {
        let found = self.find(tenant, session).await?;
        if let Found::Live(shared) = &found {
            let snapshot = shared.ask(|reply| Command::Snapshot { program: number, reply }).await;
            if let Ok(Some(snapshot)) = snapshot {
                return Ok(snapshot.program);
            }
        }
        self.program_record(session, number).await
    }

    /// Follows a session's events from a number on; `until_now` ends at the last one there is.
    pub async fn follow(
        &self,
        tenant: &TenantId,
        session: SessionId,
        from: EventSeq,
        until_now: bool,
    ) -> Result<Follower, Error> {
        let found = self.find(tenant, session).await?;
        let last = found.last();
        let tail = match &found {
            Found::Live(shared) => Some(shared.tail.clone()),
            Found::Kept(_) => None,
        };
        let reader = Reader::new(session, from, tail, self.inner.store.clone());
        Ok(Follower { reader, until: until_now.then_some(last), buffer: VecDeque::new() })
    }

    /// A blob's facts.
    pub async fn blob_info(
        &self,
        tenant: &TenantId,
        session: SessionId,
        id: BlobId,
    ) -> Result<BlobInfo, Error> {
        self.find(tenant, session).await?;
        self.inner.store.blob_info(session, id).await?.ok_or_else(|| {
            Error::invalid(reasons::BLOB_NOT_FOUND, "blob_id", format!("session {session} has no blob {id}"))
        })
    }

    /// Bytes of a blob of which [`Sessions::blob_info`] was asked before.
    pub async fn blob(
        &self,
        session: SessionId,
        id: BlobId,
        offset: u64,
        n_max: usize,
    ) -> Result<Bytes, Error> {
        Ok(self.inner.store.blob(session, id, offset, n_max).await?)
    }
}
