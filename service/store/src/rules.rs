//! What an append must be to be taken. The rules are the same for every backend: they see the
//! session's head and the append, and nothing else.

use std::time::Duration;

use bytes::Bytes;
use seance_core::event::{Event, EventKind};
use seance_core::ids::{CatalogDigest, Epoch, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{Append, DoneRequest, Error, IDEMPOTENCY_KEY_BYTES_MAX, NewBlob};
use seance_core::time::Timestamp;

use crate::codec::{encode, failed};

/// The most bytes of one append. Larger ones are refused; the limits of a session are far below.
pub(crate) const APPEND_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The most catalogs that are kept of one tenant.
pub const TENANT_CATALOGS_MAX: u64 = 20_000;
/// The most bytes of them, as JSON.
pub const TENANT_CATALOGS_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// A catalog that is put again counts as put then, when this long has passed: most are put with
/// every session.
pub(crate) const PUT_AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);

/// What of a session decides whether an append is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub tenant: TenantId,
    pub state: SessionState,
    pub epoch: Epoch,
    pub last_seq: EventSeq,
    /// When the last event was.
    pub last_at: Timestamp,
    /// When it was closed: at the last event of the append that said so.
    pub closed_at: Option<Timestamp>,
}

/// An event, encoded.
#[derive(Debug)]
pub(crate) struct StagedEvent {
    pub seq: EventSeq,
    pub at: Timestamp,
    pub body: Bytes,
}

/// A session's record, encoded.
#[derive(Debug)]
pub(crate) struct StagedRecord {
    pub state: SessionState,
    /// A JSON object of texts.
    pub labels: String,
    pub body: Bytes,
}

/// An append, encoded by its caller so that the one writer has less to do.
#[derive(Debug)]
pub(crate) struct Staged {
    pub tenant: TenantId,
    pub session: SessionId,
    pub epoch: Epoch,
    /// It makes the session.
    pub creates: bool,
    pub events: Vec<StagedEvent>,
    pub record: Option<StagedRecord>,
    pub programs: Vec<(ProgramNumber, Bytes)>,
    pub blobs: Vec<NewBlob>,
    pub uses_sandbox: Option<SandboxId>,
    pub acknowledges: Option<(SandboxId, u64)>,
    pub done: Option<DoneRequest>,
    /// The catalogs that its record and its programs name, each once.
    pub catalogs: Vec<CatalogDigest>,
}

impl Staged {
    /// Encodes an append. Refuses one that is about another session than it says, and one that
    /// is too large.
    pub fn append(append: Append) -> Result<Self, Error> {
        let Append {
            tenant,
            session,
            epoch,
            events,
            record,
            programs,
            blobs,
            uses_sandbox,
            acknowledges,
            done,
        } = append;
        let ours = record.as_ref().is_none_or(|record| record.id == session && record.tenant == tenant)
            && programs.iter().all(|program| program.session == session);
        if !ours {
            return Err(failed("appending", "a record of another session"));
        }
        done.as_ref().map(check_key).transpose()?;
        let named = record.iter().map(|record| &record.catalog);
        let mut catalogs: Vec<_> =
            named.chain(programs.iter().map(|program| &program.catalog)).flatten().cloned().collect();
        catalogs.sort_unstable();
        catalogs.dedup();
        let staged = Self {
            creates: false,
            events: events.iter().map(stage_event).collect::<Result<_, _>>()?,
            record: record.as_deref().map(stage_record).transpose()?,
            programs: programs
                .iter()
                .map(|program| Ok((program.number, Bytes::from(encode(program)?))))
                .collect::<Result<_, Error>>()?,
            tenant,
            session,
            epoch,
            blobs,
            uses_sandbox,
            acknowledges,
            done,
            catalogs,
        };
        if staged.weight() > APPEND_BYTES_MAX {
            return Err(failed("appending", "the append is too large"));
        }
        Ok(staged)
    }

    /// Encodes the append that makes a session.
    pub fn create(record: SessionRecord, first: Append) -> Result<Self, Error> {
        if record.epoch != first.epoch {
            return Err(Error::StaleEpoch { session: record.id, ours: first.epoch });
        }
        let first = Append { record: Some(Box::new(record)), ..first };
        Ok(Self { creates: true, ..Self::append(first)? })
    }

    /// The bytes that count as the session's: those of events and blobs.
    pub fn bytes(&self) -> u64 {
        let events: usize = self.events.iter().map(|event| event.body.len()).sum();
        let blobs: usize = self.blobs.iter().map(|blob| blob.data.len()).sum();
        (events + blobs) as u64
    }

    /// The memory it takes while it waits, about.
    pub fn weight(&self) -> usize {
        let programs: usize = self.programs.iter().map(|(_, body)| body.len()).sum();
        let record = self.record.as_ref().map_or(0, |record| record.body.len() + record.labels.len());
        usize::try_from(self.bytes()).unwrap_or(usize::MAX).saturating_add(programs + record)
    }
}

/// The session's head after an append, or why the append is refused.
pub(crate) fn admit(head: Option<&Head>, append: &Staged) -> Result<Head, Error> {
    let session = append.session;
    let head = match (head, append.creates) {
        (Some(head), true) => {
            let given = append.events.first().map_or(EventSeq::FIRST, |event| event.seq);
            return Err(Error::OutOfOrder { session, given, last: head.last_seq });
        }
        (None, true) => Head {
            tenant: append.tenant.clone(),
            state: SessionState::Open,
            epoch: append.epoch,
            last_seq: EventSeq(0),
            last_at: Timestamp(0),
            closed_at: None,
        },
        (Some(head), false) if head.tenant == append.tenant => head.clone(),
        (_, false) => return Err(Error::NoSession { session }),
    };
    if head.epoch != append.epoch {
        return Err(Error::StaleEpoch { session, ours: append.epoch });
    }
    moved(head, append)
}

fn moved(mut head: Head, append: &Staged) -> Result<Head, Error> {
    for event in &append.events {
        if event.seq != head.last_seq.next() {
            return Err(Error::OutOfOrder { session: append.session, given: event.seq, last: head.last_seq });
        }
        head.last_seq = event.seq;
        head.last_at = event.at;
    }
    if let Some(record) = &append.record {
        head.state = record.state;
        head.closed_at = match record.state {
            SessionState::Closed => head.closed_at.or(Some(head.last_at)),
            SessionState::Open | SessionState::Closing => None,
        };
    }
    Ok(head)
}

/// The head under its next owner, and the event that says so.
pub(crate) fn taken_over(head: &Head, at: Timestamp) -> Result<(Head, StagedEvent), Error> {
    let epoch = Epoch(head.epoch.0 + 1);
    let seq = head.last_seq.next();
    let event = Event { seq, at, program: None, kind: EventKind::OwnerChanged { epoch } };
    Ok((Head { epoch, last_seq: seq, last_at: at, ..head.clone() }, stage_event(&event)?))
}

/// How much a tenant keeps in catalogs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CatalogTotals {
    pub n_catalogs: u64,
    pub bytes: u64,
}

impl CatalogTotals {
    /// What it is with one more catalog, or why that is refused.
    pub fn with(self, tenant: &TenantId, bytes: usize) -> Result<Self, Error> {
        let with = Self { n_catalogs: self.n_catalogs + 1, bytes: self.bytes.saturating_add(bytes as u64) };
        if with.n_catalogs > TENANT_CATALOGS_MAX || with.bytes > TENANT_CATALOGS_BYTES_MAX {
            let message = format!(
                "tenant {tenant} keeps {} catalogs with {} bytes, and may keep {TENANT_CATALOGS_MAX} with {TENANT_CATALOGS_BYTES_MAX}; those that no session names go when retention is over",
                self.n_catalogs, self.bytes
            );
            return Err(Error::Full { message });
        }
        Ok(with)
    }
}

/// Refuses a key that is too long.
pub(crate) fn check_key(done: &DoneRequest) -> Result<(), Error> {
    if done.key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        return Err(failed("keeping a request", "the idempotency key is too long"));
    }
    Ok(())
}

fn stage_event(event: &Event) -> Result<StagedEvent, Error> {
    Ok(StagedEvent { seq: event.seq, at: event.at, body: encode(event)?.into() })
}

fn stage_record(record: &SessionRecord) -> Result<StagedRecord, Error> {
    let labels = serde_json::to_string(&record.labels).map_err(|error| failed("encoding labels", error))?;
    Ok(StagedRecord { state: record.state, labels, body: encode(record)?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogs_are_counted_and_bounded_as_the_page_of_limits_says() {
        let tenant = TenantId::default_tenant();
        let with = |n_catalogs, bytes| CatalogTotals { n_catalogs, bytes }.with(&tenant, 10);
        assert_eq!(with(1, 5).unwrap(), CatalogTotals { n_catalogs: 2, bytes: 15 });
        for (n_catalogs, bytes, fits) in [
            (TENANT_CATALOGS_MAX - 1, 0, true),
            (TENANT_CATALOGS_MAX, 0, false),
            (0, TENANT_CATALOGS_BYTES_MAX - 10, true),
            (0, TENANT_CATALOGS_BYTES_MAX - 9, false),
            (0, u64::MAX, false),
        ] {
            let result = with(n_catalogs, bytes);
            assert_eq!(result.is_ok(), fits, "{result:?}");
        }
        let page = include_str!("../../../docs/limits.md");
        let gib = TENANT_CATALOGS_BYTES_MAX >> 30;
        assert!(page.contains(&format!("at most {TENANT_CATALOGS_MAX} catalogs with {gib} GiB")));
    }
}
