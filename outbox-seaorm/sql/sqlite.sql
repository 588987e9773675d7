PRAGMA journal_mode = WAL;

CREATE TABLE IF NOT EXISTS "outbox_migration" (
    component TEXT NOT NULL,
    version INTEGER NOT NULL,
    applied_at INTEGER NOT NULL,
    PRIMARY KEY (component, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS "outbox_held" (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    target TEXT NOT NULL,
    seq INTEGER,
    reason TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    first_error TEXT,
    last_error TEXT,
    held_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    message_id BLOB NOT NULL CHECK (length(message_id) = 16),
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    occurred_at INTEGER NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS "outbox_held_due" ON "outbox_held" (target, reason, due_at);

CREATE INDEX IF NOT EXISTS "outbox_held_key" ON "outbox_held" (target, ordering_key, seq);

CREATE TABLE IF NOT EXISTS "outbox_lease" (
    target TEXT NOT NULL PRIMARY KEY,
    owner BLOB,
    epoch INTEGER NOT NULL,
    leased_until INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS "inbox" (
    message_id BLOB NOT NULL,
    consumer TEXT NOT NULL,
    processed_at INTEGER NOT NULL,
    PRIMARY KEY (message_id, consumer)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS "inbox_processed" ON "inbox" (processed_at);

CREATE TABLE IF NOT EXISTS "inbox_attempt" (
    message_id BLOB NOT NULL,
    consumer TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    open_starts INTEGER NOT NULL,
    lone_starts INTEGER NOT NULL,
    uncounted INTEGER NOT NULL,
    first_error TEXT,
    last_error TEXT,
    first_failed_at INTEGER,
    last_failed_at INTEGER,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (message_id, consumer)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS "inbox_attempt_changed" ON "inbox_attempt" (changed_at);

INSERT INTO "outbox_migration" (component, version, applied_at) SELECT 'shared', 1, CAST(unixepoch('subsec') * 1000000 AS INTEGER) WHERE NOT EXISTS (SELECT 1 FROM "outbox_migration" WHERE component = 'shared' AND version = 1);

CREATE TABLE IF NOT EXISTS "outbox" (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id BLOB NOT NULL CHECK (length(message_id) = 16),
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    occurred_at INTEGER NOT NULL
) STRICT;

INSERT INTO "outbox_migration" (component, version, applied_at) SELECT 'outbox outbox', 1, CAST(unixepoch('subsec') * 1000000 AS INTEGER) WHERE NOT EXISTS (SELECT 1 FROM "outbox_migration" WHERE component = 'outbox outbox' AND version = 1);

CREATE TABLE IF NOT EXISTS "outbox_archive" (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    target TEXT NOT NULL,
    seq INTEGER,
    stream TEXT NOT NULL,
    stream_seq INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
    message_id BLOB NOT NULL CHECK (length(message_id) = 16),
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    occurred_at INTEGER NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS "outbox_archive_published" ON "outbox_archive" (target, published_at);

INSERT INTO "outbox_migration" (component, version, applied_at) SELECT 'shared', 2, CAST(unixepoch('subsec') * 1000000 AS INTEGER) WHERE NOT EXISTS (SELECT 1 FROM "outbox_migration" WHERE component = 'shared' AND version = 2);
