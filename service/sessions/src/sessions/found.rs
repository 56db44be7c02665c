//! Finding a session: one whose task runs, or one that is kept.

use super::*;

impl Sessions {
    pub(super) async fn control(
        &self,
        tenant: &TenantId,
        session: SessionId,
    ) -> Result<(ControlGuard, Arc<Shared>), Error> {
        match self.find(tenant, session).await? {
            Found::Live(shared) => Ok((shared.control()?, shared)),
            Found::Kept(record) => Err(over(&record)),
        }
    }

    /// Why a session's task did not take a request any more.
    pub(super) async fn why_over(&self, tenant: &TenantId, session: SessionId) -> Error {
        match self.inner.store.session(tenant, session).await {
            Ok(Some(record)) => over(&record),
            Ok(None) | Err(_) => Error::Stopping,
        }
    }

    pub(super) async fn find(&self, tenant: &TenantId, session: SessionId) -> Result<Found, Error> {
        let live = self.inner.lock().sessions.get(&session).cloned();
        if let Some(shared) = live {
            return if shared.tenant == *tenant {
                Ok(Found::Live(shared))
            } else {
                Err(Error::NoSession { session })
            };
        }
        let record = self.inner.store.session(tenant, session).await?.ok_or(Error::NoSession { session })?;
        Ok(Found::Kept(Arc::new(record)))
    }

    pub(super) async fn program_record(
        &self,
        session: SessionId,
        number: ProgramNumber,
    ) -> Result<ProgramRecord, Error> {
        let found = self.inner.store.program(session, number).await?;
        found.ok_or(Error::Refused(Refusal::NoSuchProgram { program: number }))
    }
}

/// A session that was found.
pub(super) enum Found {
    Live(Arc<Shared>),
    Kept(Arc<SessionRecord>),
}

impl Found {
    pub(super) fn record(&self) -> Arc<SessionRecord> {
        match self {
            Found::Live(shared) => shared.record.borrow().clone(),
            Found::Kept(record) => record.clone(),
        }
    }

    pub(super) fn news(&self) -> Option<ProgramNumber> {
        match self {
            Found::Live(shared) => shared.news(),
            Found::Kept(_) => None,
        }
    }

    pub(super) fn last(&self) -> EventSeq {
        match self {
            Found::Live(shared) => shared.tail.last(),
            Found::Kept(record) => record.last_seq,
        }
    }

    pub(super) fn control(&self) -> Result<ControlGuard, Error> {
        match self {
            Found::Live(shared) => shared.control(),
            // Nobody steers a session that is over; everybody may read it.
            Found::Kept(_) => Ok(Arc::new(tokio::sync::Semaphore::new(1))
                .try_acquire_owned()
                .expect("a new semaphore has its permit")),
        }
    }
}

/// What a session that has no task here is told as. One that isn't closed has another owner, or the
/// service is stopping.
pub(super) fn over(record: &SessionRecord) -> Error {
    let session = record.id;
    match record.state {
        SessionState::Closed if record.reason == reasons::SESSION_TTL => Refusal::Expired { session }.into(),
        SessionState::Closed => Refusal::Closed { session }.into(),
        SessionState::Open | SessionState::Closing => Error::Stopping,
    }
}
