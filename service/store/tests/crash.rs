//! A store whose process is killed at any moment: what it answered is there, whole and in order.
//!
//! The test starts itself as a child that appends and prints what was answered, kills it with
//! SIGKILL after a random number of answers, and opens what it left.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::Bytes;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use seance_core::event::{Event, EventKind, OutputSource};
use seance_core::ids::{BlobId, Epoch, EventSeq, TenantId};
use seance_core::session::SessionRecord;
use seance_core::store::{Append, DoneRequest, NewBlob, SessionStore};
use seance_store::{SqliteConfig, SqliteStore};
use support::{AT, record, sandbox_id, session_id};

const DIR: &str = "SEANCE_STORE_CRASH_DIR";
const ROUNDS: usize = 20;
const SESSIONS: u8 = 4;

/// Appends until it is killed when the parent says where; else a few, as a test of its own.
#[tokio::test]
async fn the_child_appends_what_the_parent_checks() {
    match std::env::var_os(DIR) {
        Some(dir) => append(Path::new(&dir), u64::MAX, print).await,
        None => {
            let dir = tempfile::tempdir().unwrap();
            append(dir.path(), 20, |_, _| ()).await;
            let last = check(dir.path(), &BTreeMap::new()).await;
            assert!(last.len() == usize::from(SESSIONS) && last.values().all(|last| *last == 41), "{last:?}");
        }
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_kill_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut answered = BTreeMap::new();
    for round in 0..ROUNDS {
        let n_answers = 1 + (random.next_u32() % 60) as usize;
        kill_after(dir.path(), n_answers, &mut answered);
        let last = check(dir.path(), &answered).await;
        assert!(!last.is_empty(), "round {round}");
    }
}

/// Runs a child until `n_answers` are read, kills it, and reads what else it printed.
fn kill_after(dir: &Path, n_answers: usize, answered: &mut BTreeMap<u8, u64>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child_appends_what_the_parent_checks", "--nocapture", "--quiet"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut n_read = 0;
    while n_read < n_answers {
        let line = lines.next().expect("the child appends until it is killed").unwrap();
        n_read += usize::from(note(&line, answered));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for line in lines {
        note(&line.unwrap(), answered);
    }
}

/// Takes an answer in; a line that was cut off by the kill has no full stop.
fn note(line: &str, answered: &mut BTreeMap<u8, u64>) -> bool {
    let parse = || {
        let (session, seq) = line.strip_prefix("answered ")?.strip_suffix('.')?.split_once(' ')?;
        Some((session.parse().ok()?, seq.parse().ok()?))
    };
    let Some((session, seq)) = parse() else { return false };
    answered.insert(session, seq);
    true
}

/// All sessions at the same time, so that they share commits.
async fn append(dir: &Path, n_appends: u64, answered: fn(u8, u64)) {
    let store = SqliteStore::open(config(dir)).await.unwrap();
    let appending = (0..SESSIONS).map(|session| append_to(&store, session, n_appends, answered));
    futures::future::join_all(appending).await;
    store.close().await;
}

async fn append_to(store: &SqliteStore, session: u8, n_appends: u64, answered: fn(u8, u64)) {
    let tenant = TenantId::default_tenant();
    let found = store.session(&tenant, session_id(session)).await.unwrap();
    let mut last = found.map_or(0, |record| record.last_seq.0);
    if last == 0 {
        let (record, append) = (record_at(session, 1), appended(session, 0, 1));
        store.create(record, append).await.unwrap();
        last = 1;
    }
    for _ in 0..n_appends {
        store.append(appended(session, last, 2)).await.unwrap();
        last += 2;
        answered(session, last);
    }
}

fn print(session: u8, last: u64) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "answered {session} {last}.").unwrap();
    stdout.flush().unwrap();
}

/// Opens what a child left. Everything in an append agrees with its last event, so a transaction
/// that is there in part is seen. Gives the last event of each session.
async fn check(dir: &Path, answered: &BTreeMap<u8, u64>) -> BTreeMap<u8, u64> {
    let store = SqliteStore::open(config(dir)).await.unwrap();
    let mut found = BTreeMap::new();
    let mut n_events = 0;
    for session in 0..SESSIONS {
        let id = session_id(session);
        let Some(record) = store.session(&TenantId::default_tenant(), id).await.unwrap() else {
            assert!(!answered.contains_key(&session), "session {session} is gone");
            continue;
        };
        let last = record.last_seq.0;
        assert!(last >= answered.get(&session).copied().unwrap_or(0), "session {session}: {last}");
        let events = store.events(id, EventSeq::FIRST, usize::MAX, usize::MAX).await.unwrap();
        let seqs: Vec<_> = events.iter().map(|event| event.seq.0).collect();
        assert_eq!(seqs, (1..=last).collect::<Vec<_>>(), "session {session}");
        assert!(events.iter().all(|event| *event == self::event(session, event.seq.0)));
        assert_eq!(record.last_program, last, "session {session}: the record is of another append");
        check_rest(&store, session, last).await;
        n_events += last;
        found.insert(session, last);
    }
    assert_eq!(store.size().await.unwrap().n_events, n_events);
    store.close().await;
    found
}

async fn check_rest(store: &SqliteStore, session: u8, last: u64) {
    assert_eq!(store.acknowledged(sandbox_id(session)).await.unwrap(), last);
    let done = |seq| async move {
        let key = format!("{session}-{seq}");
        store.done_request(&TenantId::default_tenant(), "Execute", &key).await.unwrap()
    };
    assert!(done(last).await.is_some() && done(last + 2).await.is_none(), "session {session}");
    let blob = store.blob(session_id(session), blob_id(session, last), 0, usize::MAX).await.unwrap();
    assert_eq!(blob, last.to_string().as_bytes());
    assert_eq!(store.blob_info(session_id(session), blob_id(session, last + 2)).await.unwrap(), None);
}

/// An append of `n` events after `last`, with something of each kind.
fn appended(session: u8, last: u64, n: u64) -> Append {
    let tenant = TenantId::default_tenant();
    let seq = last + n;
    Append {
        events: (last + 1..=seq).map(|seq| event(session, seq)).collect(),
        record: Some(Box::new(record_at(session, seq))),
        blobs: vec![NewBlob {
            id: blob_id(session, seq),
            media_type: "text/plain".to_owned(),
            data: seq.to_string().into(),
        }],
        acknowledges: Some((sandbox_id(session), seq)),
        done: Some(DoneRequest {
            method: "Execute".to_owned(),
            key: format!("{session}-{seq}"),
            request_digest: String::new(),
            outcome: String::new(),
            at: AT,
        }),
        ..Append::empty(tenant, session_id(session), Epoch(1))
    }
}

fn event(session: u8, seq: u64) -> Event {
    let data = Bytes::from(format!("{session} {seq} ").repeat(seq as usize % 300));
    let kind = EventKind::Output { source: OutputSource::Stdout, data, separated: false };
    Event { seq: EventSeq(seq), at: AT, program: None, kind }
}

/// The record after its event `seq`.
fn record_at(session: u8, seq: u64) -> SessionRecord {
    let sandbox = Some(sandbox_id(session));
    SessionRecord { last_program: seq, last_seq: EventSeq(seq), sandbox, ..record(session) }
}

fn blob_id(session: u8, seq: u64) -> BlobId {
    let mut random = [session; 10];
    random[1..9].copy_from_slice(&seq.to_be_bytes());
    BlobId::mint(AT, random)
}

fn config(dir: &Path) -> SqliteConfig {
    SqliteConfig::new(PathBuf::from(dir).join("seance.db"))
}
