//! Retention: sessions are deleted in one small transaction, and their rows afterwards in bounded
//! steps between the appends of others. What a kill leaves is deleted after the next start.

use seance_core::store::Retention;
use seance_core::time::Timestamp;
use sqlx::{Row, SqliteConnection};

use super::batch::int;
use super::writer::{Answer, Failure, Writer};

/// Marks sessions as deleted and makes the totals true.
const DOOM: &str = "
    BEGIN IMMEDIATE;
    UPDATE sessions SET doomed = 1
    WHERE doomed = 0 AND closed_at IS NOT NULL AND (closed_at < ? OR session IN (
        SELECT session FROM (
            SELECT session, sum(bytes) OVER (ORDER BY closed_at DESC, id DESC ROWS UNBOUNDED PRECEDING) AS kept
            FROM sessions WHERE doomed = 0 AND closed_at IS NOT NULL)
        WHERE kept > ?));
    UPDATE totals SET (commits, n_sessions, n_events, bytes) = (
        SELECT ?, count(*), coalesce(sum(last_seq), 0), coalesce(sum(bytes), 0)
        FROM sessions WHERE doomed = 0);
    COMMIT";

/// Forgets some requests.
const FORGET: &str = "
    DELETE FROM requests WHERE (tenant, method, key) IN (
        SELECT tenant, method, key FROM requests WHERE at < ? LIMIT 1000)";

/// Forgets some catalogs that no session names. One that a session is opened with at this very moment
/// may go, if nothing else named it or put it for as long as retention keeps: the session then has
/// it until the service starts again.
const FORGET_CATALOGS: &str = "
    DELETE FROM catalogs WHERE rowid IN (
        SELECT rowid FROM catalogs AS c WHERE put_at < ? AND NOT EXISTS (
            SELECT 1 FROM catalog_names AS n WHERE n.tenant = c.tenant AND n.digest = c.digest)
        LIMIT 8)";

/// What is forgotten beside sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forget {
    requests_before: Timestamp,
    catalogs_before: Timestamp,
}

impl Forget {
    pub const NOTHING: Self =
        Self { requests_before: Timestamp(i64::MIN), catalogs_before: Timestamp(i64::MIN) };

    fn and(self, other: Self) -> Self {
        Self {
            requests_before: self.requests_before.max(other.requests_before),
            catalogs_before: self.catalogs_before.max(other.catalogs_before),
        }
    }
}

/// One step of each kind. The bounds keep a step to a few milliseconds and the log short.
const STEPS: &[&str] = &[
    "DELETE FROM blob_chunks WHERE rowid IN (SELECT rowid FROM blob_chunks WHERE session = ?1 LIMIT 16)",
    "DELETE FROM events WHERE session = ?1
     AND seq < (SELECT min(seq) FROM events WHERE session = ?1) + 500",
    "DELETE FROM programs WHERE rowid IN (SELECT rowid FROM programs WHERE session = ?1 LIMIT 50)",
    "DELETE FROM blobs WHERE session = ?1",
    "DELETE FROM catalog_names WHERE session = ?1",
    "DELETE FROM records WHERE session = ?1",
    "DELETE FROM sessions WHERE session = ?1",
];

impl Writer {
    /// Deletes sessions. They are gone when this is done; the answer comes when their rows are too.
    pub(super) async fn sweep(&mut self, retention: Retention, answer: Answer<u64>) {
        match self.doom(retention).await {
            Ok(n_deleted) => {
                let forget = Forget {
                    requests_before: retention.done_before,
                    catalogs_before: retention.closed_before,
                };
                self.purging = Some(forget.and(self.purging.unwrap_or(Forget::NOTHING)));
                self.sweeps.push((answer, n_deleted));
            }
            // A caller that went away needs no answer.
            Err(failure) => drop(answer.send(Err(failure.error()))),
        }
    }

    async fn doom(&mut self, retention: Retention) -> Result<u64, Failure> {
        self.connection().await?;
        let before = self.totals.n_sessions;
        let number = self.totals.commits + 1;
        let transaction = sqlx::query(DOOM)
            .bind(retention.closed_before.0)
            .bind(int(retention.closed_bytes_max))
            .bind(number);
        self.commit(number, transaction).await?;
        self.forget_heads();
        self.recall().await?;
        Ok(u64::try_from(before - self.totals.n_sessions).unwrap_or(0))
    }

    /// Deletes some rows of what is deleted. When none is left, or it fails, sweeps are
    /// answered.
    pub(super) async fn purge(&mut self, forget: Forget) {
        let purged = match self.connection().await {
            Ok(connection) => purge_some(connection, forget).await,
            Err(error) => Err(error),
        };
        let failure = match purged {
            Ok(true) => return,
            Ok(false) => None,
            Err(error) => {
                tracing::error!(%error, "rows of deleted sessions could not be deleted");
                Some(Failure::from(error))
            }
        };
        self.purging = None;
        for (answer, n_deleted) in self.sweeps.drain(..) {
            // A caller that went away needs no answer.
            let _ = answer.send(failure.as_ref().map_or(Ok(n_deleted), |failure| Err(failure.error())));
        }
    }
}

/// Whether there may be more.
async fn purge_some(connection: &mut SqliteConnection, forget: Forget) -> Result<bool, sqlx::Error> {
    if sqlx::query(FORGET).bind(forget.requests_before.0).execute(&mut *connection).await?.rows_affected() > 0
    {
        return Ok(true);
    }
    let row = sqlx::query("SELECT session FROM sessions WHERE doomed = 1 LIMIT 1")
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else {
        // After the sessions, because they name catalogs.
        let forgotten = sqlx::query(FORGET_CATALOGS).bind(forget.catalogs_before.0);
        return Ok(forgotten.execute(&mut *connection).await?.rows_affected() > 0);
    };
    let session: i64 = row.try_get(0)?;
    for step in STEPS {
        let done = sqlx::query(*step).bind(session).execute(&mut *connection).await?;
        if done.rows_affected() > 1 {
            return Ok(true);
        }
    }
    Ok(true)
}
