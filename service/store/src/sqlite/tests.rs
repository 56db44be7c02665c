//! The suite on SQLite, and what only a store in files can show.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use seance_core::ids::{Epoch, EventSeq, TenantId};
use seance_core::session::SessionRecord;
use seance_core::store::{Append, Error, Retention, SessionStore};
use seance_core::time::Timestamp;
use sqlx::{ConnectOptions, Connection, Row as _};

use super::{OpenError, READERS, SqliteConfig, SqliteStore, files, schema, writer};
use crate::conformance::{self, *};

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    Fixture { store: Arc::new(open(dir.path()).await), dir: Some(dir) }
}

crate::conformance::suite!(fixture().await);

fn config(dir: &Path) -> SqliteConfig {
    SqliteConfig::new(dir.join("data/seance.db"))
}

async fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(config(dir)).await.unwrap()
}

/// Runs SQL on a store's database from outside.
async fn execute(dir: &Path, sql: &'static str) {
    let mut connection = config(dir).connect_options().connect().await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn what_was_appended_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = created(&store, 1).await;
    store.append(Append { uses_sandbox: Some(sandbox_id(1)), ..outputs(&made, [2, 3]) }).await.unwrap();
    let taken = store.take_over(made.id, AT).await.unwrap();
    let (events, size) = (log(&store, made.id).await, store.size().await.unwrap());
    store.close().await;

    let store = open(dir.path()).await;
    assert_eq!(stored(&store, &made).await, taken);
    assert_eq!(log(&store, made.id).await, events);
    assert_eq!(store.size().await.unwrap(), size);
    let result = store.append(outputs(&made, [5])).await;
    assert!(matches!(result, Err(Error::StaleEpoch { .. })), "{result:?}");
    let result = store.append(Append { uses_sandbox: Some(sandbox_id(1)), ..to(&taken) }).await;
    assert!(matches!(result, Err(Error::SandboxUsed { .. })), "{result:?}");
    created(&store, 2).await;
    assert_eq!(log(&store, made.id).await.len(), 4);
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let Err(error) = SqliteStore::open(config(dir.path())).await else { panic!("it was opened twice") };
    assert!(matches!(&error, OpenError::Locked { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("seance.db") && message.contains(&std::process::id().to_string()), "{message}");
    store.close().await;
    open(dir.path()).await.close().await;
}

/// P6: files are the owner's only.
#[tokio::test]
async fn files_are_private_and_a_clean_close_leaves_one_database() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    created(&store, 1).await;
    let home = dir.path().join("data");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home), 0o700);
    for name in ["seance.db", "seance.db-wal", "seance.db-shm", "seance.db.lock"] {
        assert_eq!(mode(&home.join(name)), 0o600, "{name}");
    }
    store.close().await;
    let mut left: Vec<_> =
        std::fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["seance.db", "seance.db.lock"]);
}

#[tokio::test]
async fn a_newer_schema_and_other_databases_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.close().await;
    execute(dir.path(), "UPDATE meta SET value = '99' WHERE name = 'schema'").await;
    let result = SqliteStore::open(config(dir.path())).await.map(|_| ());
    assert!(matches!(result, Err(OpenError::NewerSchema { found: 99, known: 2, .. })), "{result:?}");
    execute(dir.path(), "UPDATE meta SET value = 'x' WHERE name = 'schema'").await;
    let result = SqliteStore::open(config(dir.path())).await.map(|_| ());
    assert!(matches!(result, Err(OpenError::NotOurs { .. })), "{result:?}");

    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::write(&config(dir.path()).path, "").unwrap();
    execute(dir.path(), "CREATE TABLE songs (name TEXT)").await;
    let result = SqliteStore::open(config(dir.path())).await.map(|_| ());
    assert!(matches!(result, Err(OpenError::NotOurs { .. })), "{result:?}");
    std::fs::write(&config(dir.path()).path, "no database at all").unwrap();
    let result = SqliteStore::open(config(dir.path())).await.map(|_| ());
    assert!(matches!(result, Err(OpenError::Database { .. })), "{result:?}");
}

#[tokio::test]
async fn a_tenant_keeps_catalogs_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    put(&store, &TenantId::default_tenant(), 0).await;
    execute(dir.path(), "UPDATE catalog_totals SET n_catalogs = n_catalogs + 19999").await;
    check_full_of_catalogs(&store, 0).await;
    execute(dir.path(), "UPDATE catalog_totals SET n_catalogs = n_catalogs - 1").await;
    put(&store, &TenantId::default_tenant(), usize::MAX).await;
}

/// A store of the first schema is taken over with its catalogs.
#[tokio::test]
async fn an_older_schema_is_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path()).path;
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "").unwrap();
    execute(dir.path(), include_str!("../../migrations/0001.sql")).await;
    execute(
        dir.path(),
        "INSERT INTO meta VALUES ('schema', '1');
         INSERT INTO catalogs VALUES ('default', 'sha256:0', 'old'), ('default', 'sha256:1', 'older')",
    )
    .await;
    let store = open(dir.path()).await;
    store.close().await;
    let mut connection = config(dir.path()).connect_options().connect().await.unwrap();
    let row =
        "SELECT (SELECT n_catalogs || ' ' || bytes FROM catalog_totals), (SELECT min(put_at) FROM catalogs)";
    let row = sqlx::query(row).fetch_one(&mut connection).await.unwrap();
    assert_eq!(row.get::<String, _>(0), "2 8");
    assert!(row.get::<i64, _>(1) > AT.0, "they count as put now");
}

/// A full store refuses, keeps what it said, and goes on after a sweep.
#[tokio::test]
async fn a_full_store_loses_nothing_and_goes_on_after_a_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let config = SqliteConfig { bytes_max: Some(1 << 20), ..config(dir.path()) };
    let store = SqliteStore::open(config.clone()).await.unwrap();
    let made = created(&store, 1).await;
    close(&store, &made, AT).await;
    let mut last = 2;
    let refused = loop {
        let events = vec![output(last + 1, &[b'x'; 20_000])];
        match store.append(Append { events, ..to(&made) }).await {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 100, "2 MB went into 1 MiB");
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
    assert!(last > 20, "{last}");
    assert_eq!(log(&store, made.id).await.len() as u64, last);
    assert_eq!(stored(&store, &made).await.last_seq, EventSeq(last));

    // What does not fit fails no small neighbour.
    let big = Append { blobs: vec![blob(1, vec![1; 4 << 20])], ..to(&made) };
    let results = tokio::join!(store.append(big), store.append(to(&made)));
    assert!(matches!(results, (Err(Error::Full { .. }), Ok(()))), "{results:?}");

    store.close().await;
    let store = SqliteStore::open(config).await.unwrap();
    assert_eq!(log(&store, made.id).await.len() as u64, last);
    let retention = Retention {
        closed_before: Timestamp(i64::MAX),
        done_before: Timestamp(i64::MIN),
        closed_bytes_max: u64::MAX,
    };
    assert_eq!(store.sweep(retention).await.unwrap(), 1);
    let made = created(&store, 2).await;
    for seq in 2..20 {
        store.append(Append { events: vec![output(seq, &[b'x'; 20_000])], ..to(&made) }).await.unwrap();
    }
}

/// What a kill left of a sweep is deleted after the next start.
#[tokio::test]
async fn an_unfinished_sweep_is_finished_after_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = created(&store, 1).await;
    let append = Append { blobs: vec![blob(1, vec![1; 1 << 20])], ..outputs(&made, 2..=2_000) };
    store.append(append).await.unwrap();
    store.close().await;
    execute(dir.path(), "UPDATE sessions SET doomed = 1, closed_at = 1; UPDATE totals SET n_sessions = 0")
        .await;

    let store = open(dir.path()).await;
    let keep = Retention {
        closed_before: Timestamp(i64::MIN),
        done_before: Timestamp(i64::MIN),
        closed_bytes_max: u64::MAX,
    };
    assert_eq!(store.sweep(keep).await.unwrap(), 0);
    store.close().await;
    let mut connection = config(dir.path()).connect_options().connect().await.unwrap();
    for table in ["sessions", "records", "events", "programs", "blobs", "blob_chunks"] {
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let rows: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    connection.close().await.unwrap();
}

/// A commit that fails is resolved by reading; the writer goes on.
#[tokio::test]
async fn a_failed_transaction_is_undone_and_the_writer_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.close().await;
    execute(
        dir.path(),
        "CREATE TRIGGER refuse AFTER INSERT ON events WHEN NEW.seq = 3
         BEGIN SELECT RAISE(ABORT, 'no threes'); END;
         CREATE TRIGGER lose AFTER INSERT ON events WHEN NEW.seq = 4
         BEGIN SELECT RAISE(ROLLBACK, 'no fours'); END",
    )
    .await;
    let store = open(dir.path()).await;
    let (one, two) = (created(&store, 1).await, created(&store, 2).await);
    let results = tokio::join!(store.append(outputs(&one, [2, 3])), store.append(outputs(&two, [2])));
    assert!(matches!(results, (Err(Error::Failed { .. }), Ok(()))), "{results:?}");
    conformance::check_untouched(&store, &one).await;
    assert!(is_failed(store.append(outputs(&one, [2, 3, 4])).await));
    let lost = Append { epoch: Epoch(1), ..outputs(&two, [3]) };
    assert!(is_failed(store.append(lost).await));
    store.append(outputs(&one, [2])).await.unwrap();
    assert_eq!(stored(&store, &one).await, SessionRecord { last_seq: EventSeq(2), ..one.clone() });
    assert_eq!(log(&store, two.id).await.len(), 2);
    assert_eq!(store.size().await.unwrap().n_events, 4);
}

/// The answer to a commit can be lost on its way: what the database has decides.
#[tokio::test]
async fn an_unknown_commit_is_resolved_by_reading() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let lock = files::prepare(&config.path).unwrap();
    let mut connection = writer::connect(&config).await.unwrap();
    schema::migrate(&config.path, &mut connection).await.unwrap();
    let mut writer = writer::Writer::new(config, connection, lock).await.unwrap();
    for (number, transaction, in_force) in [
        (1, "BEGIN IMMEDIATE; UPDATE totals SET commits = 1; COMMIT; SELECT lost()", true),
        (2, "BEGIN IMMEDIATE; UPDATE totals SET commits = 2; SELECT lost(); COMMIT", false),
        (2, "BEGIN IMMEDIATE; UPDATE totals SET commits = 2; ROLLBACK; SELECT lost()", false),
        (2, "BEGIN IMMEDIATE; UPDATE totals SET commits = 2; COMMIT", true),
    ] {
        let result = writer.commit(number, sqlx::query_with(transaction, Default::default())).await;
        assert_eq!(result.is_ok(), in_force, "{transaction}: {result:?}");
        writer.recall().await.unwrap();
        assert_eq!(writer.totals.commits == number, in_force, "{transaction}");
    }
}

#[tokio::test]
async fn a_dropped_store_finishes_what_is_queued() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = created(&store, 1).await;
    for seq in 2..10 {
        let mut call = store.append(outputs(&made, [seq]));
        assert!(futures::poll!(&mut call).is_pending(), "an append waits for its commit");
    }
    drop(store);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    let store = loop {
        match SqliteStore::open(config(dir.path())).await {
            Ok(store) => break store,
            Err(OpenError::Locked { .. }) if tokio::time::Instant::now() < deadline => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(log(&store, made.id).await.len(), 9);
}

/// Sandbox 19: fifty programs were begun at one time on a machine without a processor to spare, and one was
/// told that the store had failed.
#[tokio::test]
async fn who_reads_waits_for_a_reader_however_long_all_are_busy() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let made = created(&store, 1).await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(store.readers.acquire().await.unwrap());
    }
    tokio::time::pause();
    let mut read = store.session(&made.tenant, made.id);
    assert!(futures::poll!(&mut read).is_pending());
    tokio::time::advance(std::time::Duration::from_secs(10 * 60)).await;
    assert!(futures::poll!(&mut read).is_pending(), "it waits");
    tokio::time::resume();
    drop(readers);
    assert_eq!(read.await.unwrap().map(|record| record.id), Some(made.id));
}

#[tokio::test]
async fn a_bare_commit_is_measured_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let commits = super::measure_bare_commit(dir.path(), 5).await.unwrap();
    assert!(commits.len() == 5 && commits.iter().all(|commit| !commit.is_zero()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A commit that makes the log longer costs about twice as much.
#[tokio::test]
async fn commits_do_not_make_the_log_longer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let log_bytes = || std::fs::metadata(dir.path().join("data/seance.db-wal")).unwrap().len();
    let before = log_bytes();
    let made = created(&store, 1).await;
    // Over two checkpoints: each append takes two pages at least, and a checkpoint comes after a thousand.
    for seq in 2..1_200 {
        store.append(outputs(&made, [seq])).await.unwrap();
    }
    assert_eq!(log_bytes(), before);
}

#[tokio::test]
async fn a_store_without_room_for_its_log_opens_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let bytes_max = Some(256 * 1024);
    let store = SqliteStore::open(SqliteConfig { bytes_max, ..config(dir.path()) }).await.unwrap();
    let made = created(&store, 1).await;
    assert_eq!(log(&store, made.id).await.len(), 1);
    store.close().await;
    let files: Vec<_> = std::fs::read_dir(dir.path().join("data")).unwrap().collect();
    assert_eq!(files.len(), 2, "the database and its lock: {files:?}");
}
