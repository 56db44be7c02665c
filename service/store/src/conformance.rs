//! The suite that every store passes. A backend's file instantiates it with [`suite!`]; a behaviour
//! that only one backend has is tested beside that backend.

mod appends;
mod listing;
mod retention;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seance_core::event::{Event, EventKind, OutputSource};
use seance_core::ids::{BlobId, Epoch, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::limits::Limits;
use seance_core::program::{ProgramRecord, ProgramState, Usage};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{Append, DoneRequest, Error, NewBlob, SessionStore};
use seance_core::time::Timestamp;

pub(crate) use appends::*;
pub(crate) use listing::*;
pub(crate) use retention::*;

/// A store to test, and the directory that lives as long.
pub(crate) struct Fixture {
    pub store: Arc<dyn SessionStore>,
    pub dir: Option<tempfile::TempDir>,
}

/// One test per behaviour, each with a store of its own from `$fixture`.
macro_rules! suite {
    ($fixture:expr) => {
        crate::conformance::suite! { $fixture;
            what_was_appended_is_read_back
            a_new_session_is_made_once
            an_append_to_no_session_or_anothers_is_refused
            a_stale_epoch_is_refused_and_changes_nothing
            events_that_do_not_follow_are_refused_and_change_nothing
            the_last_event_is_right_without_a_record
            a_used_sandbox_is_refused_for_ever
            a_taken_key_is_refused_and_changes_nothing
            keys_are_apart_by_tenant_and_method
            acknowledged_frames_only_rise
            a_takeover_fences_the_old_owner
            refused_appends_fail_no_neighbours
            a_dropped_append_is_whole_or_nothing
            a_record_of_another_session_is_refused
            programs_are_replaced_as_a_whole
            events_are_read_from_any_point_within_bounds
            blobs_are_read_in_ranges
            sessions_are_listed_newest_first_in_pages
            sessions_are_found_by_state_and_labels
            tenants_see_only_their_own
            unfinished_are_all_that_are_not_closed
            catalogs_are_kept_by_tenant_and_digest
            any_text_is_kept_as_it_is
            a_sweep_deletes_what_closed_before
            a_sweep_keeps_the_newest_within_the_bytes
            a_sweep_forgets_old_requests_and_no_sandbox
            a_sweep_forgets_catalogs_that_nothing_names
            the_size_follows_appends_and_sweeps
            a_closed_store_refuses_calls
        }
    };
    ($fixture:expr; $($test:ident)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                let fixture = $fixture;
                crate::conformance::$test(&*fixture.store).await;
                drop(fixture.dir);
            }
        )*
    };
}
pub(crate) use suite;

pub(crate) const AT: Timestamp = Timestamp(1_700_000_000_000_000);
pub(crate) const EPOCH: Epoch = Epoch(1);

pub(crate) fn tenant(name: &str) -> TenantId {
    name.parse().unwrap()
}

/// Session `n`; later numbers are newer.
pub(crate) fn session_id(n: u8) -> SessionId {
    SessionId::mint(AT.after(Duration::from_secs(n.into())), [n; 10])
}

pub(crate) fn sandbox_id(n: u8) -> SandboxId {
    SandboxId::mint(AT, [n; 10])
}

pub(crate) fn blob_id(n: u8) -> BlobId {
    BlobId::mint(AT, [n; 10])
}

/// The record of session `n` of the default tenant.
pub(crate) fn record(n: u8) -> SessionRecord {
    SessionRecord {
        tenant: TenantId::default_tenant(),
        id: session_id(n),
        state: SessionState::Open,
        reason: String::new(),
        engine: "javascript".to_owned(),
        min_version: String::new(),
        engine_options: Vec::new(),
        limits: Limits::default(),
        labels: BTreeMap::new(),
        catalog: None,
        idle_timeout: Duration::from_secs(60),
        created_at: AT,
        expires_at: AT.after(Duration::from_secs(3_600)),
        active_program: None,
        last_program: 0,
        sandbox: None,
        last_seq: EventSeq(1),
        kept: BTreeMap::new(),
        observed: None,
        epoch: EPOCH,
    }
}

pub(crate) fn event(seq: u64, kind: EventKind) -> Event {
    Event { seq: EventSeq(seq), at: AT.after(Duration::from_secs(seq)), program: None, kind }
}

pub(crate) fn output(seq: u64, data: &[u8]) -> Event {
    let data = Bytes::copy_from_slice(data);
    event(seq, EventKind::Output { source: OutputSource::Stdout, data, separated: false })
}

/// An append of nothing to a record's session.
pub(crate) fn to(record: &SessionRecord) -> Append {
    Append::empty(record.tenant.clone(), record.id, record.epoch)
}

/// An append of outputs `seqs` to a record's session.
pub(crate) fn outputs(record: &SessionRecord, seqs: impl IntoIterator<Item = u64>) -> Append {
    let events = seqs.into_iter().map(|seq| output(seq, format!("output {seq}").as_bytes())).collect();
    Append { events, ..to(record) }
}

pub(crate) async fn create(store: &dyn SessionStore, record: &SessionRecord) {
    let opened = event(1, EventKind::SessionOpened { engine: record.engine.clone() });
    let first = Append { events: vec![opened], ..to(record) };
    store.create(record.clone(), first).await.unwrap();
}

/// Makes session `n` of the default tenant with its first event.
pub(crate) async fn created(store: &dyn SessionStore, n: u8) -> SessionRecord {
    let record = record(n);
    create(store, &record).await;
    record
}

/// Closes a session whose last event is its first, at a time.
pub(crate) async fn close(store: &dyn SessionStore, record: &SessionRecord, at: Timestamp) {
    let closed = Event { at, ..event(2, EventKind::SessionClosed) };
    let record = SessionRecord { state: SessionState::Closed, ..record.clone() };
    let append = Append { events: vec![closed], record: Some(Box::new(record.clone())), ..to(&record) };
    store.append(append).await.unwrap();
}

pub(crate) fn program(record: &SessionRecord, number: u64, state: ProgramState) -> ProgramRecord {
    ProgramRecord {
        session: record.id,
        number: ProgramNumber(number),
        state,
        reason: String::new(),
        detail: String::new(),
        first_seq: EventSeq(1),
        last_seq: EventSeq(1),
        value: None,
        error: None,
        warnings: Vec::new(),
        usage: Usage::default(),
        calls: Vec::new(),
        n_calls: 0,
        artifacts: Vec::new(),
        language: "javascript".to_owned(),
        catalog: None,
        created_at: AT,
        started_at: None,
        ended_at: None,
    }
}

pub(crate) fn done(method: &str, key: &str) -> DoneRequest {
    DoneRequest {
        method: method.to_owned(),
        key: key.to_owned(),
        request_digest: "sha256:1".to_owned(),
        outcome: "1".to_owned(),
        at: AT,
    }
}

pub(crate) fn blob(n: u8, data: Vec<u8>) -> NewBlob {
    NewBlob { id: blob_id(n), media_type: "text/plain".to_owned(), data: data.into() }
}

/// A session's events, all of them.
pub(crate) async fn log(store: &dyn SessionStore, session: SessionId) -> Vec<Event> {
    store.events(session, EventSeq::FIRST, usize::MAX, usize::MAX).await.unwrap()
}

/// The record as the store has it.
pub(crate) async fn stored(store: &dyn SessionStore, record: &SessionRecord) -> SessionRecord {
    store.session(&record.tenant, record.id).await.unwrap().unwrap()
}

/// Fails unless the session is as it was made: one event, the record untouched.
pub(crate) async fn check_untouched(store: &dyn SessionStore, record: &SessionRecord) {
    assert_eq!(stored(store, record).await, *record);
    assert_eq!(log(store, record.id).await.len(), 1);
}

pub(crate) fn is_failed(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Failed { .. }))
}
