//! The schema and its versions.

use std::path::Path;

use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use super::files::{OpenError, database_error};

/// Migration n makes schema n of schema n - 1. They are never edited once released.
const MIGRATIONS: &[&str] =
    &[include_str!("../../migrations/0001.sql"), include_str!("../../migrations/0002.sql")];

/// Brings a database to the newest schema. Each step is one transaction.
pub(super) async fn migrate(path: &Path, connection: &mut SqliteConnection) -> Result<(), OpenError> {
    let found = version(path, connection).await?;
    if found > MIGRATIONS.len() {
        return Err(OpenError::NewerSchema { path: path.to_owned(), found, known: MIGRATIONS.len() });
    }
    for (made, migration) in MIGRATIONS.iter().enumerate().skip(found) {
        let version = made + 1;
        let step = format!(
            "BEGIN IMMEDIATE; {migration};
             INSERT OR REPLACE INTO meta (name, value) VALUES ('schema', '{version}'); COMMIT"
        );
        sqlx::raw_sql(AssertSqlSafe(step))
            .execute(&mut *connection)
            .await
            .map_err(|error| database_error("migrating the database", error))?;
        tracing::info!(version, "the store's schema is at a new version");
    }
    Ok(())
}

/// The schema's version; 0 of an empty database.
async fn version(path: &Path, connection: &mut SqliteConnection) -> Result<usize, OpenError> {
    let not_ours = |message: String| OpenError::NotOurs { path: path.to_owned(), message };
    let failed = |error| database_error("reading the schema", error);
    let tables: i64 = sqlx::query("SELECT count(*) FROM sqlite_schema")
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(failed)?;
    if tables == 0 {
        return Ok(0);
    }
    let marked: i64 = sqlx::query("SELECT count(*) FROM sqlite_schema WHERE name IN ('meta', 'totals')")
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(failed)?;
    if marked != 2 {
        return Err(not_ours("it has other tables".to_owned()));
    }
    let version: Option<String> = sqlx::query("SELECT value FROM meta WHERE name = 'schema'")
        .fetch_optional(&mut *connection)
        .await
        .and_then(|row| row.map(|row| row.try_get(0)).transpose())
        .map_err(failed)?;
    let version = version.ok_or_else(|| not_ours("it has no schema version".to_owned()))?;
    version.parse().map_err(|_| not_ours(format!("its schema version is {version:?}")))
}
