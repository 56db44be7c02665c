//! Taking over what an earlier start of the service left.

use super::*;

impl Sessions {
    pub(super) async fn recover(&self) -> Result<(), Error> {
        for record in self.inner.store.unfinished().await? {
            let record = self.inner.store.take_over(record.id, self.inner.now()).await?;
            let log = match record.active_program {
                Some(number) => self.events_of(&record, number).await?,
                None => Vec::new(),
            };
            let catalog = self.kept_catalog(&record).await;
            if record.active_program.is_some() {
                self.inner.metrics.programs_active.inc();
            }
            let mut random = || self.inner.config.environment.random();
            let mut ctx = Context { now: self.inner.now(), random: &mut random };
            tracing::info!(session = %record.id, tenant = %record.tenant, "session taken over");
            let machine = Machine::recover(record.clone(), &log, &mut ctx);
            self.spawn(&record, machine, None, catalog, Vec::new());
        }
        Ok(())
    }

    /// The session's own catalog. One that can't be had any more is asked for again, and refused
    /// then, by the first program that needs it.
    pub(super) async fn kept_catalog(&self, record: &SessionRecord) -> Option<Arc<Prepared>> {
        let source = CatalogSource::Digest(record.catalog.clone()?);
        let prepared = self.inner.preparer.prepare(&record.tenant, &record.engine, &source).await;
        prepared.inspect_err(|error| tracing::error!(session = %record.id, %error, "no catalog")).ok()
    }

    pub(super) async fn events_of(
        &self,
        record: &SessionRecord,
        number: ProgramNumber,
    ) -> Result<Vec<seance_core::event::Event>, Error> {
        let program = self.inner.store.program(record.id, number).await?;
        let first = program.map_or(EventSeq::FIRST, |program| program.first_seq);
        let mut reader = Reader::new(record.id, first, None, self.inner.store.clone());
        let mut log = Vec::new();
        loop {
            let events = reader.read().await?;
            if events.is_empty() {
                return Ok(log);
            }
            // Output is not looked at again, and may be large.
            let kept = events.iter().filter(|event| !matches!(event.kind, EventKind::Output { .. }));
            log.extend(kept.map(|event| (**event).clone()));
        }
    }
}
