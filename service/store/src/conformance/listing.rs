//! Reading: events, blobs, lists, catalogs, and the walls between tenants.

use seance_core::ids::{CatalogDigest, EventSeq, ProgramNumber};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::store::{Append, Error, SessionFilter, SessionStore};

use super::*;

pub(crate) async fn events_are_read_from_any_point_within_bounds(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let events = (2..=9).map(|seq| output(seq, &[b'x'; 1_000])).collect();
    store.append(Append { events, ..to(&made) }).await.unwrap();
    for (from, n_max, bytes_max, expected) in [
        (1, 100, usize::MAX, 1..10),
        (0, 2, usize::MAX, 1..3),
        (3, 3, usize::MAX, 3..6),
        (8, 100, usize::MAX, 8..10),
        (4, 100, 2_500, 4..6),
        // The first one comes whatever its size, or a reader would wait for ever.
        (4, 100, 0, 4..5),
        (4, 0, usize::MAX, 4..4),
        (10, 100, usize::MAX, 10..10),
        (u64::MAX, 100, usize::MAX, 10..10),
    ] {
        let events = store.events(made.id, EventSeq(from), n_max, bytes_max).await.unwrap();
        let seqs: Vec<_> = events.iter().map(|event| event.seq.0).collect();
        assert_eq!(seqs, expected.collect::<Vec<_>>(), "from {from}, {n_max}, {bytes_max}");
    }
}

pub(crate) async fn blobs_are_read_in_ranges(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let data: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
    let blobs = vec![blob(1, data.clone()), blob(2, Vec::new())];
    store.append(Append { blobs, ..to(&made) }).await.unwrap();
    // What is there already stays.
    store.append(Append { blobs: vec![blob(1, vec![9; 800_000])], ..to(&made) }).await.unwrap();

    let chunk = 256 * 1024;
    for (offset, n_max) in [
        (0, usize::MAX),
        (0, 10),
        (chunk - 1, 2),
        (chunk, chunk),
        (chunk + 5, 2 * chunk),
        (699_999, 10),
        (700_000, 10),
        (0, 0),
    ] {
        let bytes = store.blob(made.id, blob_id(1), offset as u64, n_max).await.unwrap();
        let end = offset.saturating_add(n_max).min(data.len());
        assert_eq!(bytes[..], data[offset..end], "{n_max} from {offset}");
    }
    assert!(store.blob(made.id, blob_id(1), u64::MAX, 10).await.unwrap().is_empty());
    assert!(store.blob(made.id, blob_id(2), 0, 10).await.unwrap().is_empty());
    assert_eq!(store.blob_info(made.id, blob_id(1)).await.unwrap().unwrap().bytes, 700_000);
    assert_eq!(store.blob_info(made.id, blob_id(3)).await.unwrap(), None);
    assert!(is_failed(store.blob(made.id, blob_id(3), 0, 1).await.map(|_| ())));
    let result = store.blob(session_id(2), blob_id(1), 0, 1).await;
    assert!(matches!(result, Err(Error::NoSession { .. })), "{result:?}");
}

async fn listed(store: &dyn SessionStore, filter: SessionFilter) -> Vec<SessionId> {
    let found = store.sessions(&TenantId::default_tenant(), filter).await.unwrap();
    found.into_iter().map(|record| record.id).collect()
}

fn ids<const N: usize>(numbers: [u8; N]) -> Vec<SessionId> {
    numbers.map(session_id).to_vec()
}

pub(crate) async fn sessions_are_listed_newest_first_in_pages(store: &dyn SessionStore) {
    for n in [2, 4, 1, 5, 3] {
        created(store, n).await;
    }
    let page = |before, n_max| SessionFilter { before, n_max, ..SessionFilter::default() };
    assert_eq!(listed(store, page(None, 2)).await, ids([5, 4]));
    assert_eq!(listed(store, page(Some(session_id(4)), 2)).await, ids([3, 2]));
    assert_eq!(listed(store, page(Some(session_id(2)), 2)).await, ids([1]));
    assert_eq!(listed(store, page(Some(session_id(1)), 2)).await, ids([]));
    assert_eq!(listed(store, page(None, usize::MAX)).await, ids([5, 4, 3, 2, 1]));
    assert_eq!(listed(store, page(None, 0)).await, ids([]));
}

pub(crate) async fn sessions_are_found_by_state_and_labels(store: &dyn SessionStore) {
    for (n, labels) in [(1, vec![("team", "a")]), (2, vec![("team", "a"), ("x", "")]), (3, vec![])] {
        let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        create(store, &SessionRecord { labels, ..record(n) }).await;
    }
    close(store, &SessionRecord { labels: [("team".to_owned(), "a".to_owned())].into(), ..record(1) }, AT)
        .await;
    let by = |state, labels: &[(&str, &str)]| SessionFilter {
        state,
        labels: labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        before: None,
        n_max: 10,
    };
    for (state, labels, expected) in [
        (None, &[("team", "a")][..], ids([2, 1])),
        (None, &[("team", "a"), ("x", "")], ids([2])),
        (None, &[("team", "b")], ids([])),
        (None, &[("a", "team")], ids([])),
        (Some(SessionState::Closed), &[], ids([1])),
        (Some(SessionState::Open), &[("team", "a")], ids([2])),
        (Some(SessionState::Closing), &[], ids([])),
    ] {
        assert_eq!(listed(store, by(state, labels)).await, expected, "{state:?} {labels:?}");
    }
}

pub(crate) async fn tenants_see_only_their_own(store: &dyn SessionStore) {
    let ours = created(store, 1).await;
    let theirs = SessionRecord { tenant: tenant("other"), ..record(2) };
    create(store, &theirs).await;
    assert_eq!(store.session(&ours.tenant, theirs.id).await.unwrap(), None);
    assert_eq!(store.session(&theirs.tenant, ours.id).await.unwrap(), None);
    let all = SessionFilter { n_max: 10, ..SessionFilter::default() };
    assert_eq!(store.sessions(&theirs.tenant, all).await.unwrap(), [theirs]);
}

pub(crate) async fn unfinished_are_all_that_are_not_closed(store: &dyn SessionStore) {
    let open = created(store, 1).await;
    let closing = created(store, 2).await;
    let closing = SessionRecord { state: SessionState::Closing, reason: "CLOSED".to_owned(), ..closing };
    store.append(Append { record: Some(Box::new(closing.clone())), ..to(&closing) }).await.unwrap();
    close(store, &created(store, 3).await, AT).await;
    let theirs = SessionRecord { tenant: tenant("other"), ..record(4) };
    create(store, &theirs).await;
    let mut found = store.unfinished().await.unwrap();
    found.sort_by_key(|record| record.id);
    assert_eq!(found, [open, closing, theirs]);
}

pub(crate) async fn catalogs_are_kept_by_tenant_and_digest(store: &dyn SessionStore) {
    let (ours, theirs) = (TenantId::default_tenant(), tenant("other"));
    let json = Bytes::from_static(br#"{"tools":[]}"#);
    let digest = CatalogDigest::of(&json);
    assert_eq!(store.catalog(&ours, &digest).await.unwrap(), None);
    store.put_catalog(&ours, &digest, json.clone(), Some(done("PutCatalog", "k"))).await.unwrap();
    store.put_catalog(&ours, &digest, json.clone(), None).await.unwrap();
    assert_eq!(store.catalog(&ours, &digest).await.unwrap(), Some(json.clone()));
    assert_eq!(store.catalog(&theirs, &digest).await.unwrap(), None);
    assert!(store.done_request(&ours, "PutCatalog", "k").await.unwrap().is_some());

    let second = CatalogDigest::of(b"second");
    let result = store.put_catalog(&ours, &second, json, Some(done("PutCatalog", "k"))).await;
    assert!(matches!(result, Err(Error::KeyTaken { .. })), "{result:?}");
    assert_eq!(store.catalog(&ours, &second).await.unwrap(), None);
}

/// A28: texts are hostile: quotes, NUL, controls, what is not in the basic plane, JSON and SQL.
pub(crate) async fn any_text_is_kept_as_it_is(store: &dyn SessionStore) {
    let text = "'; DROP TABLE events; -- \" \\ \u{0} \u{1f} \u{2028} 🦀 {\"a\":[1]} %s ?1 $1";
    let labels: std::collections::BTreeMap<_, _> =
        [(text.to_owned(), text.to_owned()), ("a.b[0]".to_owned(), "1.0".to_owned())].into();
    let made = SessionRecord { labels: labels.clone(), reason: text.to_owned(), ..record(1) };
    create(store, &made).await;
    let request = DoneRequest { outcome: text.to_owned(), ..done(text, text) };
    let data = NewBlob { media_type: text.to_owned(), ..blob(1, text.as_bytes().to_vec()) };
    let append = Append {
        done: Some(request.clone()),
        blobs: vec![data],
        events: vec![output(2, text.as_bytes())],
        ..to(&made)
    };
    store.append(append.clone()).await.unwrap();

    let result = store.append(Append { done: Some(request.clone()), ..to(&made) }).await;
    assert!(matches!(&result, Err(Error::KeyTaken { key }) if key == text), "{result:?}");
    assert_eq!(store.done_request(&made.tenant, text, text).await.unwrap(), Some(request));
    assert_eq!(store.blob_info(made.id, blob_id(1)).await.unwrap().unwrap().media_type, text);
    assert_eq!(log(store, made.id).await[1..], append.events);
    assert_eq!(listed(store, SessionFilter { labels, n_max: 1, ..SessionFilter::default() }).await, ids([1]));
    assert_eq!(stored(store, &made).await.reason, text);
    assert_eq!(store.program(made.id, ProgramNumber(u64::MAX)).await.unwrap(), None);
}
