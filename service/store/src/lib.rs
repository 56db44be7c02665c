//! Stores of sessions: [`MemoryStore`] for tests, [`SqliteStore`] as the default. One conformance
//! suite runs against each; what a store owes its callers is said by
//! [`SessionStore`](seance_core::store::SessionStore).
//!
//! # Files
//!
//! For a store at `DIR/seance.db`:
//!
//! | file | what |
//! |---|---|
//! | `seance.db` | the database |
//! | `seance.db-wal`, `seance.db-shm` | SQLite's log and its index; gone after a clean close |
//! | `seance.db.lock` | held while a store is open; names the process that holds it |
//!
//! `DIR` is made for its owner only, and so are the files.
//!
//! # Tables
//!
//! | table | a row is |
//! |---|---|
//! | `meta` | a fact of the database: the schema's version |
//! | `totals` | the one row of sums, and the number of the last commit |
//! | `sessions` | a session's head: what every append moves |
//! | `records` | a session's record, and its labels |
//! | `events` | an event of a session |
//! | `programs` | a program as it was when it last changed |
//! | `blobs`, `blob_chunks` | a blob, and 256 KiB of one |
//! | `sandboxes` | a sandbox: whether it was used, and what of it is committed; kept for ever |
//! | `requests` | a request that was done, by its idempotency key |
//! | `catalogs` | a tenant's catalog |
//! | `catalog_names` | a session that names a catalog |
//! | `catalog_totals` | how many catalogs a tenant keeps, and their bytes |
//!
//! # Catalogs
//!
//! A catalog is kept while a session of its tenant is kept that names it, itself or in a program,
//! and as long after it was put last as closed sessions are kept. A tenant has at most
//! [`TENANT_CATALOGS_MAX`] of them with [`TENANT_CATALOGS_BYTES_MAX`] bytes; over it a new one is
//! refused as full.

mod codec;
#[cfg(test)]
mod conformance;
mod memory;
mod rules;
mod sqlite;

pub use memory::MemoryStore;
pub use rules::{TENANT_CATALOGS_BYTES_MAX, TENANT_CATALOGS_MAX};
pub use sqlite::{OpenError, SqliteConfig, SqliteStore, measure_bare_commit};
