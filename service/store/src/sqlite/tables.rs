//! How the rows of a batch get into their tables, all of them in one statement.
//!
//! The writer's connection has a view of its own with a column for each table's rows. Inserting into it
//! runs a trigger that does the rest: SQLite makes one statement one transaction, and the library gives
//! one answer where it would wake the writer for each of a dozen.
//!
//! Rejected: the statements one after another between BEGIN and COMMIT (each answer is a wake-up across
//! threads, and together they took as long as the commit itself).

use std::fmt::Write;
use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, SqliteConnection};

/// How rows go into a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    /// The view's column with the rows as JSON.
    name: &'static str,
    sql: &'static str,
    /// Before that column is one with the rows' bytes.
    pub(super) has_bytes: bool,
}

/// All tables, in the order in which they are written and their rows are bound.
pub(super) const TABLES: [Table; 12] = [
    Table {
        name: "new_sessions",
        sql: "INSERT INTO sessions (session, id, tenant, state, epoch, last_seq, last_at, bytes)
              SELECT value->>0, value->>1, value->>2, 0, 0, 0, 0, 0 FROM json_each(NEW.new_sessions);",
        has_bytes: false,
    },
    Table {
        name: "events",
        sql: "INSERT INTO events (session, seq, body)
              SELECT value->>0, value->>1, substr(NEW.events_bytes, value->>2, value->>3)
              FROM json_each(NEW.events);",
        has_bytes: true,
    },
    Table {
        name: "heads",
        sql: "UPDATE sessions SET state = h.value->>1, epoch = h.value->>2, last_seq = h.value->>3,
                  last_at = h.value->>4, closed_at = h.value->>5, bytes = bytes + (h.value->>6)
              FROM json_each(NEW.heads) AS h WHERE sessions.session = h.value->>0;",
        has_bytes: false,
    },
    Table {
        name: "records",
        sql: "INSERT OR REPLACE INTO records (session, labels, body)
              SELECT value->>0, value->>1, substr(NEW.records_bytes, value->>2, value->>3)
              FROM json_each(NEW.records);",
        has_bytes: true,
    },
    Table {
        name: "programs",
        sql: "INSERT OR REPLACE INTO programs (session, number, body)
              SELECT value->>0, value->>1, substr(NEW.programs_bytes, value->>2, value->>3)
              FROM json_each(NEW.programs);",
        has_bytes: true,
    },
    // A blob that is there already stays as it is.
    Table {
        name: "blobs",
        sql: "INSERT OR IGNORE INTO blobs (session, id, media_type, bytes)
              SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(NEW.blobs);",
        has_bytes: false,
    },
    Table {
        name: "chunks",
        sql: "INSERT OR IGNORE INTO blob_chunks (session, blob, n, data)
              SELECT value->>0, value->>1, value->>2, substr(NEW.chunks_bytes, value->>3, value->>4)
              FROM json_each(NEW.chunks);",
        has_bytes: true,
    },
    Table {
        name: "sandboxes",
        sql: "INSERT INTO sandboxes (id, used, acknowledged)
              SELECT value->>0, value->>1, value->>2 FROM json_each(NEW.sandboxes) WHERE true
              ON CONFLICT (id) DO UPDATE SET used = max(used, excluded.used),
                  acknowledged = max(acknowledged, excluded.acknowledged);",
        has_bytes: false,
    },
    Table {
        name: "requests",
        sql: "INSERT INTO requests (tenant, method, key, digest, outcome, at)
              SELECT r.value->>0, r.value->>1, r.value->>2, r.value->>3, r.value->>4, r.value->>5
              FROM json_each(NEW.requests) AS r;",
        has_bytes: false,
    },
    Table {
        name: "catalogs",
        sql: "INSERT INTO catalogs (tenant, digest, json, put_at)
              SELECT c.value->>0, c.value->>1, substr(NEW.catalogs_bytes, c.value->>2, c.value->>3), c.value->>4
              FROM json_each(NEW.catalogs) AS c;",
        has_bytes: true,
    },
    Table {
        name: "catalogs_again",
        sql: "UPDATE catalogs SET put_at = c.value->>2 FROM json_each(NEW.catalogs_again) AS c
              WHERE catalogs.tenant = c.value->>0 AND catalogs.digest = c.value->>1;",
        has_bytes: false,
    },
    Table {
        name: "catalog_names",
        sql: "INSERT OR IGNORE INTO catalog_names (tenant, digest, session)
              SELECT c.value->>0, c.value->>1, c.value->>2 FROM json_each(NEW.catalog_names) AS c;",
        has_bytes: false,
    },
];

const TOTALS: &str = "UPDATE totals SET commits = NEW.commits, n_sessions = NEW.n_sessions,
    n_events = NEW.n_events, bytes = NEW.bytes;";
const TOTALS_COLUMNS: [&str; 4] = ["commits", "n_sessions", "n_events", "bytes"];

/// Makes the view and its trigger, which are the connection's own and no part of the database.
pub(super) async fn set_up(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    // Every text that goes in is a constant of this file.
    sqlx::raw_sql(AssertSqlSafe(setup())).execute(connection).await?;
    Ok(())
}

fn setup() -> String {
    let columns: Vec<String> = columns().map(|column| format!("NULL AS {column}")).collect();
    let mut sql =
        format!("PRAGMA temp_store = MEMORY; CREATE TEMP VIEW batch AS SELECT {};", columns.join(", "));
    sql.push_str("CREATE TEMP TRIGGER write_batch INSTEAD OF INSERT ON batch BEGIN ");
    for table in TABLES {
        sql.push_str(table.sql);
    }
    let _ = write!(sql, "{TOTALS} END;");
    sql
}

/// Writes a batch: for each table its rows' bytes, where it has some, and its rows; then the totals.
pub(super) fn insert() -> &'static str {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let places: Vec<&str> = columns().map(|_| "?").collect();
        format!("INSERT INTO batch VALUES ({})", places.join(", "))
    });
    &SQL
}

fn columns() -> impl Iterator<Item = String> {
    let of_table = |table: Table| {
        let bytes = table.has_bytes.then(|| format!("{}_bytes", table.name));
        bytes.into_iter().chain([table.name.to_owned()])
    };
    TABLES.into_iter().flat_map(of_table).chain(TOTALS_COLUMNS.map(str::to_owned))
}
