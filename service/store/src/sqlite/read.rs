//! What is read, each in one statement, so that every answer is of one moment.

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use seance_core::event::Event;
use seance_core::ids::{BlobId, CatalogDigest, EventSeq, ProgramNumber, SandboxId, SessionId, TenantId};
use seance_core::program::ProgramRecord;
use seance_core::session::SessionRecord;
use seance_core::store::{BlobInfo, DoneRequest, Error, SessionFilter, StoreSize};
use seance_core::time::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlitePool};

use super::batch::{CHUNK_BYTES, int, state_number};
use super::writer::head_of_row;
use crate::codec::{decode, decode_record, failed};

pub(super) async fn events(
    pool: &SqlitePool,
    session: SessionId,
    from: EventSeq,
    n_max: usize,
    bytes_max: usize,
) -> Result<Vec<Event>, Error> {
    let doing = failed_while("reading events");
    let mut rows = sqlx::query(
        "SELECT body FROM events
         WHERE session = (SELECT session FROM sessions WHERE id = ? AND doomed = 0) AND seq >= ?
         ORDER BY seq LIMIT ?",
    )
    .bind(session.to_string())
    .bind(int(from.0))
    .bind(int(n_max as u64))
    .fetch(pool);
    let mut bytes = 0_usize;
    let mut events = Vec::new();
    while let Some(row) = rows.try_next().await.map_err(doing)? {
        let body: &[u8] = row.try_get(0).map_err(doing)?;
        bytes = bytes.saturating_add(body.len());
        if !events.is_empty() && bytes > bytes_max {
            break;
        }
        events.push(decode(body)?);
    }
    drop(rows);
    if events.is_empty() {
        check_exists(pool, session).await?;
    }
    Ok(events)
}

pub(super) async fn session(
    pool: &SqlitePool,
    tenant: &TenantId,
    id: SessionId,
) -> Result<Option<SessionRecord>, Error> {
    let row = sqlx::query(
        "SELECT tenant, state, epoch, last_seq, last_at, closed_at, body
         FROM sessions JOIN records USING (session) WHERE id = ? AND tenant = ? AND doomed = 0",
    )
    .bind(id.to_string())
    .bind(tenant.as_str())
    .fetch_optional(pool)
    .await
    .map_err(failed_while("reading a session"))?;
    row.as_ref().map(record_of_row).transpose()
}

pub(super) async fn sessions(
    pool: &SqlitePool,
    tenant: &TenantId,
    filter: &SessionFilter,
) -> Result<Vec<SessionRecord>, Error> {
    let doing = "listing sessions";
    let labels = serde_json::to_string(&filter.labels).map_err(|error| failed(doing, error))?;
    // Every id sorts before "t".
    let before = filter.before.map_or_else(|| "t".to_owned(), |before| before.to_string());
    let rows = sqlx::query(
        "SELECT tenant, state, epoch, last_seq, last_at, closed_at, body
         FROM sessions JOIN records USING (session)
         WHERE tenant = ? AND id < ? AND doomed = 0 AND state = coalesce(?, state)
           AND NOT EXISTS (
             SELECT 1 FROM json_each(?) AS wanted WHERE NOT EXISTS (
               SELECT 1 FROM json_each(labels) AS has
               WHERE has.key = wanted.key AND has.value = wanted.value))
         ORDER BY id DESC LIMIT ?",
    )
    .bind(tenant.as_str())
    .bind(before)
    .bind(filter.state.map(state_number))
    .bind(labels)
    .bind(int(filter.n_max as u64))
    .fetch_all(pool)
    .await
    .map_err(failed_while(doing))?;
    rows.iter().map(record_of_row).collect()
}

pub(super) async fn unfinished(pool: &SqlitePool) -> Result<Vec<SessionRecord>, Error> {
    let rows = sqlx::query(
        "SELECT tenant, state, epoch, last_seq, last_at, closed_at, body
         FROM sessions JOIN records USING (session) WHERE closed_at IS NULL ORDER BY id",
    )
    .fetch_all(pool)
    .await
    .map_err(failed_while("listing unfinished sessions"))?;
    rows.iter().map(record_of_row).collect()
}

pub(super) async fn program(
    pool: &SqlitePool,
    session: SessionId,
    number: ProgramNumber,
) -> Result<Option<ProgramRecord>, Error> {
    let doing = failed_while("reading a program");
    let row = sqlx::query(
        "SELECT body FROM programs
         WHERE session = (SELECT session FROM sessions WHERE id = ? AND doomed = 0) AND number = ?",
    )
    .bind(session.to_string())
    .bind(int(number.0))
    .fetch_optional(pool)
    .await
    .map_err(doing)?;
    row.map(|row| decode(row.try_get(0).map_err(doing)?)).transpose()
}

pub(super) async fn acknowledged(pool: &SqlitePool, sandbox: SandboxId) -> Result<u64, Error> {
    let doing = failed_while("reading what is acknowledged");
    let row = sqlx::query("SELECT acknowledged FROM sandboxes WHERE id = ?")
        .bind(sandbox.to_string())
        .fetch_optional(pool)
        .await
        .map_err(doing)?;
    row.map_or(Ok(0), |row| unsigned(&row, 0).map_err(doing))
}

pub(super) async fn is_used(pool: &SqlitePool, sandbox: SandboxId) -> Result<bool, Error> {
    let doing = failed_while("reading whether a sandbox was used");
    let row = sqlx::query("SELECT 1 FROM sandboxes WHERE id = ? AND used")
        .bind(sandbox.to_string())
        .fetch_optional(pool)
        .await
        .map_err(doing)?;
    Ok(row.is_some())
}

pub(super) async fn blob_info(
    pool: &SqlitePool,
    session: SessionId,
    id: BlobId,
) -> Result<Option<BlobInfo>, Error> {
    let doing = failed_while("reading a blob's facts");
    let row = sqlx::query(
        "SELECT media_type, bytes FROM blobs
         WHERE session = (SELECT session FROM sessions WHERE id = ? AND doomed = 0) AND id = ?",
    )
    .bind(session.to_string())
    .bind(id.to_string())
    .fetch_optional(pool)
    .await
    .map_err(doing)?;
    let info = |row: SqliteRow| Ok(BlobInfo { media_type: row.try_get(0)?, bytes: unsigned(&row, 1)? });
    row.map(info).transpose().map_err(doing)
}

pub(super) async fn blob(
    pool: &SqlitePool,
    session: SessionId,
    id: BlobId,
    offset: u64,
    n_max: usize,
) -> Result<Bytes, Error> {
    let doing = failed_while("reading a blob");
    let Some(info) = blob_info(pool, session, id).await? else {
        check_exists(pool, session).await?;
        return Err(failed("reading a blob", "the session has no such blob"));
    };
    let end = offset.saturating_add(n_max as u64).min(info.bytes);
    if offset >= end {
        return Ok(Bytes::new());
    }
    let chunk_bytes = CHUNK_BYTES as u64;
    let mut rows = sqlx::query(
        "SELECT data FROM blob_chunks
         WHERE session = (SELECT session FROM sessions WHERE id = ? AND doomed = 0)
           AND blob = ? AND n BETWEEN ? AND ? ORDER BY n",
    )
    .bind(session.to_string())
    .bind(id.to_string())
    .bind(int(offset / chunk_bytes))
    .bind(int((end - 1) / chunk_bytes))
    .fetch(pool);
    // Both fit: they are at most the blob's size, which was in memory once.
    let (n, mut skipped) = ((end - offset) as usize, (offset % chunk_bytes) as usize);
    let mut data = BytesMut::with_capacity(n);
    while let Some(row) = rows.try_next().await.map_err(doing)? {
        let chunk: &[u8] = row.try_get(0).map_err(doing)?;
        let chunk = chunk.get(skipped..).unwrap_or_default();
        data.extend_from_slice(&chunk[..chunk.len().min(n - data.len())]);
        skipped = 0;
    }
    if data.len() != n {
        // The session was deleted between the two statements.
        return Err(Error::NoSession { session });
    }
    Ok(data.freeze())
}

pub(super) async fn catalog(
    pool: &SqlitePool,
    tenant: &TenantId,
    digest: &CatalogDigest,
) -> Result<Option<Bytes>, Error> {
    let doing = failed_while("reading a catalog");
    let row = sqlx::query("SELECT json FROM catalogs WHERE tenant = ? AND digest = ?")
        .bind(tenant.as_str())
        .bind(digest.as_str())
        .fetch_optional(pool)
        .await
        .map_err(doing)?;
    row.map(|row| row.try_get::<Vec<u8>, _>(0).map(Bytes::from)).transpose().map_err(doing)
}

pub(super) async fn done_request(
    pool: &SqlitePool,
    tenant: &TenantId,
    method: &str,
    key: &str,
) -> Result<Option<DoneRequest>, Error> {
    let doing = failed_while("looking up a request");
    let row =
        sqlx::query("SELECT digest, outcome, at FROM requests WHERE tenant = ? AND method = ? AND key = ?")
            .bind(tenant.as_str())
            .bind(method.to_owned())
            .bind(key.to_owned())
            .fetch_optional(pool)
            .await
            .map_err(doing)?;
    let request = |row: SqliteRow| {
        Ok(DoneRequest {
            method: method.to_owned(),
            key: key.to_owned(),
            request_digest: row.try_get(0)?,
            outcome: row.try_get(1)?,
            at: Timestamp(row.try_get(2)?),
        })
    };
    row.map(request).transpose().map_err(doing)
}

pub(super) async fn size(pool: &SqlitePool) -> Result<StoreSize, Error> {
    let doing = failed_while("reading the store's size");
    let row =
        sqlx::query("SELECT n_sessions, n_events, bytes FROM totals").fetch_one(pool).await.map_err(doing)?;
    let size = || {
        Ok(StoreSize {
            n_sessions: unsigned(&row, 0)?,
            n_events: unsigned(&row, 1)?,
            bytes: unsigned(&row, 2)?,
        })
    };
    size().map_err(doing)
}

async fn check_exists(pool: &SqlitePool, session: SessionId) -> Result<(), Error> {
    let row = sqlx::query("SELECT 1 FROM sessions WHERE id = ? AND doomed = 0")
        .bind(session.to_string())
        .fetch_optional(pool)
        .await
        .map_err(failed_while("looking up a session"))?;
    row.map(|_| ()).ok_or(Error::NoSession { session })
}

fn record_of_row(row: &SqliteRow) -> Result<SessionRecord, Error> {
    let doing = failed_while("reading a session's row");
    decode_record(row.try_get("body").map_err(doing)?, &head_of_row(row).map_err(doing)?)
}

fn unsigned(row: &SqliteRow, column: usize) -> Result<u64, sqlx::Error> {
    let value: i64 = row.try_get(column)?;
    u64::try_from(value)
        .map_err(|error| sqlx::Error::ColumnDecode { index: column.to_string(), source: error.into() })
}

fn failed_while(doing: &'static str) -> impl Fn(sqlx::Error) -> Error + Copy {
    move |error| failed(doing, error)
}
