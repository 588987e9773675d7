CREATE TABLE IF NOT EXISTS "outbox_migration" (
    component TEXT COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    applied_at TIMESTAMPTZ(6) NOT NULL,
    PRIMARY KEY (component, version)
);

CREATE TABLE IF NOT EXISTS "outbox_held" (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target TEXT COLLATE "C" NOT NULL,
    seq BIGINT,
    reason TEXT COLLATE "C" NOT NULL,
    due_at TIMESTAMPTZ(6) NOT NULL,
    attempts INTEGER NOT NULL,
    first_error TEXT,
    last_error TEXT,
    held_at TIMESTAMPTZ(6) NOT NULL,
    changed_at TIMESTAMPTZ(6) NOT NULL,
    message_id UUID NOT NULL,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT COLLATE "C",
    headers TEXT NOT NULL,
    payload BYTEA NOT NULL,
    occurred_at TIMESTAMPTZ(6) NOT NULL
);

CREATE INDEX IF NOT EXISTS "outbox_held_due" ON "outbox_held" (target, reason, due_at);

CREATE INDEX IF NOT EXISTS "outbox_held_key" ON "outbox_held" (target, ordering_key, seq);

CREATE TABLE IF NOT EXISTS "outbox_lease" (
    target TEXT COLLATE "C" PRIMARY KEY,
    owner UUID,
    epoch BIGINT NOT NULL,
    leased_until TIMESTAMPTZ(6) NOT NULL,
    lease_ms BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS "inbox" (
    message_id UUID NOT NULL,
    consumer TEXT COLLATE "C" NOT NULL,
    processed_at TIMESTAMPTZ(6) NOT NULL,
    PRIMARY KEY (message_id, consumer)
);

CREATE INDEX IF NOT EXISTS "inbox_processed" ON "inbox" (processed_at);

CREATE TABLE IF NOT EXISTS "inbox_attempt" (
    message_id UUID NOT NULL,
    consumer TEXT COLLATE "C" NOT NULL,
    attempts INTEGER NOT NULL,
    open_starts INTEGER NOT NULL,
    lone_starts INTEGER NOT NULL,
    uncounted INTEGER NOT NULL,
    first_error TEXT,
    last_error TEXT,
    first_failed_at TIMESTAMPTZ(6),
    last_failed_at TIMESTAMPTZ(6),
    changed_at TIMESTAMPTZ(6) NOT NULL,
    PRIMARY KEY (message_id, consumer)
);

CREATE INDEX IF NOT EXISTS "inbox_attempt_changed" ON "inbox_attempt" (changed_at);

INSERT INTO "outbox_migration" (component, version, applied_at) SELECT 'shared', 1, clock_timestamp() WHERE NOT EXISTS (SELECT 1 FROM "outbox_migration" WHERE component = 'shared' AND version = 1);

CREATE TABLE IF NOT EXISTS "outbox" (
    seq BIGINT GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    message_id UUID NOT NULL,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT COLLATE "C",
    headers TEXT NOT NULL,
    payload BYTEA NOT NULL,
    occurred_at TIMESTAMPTZ(6) NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_delay = 0
);

INSERT INTO "outbox_migration" (component, version, applied_at) SELECT 'outbox outbox', 1, clock_timestamp() WHERE NOT EXISTS (SELECT 1 FROM "outbox_migration" WHERE component = 'outbox outbox' AND version = 1);

CREATE TABLE IF NOT EXISTS "outbox_archive" (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target TEXT COLLATE "C" NOT NULL,
    seq BIGINT,
    stream TEXT COLLATE "C" NOT NULL,
    stream_seq BIGINT NOT NULL,
    published_at TIMESTAMPTZ(6) NOT NULL,
    message_id UUID NOT NULL,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT COLLATE "C",
    headers TEXT NOT NULL,
    payload BYTEA NOT NULL,
    occurred_at TIMESTAMPTZ(6) NOT NULL
);

CREATE INDEX IF NOT EXISTS "outbox_archive_published" ON "outbox_archive" (target, published_at);

INSERT INTO "outbox_migration" (component, version, applied_at) SELECT 'shared', 2, clock_timestamp() WHERE NOT EXISTS (SELECT 1 FROM "outbox_migration" WHERE component = 'shared' AND version = 2);
