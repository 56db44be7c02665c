//! Catalogs, and answers to calls.

use super::*;

impl Sessions {
    /// Keeps a catalog.
    pub async fn put_catalog(
        &self,
        tenant: &TenantId,
        catalog: &Catalog,
        idempotency: Option<&Idempotency>,
    ) -> Result<CatalogDigest, Error> {
        match self.once(tenant, "PutCatalog", idempotency).await? {
            Once::Before(done) => {
                done.outcome.parse().map_err(|_| internal("an idempotency record names no catalog"))
            }
            Once::First(once) => {
                let done = once.done(catalog.digest().to_string());
                self.inner.preparer.put(tenant, catalog, done).await
            }
        }
    }

    /// A catalog, found or as it is.
    pub async fn catalog(&self, tenant: &TenantId, source: &CatalogSource) -> Result<Catalog, Error> {
        match source {
            CatalogSource::Inline(catalog) => Ok(catalog.clone()),
            CatalogSource::Digest(digest) => self.inner.preparer.find(tenant, digest).await,
        }
    }

    /// Answers a pending call. Returns when the answer is recorded.
    pub async fn answer(
        &self,
        tenant: &TenantId,
        session: SessionId,
        call: CallId,
        result: ToolResult,
        idempotency: Option<&Idempotency>,
    ) -> Result<(), Error> {
        let Once::First(once) = self.once(tenant, "Answer", idempotency).await? else { return Ok(()) };
        let shared = match self.find(tenant, session).await? {
            Found::Live(shared) => shared,
            Found::Kept(record) if record.state == SessionState::Closed => return Err(not_pending(call)),
            Found::Kept(_) => return Err(Error::Stopping),
        };
        let mut reader = Reader::new(
            session,
            shared.tail.last().next(),
            Some(shared.tail.clone()),
            self.inner.store.clone(),
        );
        self.inner.providers.answer(session, call, result).map_err(|error| match error {
            AnswerError::NotFound => self.why_no_call(&shared, call),
            AnswerError::NotPending => not_pending(call),
            AnswerError::Served => {
                let message = format!("a provider has call {call} and will answer it");
                Error::invalid(reasons::CALL_NOT_PENDING, "call_id", message)
            }
        })?;
        // It may have ended before, and the broker not been told yet: then no end is to come.
        let program = call.program;
        let snapshot = match shared.ask(|reply| Command::Snapshot { program, reply }).await {
            Err(Error::Stopping) => return Err(self.why_over(tenant, session).await),
            snapshot => snapshot?,
        };
        let pending = snapshot.is_some_and(|at| at.pending.iter().any(|pending| pending.id == call));
        let state = loop {
            let events = reader.read().await?;
            if let Some(state) = events.iter().find_map(|event| end_of(call, &event.kind)) {
                break state;
            }
            if events.is_empty() && !pending {
                return Err(not_pending(call));
            }
            if events.is_empty() && !reader.wait().await {
                return Err(Error::Stopping);
            }
        };
        match state {
            CallState::Finished | CallState::Failed => {
                self.remember_done(tenant, &shared, once.done(String::new())).await;
                Ok(())
            }
            // Its program ended first.
            _ => Err(not_pending(call)),
        }
    }

    fn why_no_call(&self, shared: &Shared, call: CallId) -> Error {
        let record = shared.record.borrow();
        if call.session == shared.id
            && call.program.0 <= record.last_program
            && Some(call.program) != record.active_program
        {
            return not_pending(call);
        }
        Error::invalid(
            reasons::CALL_NOT_FOUND,
            "call_id",
            format!("session {} has no call {call}", shared.id),
        )
    }

    /// Whether a tenant has a session, for providers that attach.
    pub async fn check_session(&self, tenant: &TenantId, session: SessionId) -> Result<(), Error> {
        match self.find(tenant, session).await? {
            Found::Live(_) => Ok(()),
            Found::Kept(record) => Err(over(&record)),
        }
    }
}

fn not_pending(call: CallId) -> Error {
    Error::invalid(reasons::CALL_NOT_PENDING, "call_id", format!("call {call} has ended"))
}

fn end_of(call: CallId, kind: &EventKind) -> Option<CallState> {
    match kind {
        EventKind::CallEnded { record, .. } if record.id == call => Some(record.state),
        _ => None,
    }
}
