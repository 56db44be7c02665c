//! Taking over what an earlier start of the service left.

use seance_core::event::{Event, OutputSource};
use seance_core::ids::BlobId;
use seance_core::program::Payload;
use seance_core::sandbox::TakeBack;

use super::*;

/// Bytes of stored payloads that are read again for one program: what a runner or a provider may lack.
const PAYLOAD_BYTES_MAX: u64 = 32 << 20;

impl Sessions {
    pub(super) async fn recover(&self) -> Result<(), Error> {
        for record in self.inner.store.unfinished().await? {
            let record = self.inner.store.take_over(record.id, self.inner.now()).await?;
            tracing::info!(session = %record.id, tenant = %record.tenant, "session taken over");
            if record.active_program.is_some() {
                self.inner.metrics.programs_active.inc();
            }
            let mut log = match record.active_program {
                Some(number) => self.events_of(&record, number).await?,
                None => Vec::new(),
            };
            let prepared = self.kept_catalogs(&record, &log).await;
            let awaited = record.sandbox.filter(|_| self.inner.backend.outlives_service());
            let mut random = || self.inner.config.environment.random();
            let mut ctx = Context { now: self.inner.now(), random: &mut random };
            let (machine, sandbox) = match awaited {
                None => (Machine::recover(record.clone(), &log, &mut ctx), First::None),
                Some(sandbox) => {
                    self.inline_payloads(&record, &mut log).await?;
                    let request = TakeBack {
                        sandbox,
                        session: record.id,
                        tenant: record.tenant.clone(),
                        engine: record.engine.clone(),
                        epoch: record.epoch,
                        acknowledged: self.inner.store.acknowledged(sandbox).await?,
                    };
                    let machine = Machine::recover_awaiting(record.clone(), sandbox, &log, &mut ctx);
                    (machine, First::Awaited(request))
                }
            };
            self.spawn(&record, machine, sandbox, prepared, Vec::new());
        }
        Ok(())
    }

    /// The session's own catalog and that of its active program. One that can't be had any more is
    /// asked for again, and refused then, by the first program that needs it.
    async fn kept_catalogs(&self, record: &SessionRecord, log: &[Event]) -> Vec<Arc<Prepared>> {
        let of_program = log.iter().find_map(|event| match &event.kind {
            EventKind::ProgramAccepted { catalog, .. } => catalog.clone(),
            _ => None,
        });
        let own = record.catalog.clone();
        // The newest comes last.
        let wanted = own.clone().into_iter().chain(of_program.filter(|digest| Some(digest) != own.as_ref()));
        let mut prepared = Vec::new();
        for digest in wanted {
            let source = CatalogSource::Digest(digest);
            match self.inner.preparer.prepare(&record.tenant, &record.engine, &source).await {
                Ok(catalog) => prepared.push(catalog),
                Err(error) => tracing::error!(session = %record.id, %error, "no catalog"),
            }
        }
        prepared
    }

    pub(super) async fn events_of(
        &self,
        record: &SessionRecord,
        number: ProgramNumber,
    ) -> Result<Vec<Event>, Error> {
        let program = self.inner.store.program(record.id, number).await?;
        let first = program.map_or(EventSeq::FIRST, |program| program.first_seq);
        let mut reader = Reader::new(record.id, first, None, self.inner.store.clone());
        let mut log = Vec::new();
        let mut wrote_text = false;
        loop {
            let events = reader.read().await?;
            if events.is_empty() {
                return Ok(log);
            }
            for event in events {
                let mut event = (*event).clone();
                // Of output it only matters that there was text: a newline stands before the next.
                if let EventKind::Output { source, data, .. } = &mut event.kind {
                    if *source != OutputSource::Text || std::mem::replace(&mut wrote_text, true) {
                        continue;
                    }
                    data.clear();
                }
                log.push(event);
            }
        }
    }

    /// Reads the payloads that may be needed again, the newest first.
    async fn inline_payloads(&self, record: &SessionRecord, log: &mut [Event]) -> Result<(), Error> {
        let mut left = PAYLOAD_BYTES_MAX;
        let mut ended = std::collections::HashSet::new();
        for event in log.iter_mut().rev() {
            let payload = match &mut event.kind {
                EventKind::CallEnded { record, value: Some(value) } => {
                    ended.insert(record.id);
                    value
                }
                EventKind::CallEnded { record, value: None } => {
                    ended.insert(record.id);
                    continue;
                }
                EventKind::CallMade(record) if !ended.contains(&record.id) => &mut record.arguments,
                _ => continue,
            };
            let Payload::Blob { id, bytes } = *payload else { continue };
            let Some(rest) = left.checked_sub(bytes) else { continue };
            left = rest;
            *payload = Payload::Inline(self.blob_text(record, id, bytes).await?);
        }
        Ok(())
    }

    async fn blob_text(&self, record: &SessionRecord, id: BlobId, bytes: u64) -> Result<String, Error> {
        let mut text = Vec::new();
        while (text.len() as u64) < bytes {
            let n_max = usize::try_from(bytes).unwrap_or(usize::MAX) - text.len();
            let part = self.inner.store.blob(record.id, id, text.len() as u64, n_max).await?;
            if part.is_empty() {
                break;
            }
            text.extend_from_slice(&part);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
