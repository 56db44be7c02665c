//! Appends: what is taken, what is refused, and that a refused one leaves nothing.

use futures::future::join_all;
use seance_core::event::EventKind;
use seance_core::ids::{Epoch, EventSeq, ProgramNumber};
use seance_core::program::ProgramState;
use seance_core::session::SessionRecord;
use seance_core::store::{Append, BlobInfo, Error, SessionStore};

use super::*;

pub(crate) async fn what_was_appended_is_read_back(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let changed = SessionRecord {
        last_program: 1,
        last_seq: EventSeq(3),
        sandbox: Some(sandbox_id(1)),
        ..made.clone()
    };
    let append = Append {
        record: Some(Box::new(changed.clone())),
        programs: vec![program(&made, 1, ProgramState::Queued)],
        blobs: vec![blob(1, b"hello".to_vec())],
        uses_sandbox: Some(sandbox_id(1)),
        acknowledges: Some((sandbox_id(1), 4)),
        done: Some(done("Execute", "key")),
        ..outputs(&made, [2, 3])
    };
    store.append(append.clone()).await.unwrap();

    assert_eq!(stored(store, &made).await, changed);
    assert_eq!(log(store, made.id).await[1..], append.events);
    assert_eq!(store.program(made.id, ProgramNumber(1)).await.unwrap().as_ref(), append.programs.first());
    assert_eq!(store.program(made.id, ProgramNumber(2)).await.unwrap(), None);
    let info = store.blob_info(made.id, blob_id(1)).await.unwrap();
    assert_eq!(info, Some(BlobInfo { media_type: "text/plain".to_owned(), bytes: 5 }));
    assert_eq!(store.acknowledged(sandbox_id(1)).await.unwrap(), 4);
    assert_eq!(store.acknowledged(sandbox_id(2)).await.unwrap(), 0);
    assert_eq!(store.done_request(&made.tenant, "Execute", "key").await.unwrap(), append.done);
}

pub(crate) async fn a_new_session_is_made_once(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let again = SessionRecord { engine: "ruby".to_owned(), ..made.clone() };
    let result = store.create(again.clone(), outputs(&again, [1])).await;
    assert!(matches!(result, Err(Error::OutOfOrder { last: EventSeq(1), .. })), "{result:?}");
    check_untouched(store, &made).await;

    let stale = SessionRecord { epoch: Epoch(2), ..record(2) };
    let result = store.create(stale, outputs(&record(2), [1])).await;
    assert!(matches!(result, Err(Error::StaleEpoch { .. })), "{result:?}");
    let result = store.create(record(2), outputs(&record(2), [2])).await;
    assert!(matches!(result, Err(Error::OutOfOrder { last: EventSeq(0), .. })), "{result:?}");
    assert_eq!(store.size().await.unwrap().n_sessions, 1);
    created(store, 2).await;
}

pub(crate) async fn an_append_to_no_session_or_anothers_is_refused(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let theirs = Append { tenant: tenant("other"), ..outputs(&made, [2]) };
    for append in [theirs, outputs(&record(2), [1]), outputs(&record(2), [])] {
        let result = store.append(append).await;
        assert!(matches!(result, Err(Error::NoSession { .. })), "{result:?}");
    }
    let result = store.take_over(session_id(2), AT).await;
    assert!(matches!(result, Err(Error::NoSession { .. })), "{result:?}");
    let result = store.events(session_id(2), EventSeq::FIRST, 1, 1).await;
    assert!(matches!(result, Err(Error::NoSession { .. })), "{result:?}");
    check_untouched(store, &made).await;
}

pub(crate) async fn a_stale_epoch_is_refused_and_changes_nothing(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    for epoch in [Epoch(0), Epoch(2), Epoch(u64::MAX)] {
        let changed = SessionRecord { last_program: 9, ..made.clone() };
        let append = Append { epoch, record: Some(Box::new(changed)), ..outputs(&made, [2]) };
        let result = store.append(append).await;
        assert!(matches!(result, Err(Error::StaleEpoch { ours, .. }) if ours == epoch), "{result:?}");
    }
    check_untouched(store, &made).await;
}

pub(crate) async fn events_that_do_not_follow_are_refused_and_change_nothing(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    for seqs in [vec![0], vec![1], vec![3], vec![2, 4], vec![2, 2], vec![2, 3, 1], vec![u64::MAX]] {
        let append = Append { blobs: vec![blob(1, vec![1])], ..outputs(&made, seqs.clone()) };
        let result = store.append(append).await;
        assert!(matches!(result, Err(Error::OutOfOrder { .. })), "{seqs:?}: {result:?}");
    }
    check_untouched(store, &made).await;
    assert_eq!(store.blob_info(made.id, blob_id(1)).await.unwrap(), None);
}

pub(crate) async fn the_last_event_is_right_without_a_record(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    store.append(outputs(&made, [2, 3])).await.unwrap();
    store.append(to(&made)).await.unwrap();
    assert_eq!(stored(store, &made).await, SessionRecord { last_seq: EventSeq(3), ..made.clone() });
    // A record that counts wrong is put right: readers page by this number.
    let wrong = SessionRecord { last_seq: EventSeq(77), epoch: Epoch(9), ..made.clone() };
    store.append(Append { record: Some(Box::new(wrong)), ..outputs(&made, [4]) }).await.unwrap();
    assert_eq!(stored(store, &made).await, SessionRecord { last_seq: EventSeq(4), ..made });
}

/// Sandbox 9: used marks are durable; a sandbox is never used again.
pub(crate) async fn a_used_sandbox_is_refused_for_ever(store: &dyn SessionStore) {
    let (made, other) = (created(store, 1).await, created(store, 2).await);
    let using = |record, seq| Append { uses_sandbox: Some(sandbox_id(1)), ..outputs(record, [seq]) };
    store.append(using(&made, 2)).await.unwrap();
    for append in [using(&made, 3), using(&other, 2)] {
        let result = store.append(append).await;
        assert!(matches!(result, Err(Error::SandboxUsed { .. })), "{result:?}");
    }
    check_untouched(store, &other).await;
    // Acknowledging frames of a sandbox does not use it.
    store.append(Append { acknowledges: Some((sandbox_id(2), 1)), ..to(&made) }).await.unwrap();
    for (sandbox, is_used) in [(1, true), (2, false), (3, false)] {
        assert_eq!(store.is_used(sandbox_id(sandbox)).await.unwrap(), is_used, "{sandbox}");
    }
    store.append(Append { uses_sandbox: Some(sandbox_id(2)), ..to(&made) }).await.unwrap();
}

/// Case 82, sandbox 25: a repeated request is found, not done again.
pub(crate) async fn a_taken_key_is_refused_and_changes_nothing(store: &dyn SessionStore) {
    let (made, other) = (created(store, 1).await, created(store, 2).await);
    store.append(Append { done: Some(done("Execute", "k")), ..outputs(&made, [2]) }).await.unwrap();
    let again = Append { done: Some(done("Execute", "k")), ..outputs(&other, [2]) };
    let result = store.append(again).await;
    assert!(matches!(&result, Err(Error::KeyTaken { key }) if key == "k"), "{result:?}");
    check_untouched(store, &other).await;

    let third = Append { done: Some(done("Execute", "k")), ..outputs(&record(3), [1]) };
    let result = store.create(record(3), third).await;
    assert!(matches!(result, Err(Error::KeyTaken { .. })), "{result:?}");
    assert_eq!(store.session(&made.tenant, session_id(3)).await.unwrap(), None);

    let long = "k".repeat(seance_core::store::IDEMPOTENCY_KEY_BYTES_MAX + 1);
    assert!(is_failed(store.append(Append { done: Some(done("Execute", &long)), ..to(&made) }).await));
}

pub(crate) async fn keys_are_apart_by_tenant_and_method(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let other = SessionRecord { tenant: tenant("other"), ..record(2) };
    create(store, &other).await;
    for (record, method) in [(&made, "Execute"), (&made, "Stop"), (&other, "Execute")] {
        store.append(Append { done: Some(done(method, "k")), ..to(record) }).await.unwrap();
    }
    assert!(store.done_request(&made.tenant, "Stop", "k").await.unwrap().is_some());
    assert!(store.done_request(&other.tenant, "Stop", "k").await.unwrap().is_none());
    assert!(store.done_request(&made.tenant, "Execute", "K").await.unwrap().is_none());
}

pub(crate) async fn acknowledged_frames_only_rise(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    for (number, expected) in [(3, 3), (2, 3), (7, 7)] {
        let append = Append { acknowledges: Some((sandbox_id(1), number)), ..to(&made) };
        store.append(append).await.unwrap();
        assert_eq!(store.acknowledged(sandbox_id(1)).await.unwrap(), expected);
    }
}

pub(crate) async fn a_takeover_fences_the_old_owner(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let at = AT.after(std::time::Duration::from_secs(9));
    let taken = store.take_over(made.id, at).await.unwrap();
    assert_eq!(taken, SessionRecord { epoch: Epoch(2), last_seq: EventSeq(2), ..made.clone() });
    assert_eq!(stored(store, &made).await, taken);
    let events = log(store, made.id).await;
    assert_eq!((events[1].at, &events[1].kind), (at, &EventKind::OwnerChanged { epoch: Epoch(2) }));

    let result = store.append(outputs(&made, [3])).await;
    assert!(matches!(result, Err(Error::StaleEpoch { .. })), "{result:?}");
    store.append(outputs(&taken, [3])).await.unwrap();
    let again = store.take_over(made.id, at).await.unwrap();
    assert_eq!((again.epoch, again.last_seq), (Epoch(3), EventSeq(4)));

    // Two takers never get the same epoch.
    let both = join_all([store.take_over(made.id, at), store.take_over(made.id, at)]).await;
    let mut epochs: Vec<_> = both.into_iter().map(|taken| taken.unwrap().epoch).collect();
    epochs.sort();
    assert_eq!(epochs, [Epoch(4), Epoch(5)]);
}

/// Appends of one moment share a transaction in some backends.
pub(crate) async fn refused_appends_fail_no_neighbours(store: &dyn SessionStore) {
    let (one, two) = (created(store, 1).await, created(store, 2).await);
    let used = |append| Append { uses_sandbox: Some(sandbox_id(1)), ..append };
    let keyed = |append| Append { done: Some(done("Execute", "k")), ..append };
    let results = join_all([
        store.append(used(keyed(outputs(&one, [2])))),
        store.append(outputs(&one, [3])),
        store.append(outputs(&one, [3])),
        store.append(used(outputs(&two, [2]))),
        store.append(keyed(outputs(&two, [2]))),
        store.append(Append { epoch: Epoch(7), ..outputs(&two, [2]) }),
        store.append(outputs(&record(3), [1])),
        store.create(record(4), outputs(&record(4), [1])),
        store.append(outputs(&record(4), [2])),
        store.append(outputs(&two, [2])),
    ])
    .await;
    let refused: Vec<_> = results.iter().enumerate().filter(|(_, result)| result.is_err()).collect();
    assert!(
        matches!(
            refused[..],
            [
                (2, Err(Error::OutOfOrder { .. })),
                (3, Err(Error::SandboxUsed { .. })),
                (4, Err(Error::KeyTaken { .. })),
                (5, Err(Error::StaleEpoch { .. })),
                (6, Err(Error::NoSession { .. })),
            ]
        ),
        "{results:?}"
    );
    for (record, n_events) in [(&one, 3), (&two, 2), (&record(4), 2)] {
        assert_eq!(log(store, record.id).await.len(), n_events);
        assert_eq!(stored(store, record).await.last_seq, EventSeq(n_events as u64));
    }
}

pub(crate) async fn a_dropped_append_is_whole_or_nothing(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let changed = SessionRecord { last_program: 5, ..made.clone() };
    let append = Append {
        record: Some(Box::new(changed)),
        programs: vec![program(&made, 5, ProgramState::Running)],
        ..outputs(&made, [2, 3])
    };
    let mut call = store.append(append);
    assert!(futures::poll!(&mut call).is_ready() || futures::poll!(&mut call).is_pending());
    drop(call);
    // The next append of the session tells which: the other one is refused.
    let whole = store.append(outputs(&made, [4])).await.is_ok();
    if !whole {
        store.append(outputs(&made, [2])).await.unwrap();
    }
    assert_eq!(log(store, made.id).await.len(), if whole { 4 } else { 2 });
    assert_eq!(stored(store, &made).await.last_program, if whole { 5 } else { 0 });
    assert_eq!(store.program(made.id, ProgramNumber(5)).await.unwrap().is_some(), whole);
}

pub(crate) async fn a_record_of_another_session_is_refused(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    let moved = SessionRecord { tenant: tenant("other"), ..made.clone() };
    for other in [record(2), moved] {
        assert!(is_failed(store.append(Append { record: Some(Box::new(other)), ..to(&made) }).await));
    }
    let programs = vec![program(&record(2), 1, ProgramState::Queued)];
    assert!(is_failed(store.append(Append { programs, ..outputs(&made, [2]) }).await));
    check_untouched(store, &made).await;
}

pub(crate) async fn programs_are_replaced_as_a_whole(store: &dyn SessionStore) {
    let made = created(store, 1).await;
    for state in [ProgramState::Queued, ProgramState::Running, ProgramState::Completed] {
        let mut programs = vec![program(&made, 1, ProgramState::NotStarted), program(&made, 1, state)];
        store.append(Append { programs: programs.clone(), ..to(&made) }).await.unwrap();
        assert_eq!(store.program(made.id, ProgramNumber(1)).await.unwrap(), programs.pop());
    }
}
