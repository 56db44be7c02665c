//! Sweeps, sizes and the end of a store.

use std::time::Duration;

use seance_core::ids::{CatalogDigest, ProgramNumber};
use seance_core::program::ProgramState;
use seance_core::store::{Append, Error, Retention, SessionStore, StoreSize};

use super::*;

/// Deletes nothing.
const KEEP: Retention = Retention {
    closed_before: Timestamp(i64::MIN),
    done_before: Timestamp(i64::MIN),
    closed_bytes_max: u64::MAX,
};

fn second(n: u64) -> Timestamp {
    AT.after(Duration::from_secs(n))
}

pub(crate) async fn a_sweep_deletes_what_closed_before(store: &dyn SessionStore) {
    for n in 1..=4 {
        let made = created(store, n).await;
        if n < 4 {
            close(store, &made, second(n.into())).await;
        }
    }
    let append = Append {
        programs: vec![program(&record(1), 1, ProgramState::Completed)],
        blobs: vec![blob(1, vec![7; 600_000])],
        ..outputs(&record(1), 3..=1_500)
    };
    store.append(append).await.unwrap();
    assert_eq!(store.sweep(KEEP).await.unwrap(), 0);
    let retention = Retention { closed_before: second(3), ..KEEP };
    assert_eq!(store.sweep(retention).await.unwrap(), 2);
    assert_eq!(store.sweep(retention).await.unwrap(), 0);

    let gone = record(1);
    assert_eq!(store.session(&gone.tenant, gone.id).await.unwrap(), None);
    assert_eq!(store.program(gone.id, ProgramNumber(1)).await.unwrap(), None);
    assert_eq!(store.blob_info(gone.id, blob_id(1)).await.unwrap(), None);
    for result in [
        store.events(gone.id, EventSeq::FIRST, 1, 1).await.map(|_| ()),
        store.blob(gone.id, blob_id(1), 0, 1).await.map(|_| ()),
        store.append(outputs(&gone, [1_501])).await,
        store.take_over(gone.id, AT).await.map(|_| ()),
    ] {
        assert!(matches!(result, Err(Error::NoSession { .. })), "{result:?}");
    }
    assert_eq!(log(store, session_id(3)).await.len(), 2);
    assert_eq!(log(store, session_id(4)).await.len(), 1);
}

pub(crate) async fn a_sweep_keeps_the_newest_within_the_bytes(store: &dyn SessionStore) {
    for n in 1..=5 {
        let made = created(store, n).await;
        store.append(Append { blobs: vec![blob(1, vec![n; 100_000])], ..to(&made) }).await.unwrap();
        // Closed in another order than opened; the last one stays open and is not counted.
        if n < 5 {
            close(store, &made, second([0, 3, 1, 4, 2][usize::from(n)])).await;
        }
    }
    let retention = Retention { closed_bytes_max: 250_000, ..KEEP };
    assert_eq!(store.sweep(retention).await.unwrap(), 2);
    for (n, kept) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
        let found = store.session(&TenantId::default_tenant(), session_id(n)).await.unwrap();
        assert_eq!(found.is_some(), kept, "session {n}");
    }
    assert_eq!(store.sweep(Retention { closed_bytes_max: 0, ..KEEP }).await.unwrap(), 2);
    assert_eq!(store.size().await.unwrap().n_sessions, 1);
}

pub(crate) async fn a_sweep_forgets_old_requests_and_no_sandbox(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    for (key, at) in [("old", second(1)), ("new", second(2))] {
        let request = DoneRequest { at, ..done("Execute", key) };
        store.append(Append { done: Some(request), ..to(&made) }).await.unwrap();
    }
    let append =
        Append { uses_sandbox: Some(sandbox_id(1)), acknowledges: Some((sandbox_id(1), 5)), ..to(&made) };
    store.append(append).await.unwrap();
    close(store, &made, second(1)).await;

    let retention = Retention { done_before: second(2), closed_before: second(9), ..KEEP };
    assert_eq!(store.sweep(retention).await.unwrap(), 1);
    assert!(store.done_request(&made.tenant, "Execute", "old").await.unwrap().is_none());
    assert!(store.done_request(&made.tenant, "Execute", "new").await.unwrap().is_some());
    assert_eq!(store.acknowledged(sandbox_id(1)).await.unwrap(), 5);
    let other = created(store, 2).await;
    let result = store.append(Append { uses_sandbox: Some(sandbox_id(1)), ..to(&other) }).await;
    assert!(matches!(result, Err(Error::SandboxUsed { .. })), "{result:?}");
    store.append(Append { done: Some(done("Execute", "old")), ..to(&other) }).await.unwrap();
}

fn catalog(n: usize) -> (CatalogDigest, Bytes) {
    let json = Bytes::from(format!(r#"{{"tools":[],"n":{n}}}"#));
    (CatalogDigest::of(&json), json)
}

/// A catalog stays while a session of its tenant names it, by itself or in a program.
pub(crate) async fn a_sweep_forgets_catalogs_that_nothing_names(store: &dyn SessionStore) {
    let (ours, theirs) = (TenantId::default_tenant(), tenant("other"));
    let (own, of_program, of_nothing) =
        (put(store, &ours, 1).await, put(store, &ours, 2).await, put(store, &ours, 3).await);
    for n in 10..40 {
        put(store, &ours, n).await;
    }
    assert_eq!(put(store, &theirs, 1).await, own);
    let made = SessionRecord { catalog: Some(own.clone()), ..record(1) };
    create(store, &made).await;
    let ran = ProgramRecord { catalog: Some(of_program.clone()), ..program(&made, 1, ProgramState::Running) };
    store.append(Append { programs: vec![ran], ..to(&made) }).await.unwrap();

    let left = async |tenant: &TenantId| {
        let mut left = Vec::new();
        for digest in [&own, &of_program, &of_nothing, &catalog(39).0] {
            left.push(store.catalog(tenant, digest).await.unwrap().is_some());
        }
        left
    };
    store.sweep(KEEP).await.unwrap();
    assert_eq!(left(&ours).await, [true, true, true, true]);
    let forget = Retention { closed_before: Timestamp(i64::MAX), ..KEEP };
    store.sweep(forget).await.unwrap();
    assert_eq!(left(&ours).await, [true, true, false, false]);
    assert_eq!(left(&theirs).await, [false; 4]);
    assert_eq!(put(store, &ours, 3).await, of_nothing);

    close(store, &made, AT).await;
    assert_eq!(store.sweep(forget).await.unwrap(), 1);
    assert_eq!(left(&ours).await, [false; 4]);
}

/// A tenant with as many catalogs as it may keep puts the same again, and no other until some are
/// forgotten. The backend's own test has filled the store.
pub(crate) async fn check_full_of_catalogs(store: &dyn SessionStore, kept: usize) {
    let (ours, theirs) = (TenantId::default_tenant(), tenant("other"));
    let (digest, json) = catalog(usize::MAX);
    let result = store.put_catalog(&ours, &digest, json, Some(done("PutCatalog", "k"))).await;
    let Err(Error::Full { message }) = result else { panic!("{result:?}") };
    assert!(message.contains(&crate::TENANT_CATALOGS_MAX.to_string()), "{message}");
    assert!(store.done_request(&ours, "PutCatalog", "k").await.unwrap().is_none());
    assert_eq!(store.catalog(&ours, &digest).await.unwrap(), None);
    put(store, &ours, kept).await;
    put(store, &theirs, usize::MAX).await;
}

/// Puts catalog `n` of a tenant.
pub(crate) async fn put(store: &dyn SessionStore, tenant: &TenantId, n: usize) -> CatalogDigest {
    let (digest, json) = catalog(n);
    store.put_catalog(tenant, &digest, json, None).await.unwrap();
    digest
}

pub(crate) async fn the_size_follows_appends_and_sweeps(store: &dyn SessionStore) {
    assert_eq!(store.size().await.unwrap(), StoreSize::default());
    let made = created(store, 1).await;
    let one = store.size().await.unwrap();
    assert_eq!((one.n_sessions, one.n_events), (1, 1));
    store.append(Append { blobs: vec![blob(1, vec![0; 1_000])], ..to(&made) }).await.unwrap();
    assert_eq!(store.size().await.unwrap(), StoreSize { bytes: one.bytes + 1_000, ..one });
    created(store, 2).await;
    close(store, &made, second(1)).await;
    store.take_over(session_id(2), AT).await.unwrap();
    let all = store.size().await.unwrap();
    assert_eq!((all.n_sessions, all.n_events), (2, 4));
    store.sweep(Retention { closed_before: second(9), ..KEEP }).await.unwrap();
    let left = store.size().await.unwrap();
    assert_eq!((left.n_sessions, left.n_events), (1, 2));
    let events = log(store, session_id(2)).await;
    let bytes = events.iter().map(|event| crate::codec::encode(event).unwrap().len() as u64);
    assert_eq!(left.bytes, bytes.sum::<u64>());
}

pub(crate) async fn a_closed_store_refuses_calls(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    store.close().await;
    store.close().await;
    assert!(is_failed(store.append(outputs(&made, [2])).await));
    assert!(is_failed(store.session(&made.tenant, made.id).await.map(|_| ())));
    assert!(is_failed(store.sweep(KEEP).await.map(|_| ())));
}
