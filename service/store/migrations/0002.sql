-- Schema 2. Which sessions name a catalog and when it was put last, so that what nothing names can
-- go, and how much a tenant keeps. Catalogs from before count as put now; sessions that are at work
-- name theirs again with every program.

ALTER TABLE catalogs ADD COLUMN put_at INTEGER NOT NULL DEFAULT 0;
UPDATE catalogs SET put_at = unixepoch() * 1000000;
CREATE INDEX catalogs_by_age ON catalogs (put_at);

CREATE TABLE catalog_names (
  tenant TEXT NOT NULL,
  digest TEXT NOT NULL,
  session INTEGER NOT NULL REFERENCES sessions (session),
  PRIMARY KEY (tenant, digest, session)
) WITHOUT ROWID;
CREATE INDEX catalog_names_by_session ON catalog_names (session);

CREATE TABLE catalog_totals (
  tenant TEXT PRIMARY KEY,
  n_catalogs INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO catalog_totals SELECT tenant, count(*), sum(length(json)) FROM catalogs GROUP BY tenant;

CREATE TRIGGER catalog_kept AFTER INSERT ON catalogs BEGIN
  INSERT INTO catalog_totals VALUES (new.tenant, 1, length(new.json))
  ON CONFLICT (tenant) DO UPDATE SET n_catalogs = n_catalogs + 1, bytes = bytes + length(new.json);
END;
CREATE TRIGGER catalog_gone AFTER DELETE ON catalogs BEGIN
  UPDATE catalog_totals SET n_catalogs = n_catalogs - 1, bytes = bytes - length(old.json)
  WHERE tenant = old.tenant;
END;
