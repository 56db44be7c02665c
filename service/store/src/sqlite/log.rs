//! Room in the write-ahead log.
//!
//! A commit that makes its file longer waits for the file system's own journal too, which takes about as
//! long as the data. SQLite keeps the log's length from one checkpoint to the next, so that it costs only
//! while the log grows to it for the first time: after every start of the service.

use sqlx::SqliteConnection;

/// What the log grows to between checkpoints (1,000 pages and their headers), and some.
const LOG_BYTES: usize = 4_400_000;

/// Makes the log as long as it gets. What is written for that is rolled back, and overwritten by what
/// comes. A database that has no room for it goes on without.
pub(super) async fn make_room(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    // What does not fit into the cache goes into the log before its end is known. The first commit after
    // it takes all of it to the disk, so that comes here: a number that nobody uses, as it was.
    let fill = format!(
        "PRAGMA cache_size = 8; BEGIN IMMEDIATE; CREATE TABLE room (bytes BLOB);
         INSERT INTO room VALUES (zeroblob({LOG_BYTES})); ROLLBACK; PRAGMA user_version = 0"
    );
    if let Err(error) = sqlx::raw_sql(sqlx::AssertSqlSafe(fill)).execute(&mut *connection).await {
        tracing::debug!(%error, "no room was made in the write-ahead log");
        // It may have been rolled back already.
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
    }
    sqlx::raw_sql("PRAGMA cache_size = -2000").execute(connection).await?;
    Ok(())
}
