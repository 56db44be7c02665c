//! The floor: what a durable commit costs here when nothing else is done.

use std::path::Path;
use std::time::{Duration, Instant};

use seance_core::store::Error;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::{SqliteConfig, log};
use crate::codec::failed;

/// How long durable commits of one small row take: a raw database in a new directory inside `dir`,
/// the same library, the same settings. Gives `n` durations in the order in which they were
/// measured, and leaves nothing behind.
///
/// # Errors
/// [`Error::Failed`] when the disk or the database fails.
///
/// Cancellation: when dropped, the new directory may stay.
pub async fn measure_bare_commit(dir: &Path, n: usize) -> Result<Vec<Duration>, Error> {
    let home = dir.join(format!("bare-commit-{}", std::process::id()));
    let measured = measure(&home, n).await.map_err(|error| failed("measuring a bare commit", error));
    let removed = tokio::fs::remove_dir_all(&home).await;
    let commits = measured?;
    removed.map_err(|error| failed("removing the measured database", error))?;
    Ok(commits)
}

async fn measure(home: &Path, n: usize) -> Result<Vec<Duration>, sqlx::Error> {
    tokio::fs::create_dir_all(home).await?;
    let options = SqliteConfig::new(home.join("bare.db")).connect_options().create_if_missing(true);
    let mut connection = options.connect().await?;
    log::make_room(&mut connection).await?;
    sqlx::query("CREATE TABLE rows (n INTEGER PRIMARY KEY, body BLOB)").execute(&mut connection).await?;
    let mut commits = Vec::new();
    for row in 0..n {
        commits.push(commit(&mut connection, row).await?);
    }
    connection.close().await?;
    Ok(commits)
}

async fn commit(connection: &mut SqliteConnection, row: usize) -> Result<Duration, sqlx::Error> {
    let start = Instant::now();
    sqlx::query("INSERT INTO rows (n, body) VALUES (?, ?)")
        .bind(i64::try_from(row).unwrap_or(i64::MAX))
        .bind([7_u8; 100].as_slice())
        .execute(connection)
        .await?;
    Ok(start.elapsed())
}
