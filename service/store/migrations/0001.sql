-- Schema 1. A session's integer key keeps its events together and short; its id is what callers know.

CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

-- What every append moves. The record is apart, because it is large and moves seldom.
CREATE TABLE sessions (
  session INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  state INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  closed_at INTEGER,
  bytes INTEGER NOT NULL,
  doomed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX sessions_by_tenant ON sessions (tenant, id);
CREATE INDEX sessions_unfinished ON sessions (id) WHERE closed_at IS NULL;
CREATE INDEX sessions_closed ON sessions (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX sessions_doomed ON sessions (session) WHERE doomed = 1;

CREATE TABLE records (
  session INTEGER PRIMARY KEY REFERENCES sessions (session),
  labels TEXT NOT NULL,
  body BLOB NOT NULL
);

CREATE TABLE events (
  session INTEGER NOT NULL REFERENCES sessions (session),
  seq INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (session, seq)
) WITHOUT ROWID;

CREATE TABLE programs (
  session INTEGER NOT NULL REFERENCES sessions (session),
  number INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (session, number)
);

CREATE TABLE blobs (
  session INTEGER NOT NULL REFERENCES sessions (session),
  id TEXT NOT NULL,
  media_type TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (session, id)
) WITHOUT ROWID;

CREATE TABLE blob_chunks (
  session INTEGER NOT NULL REFERENCES sessions (session),
  blob TEXT NOT NULL,
  n INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (session, blob, n)
);

-- Rows are never deleted: a used sandbox is used for ever.
CREATE TABLE sandboxes (
  id TEXT PRIMARY KEY,
  used INTEGER NOT NULL,
  acknowledged INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE requests (
  tenant TEXT NOT NULL,
  method TEXT NOT NULL,
  key TEXT NOT NULL,
  digest TEXT NOT NULL,
  outcome TEXT NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY (tenant, method, key)
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (at);

CREATE TABLE catalogs (
  tenant TEXT NOT NULL,
  digest TEXT NOT NULL,
  json BLOB NOT NULL,
  PRIMARY KEY (tenant, digest)
);

-- One row. `commits` rises with every transaction of the writer: by it a commit whose outcome is
-- unknown is resolved.
CREATE TABLE totals (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  commits INTEGER NOT NULL,
  n_sessions INTEGER NOT NULL,
  n_events INTEGER NOT NULL,
  bytes INTEGER NOT NULL
);
INSERT INTO totals VALUES (1, 0, 0, 0, 0);
