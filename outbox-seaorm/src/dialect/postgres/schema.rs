//! The tables on PostgreSQL.

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr, Statement};

use super::{super::Query, statement};
use crate::tables::{Table, Tables, quote};

/// The least version that knows multiranges.
const MIN_VERSION: i32 = 140_000;

/// What a table of messages has besides its own columns.
const MESSAGE_COLUMNS: &str = r#"    message_id UUID NOT NULL,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT COLLATE "C",
    headers TEXT NOT NULL,
    payload BYTEA NOT NULL,
    occurred_at TIMESTAMPTZ(6) NOT NULL"#;

/// A queue's dead rows must go soon, whatever its size: vacuum after 10,000 of them, at full speed.
pub(super) fn create_outbox(table: &Table) -> Vec<String> {
    vec![format!(
        "CREATE TABLE IF NOT EXISTS {table} (
    seq BIGINT GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
{MESSAGE_COLUMNS}
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_delay = 0
)"
    )]
}

/// The inbox is pruned through a B-tree of 22 bytes a row, which costs an INSERT about 5 µs
/// (PostgreSQL 15). BRIN would be smaller, but its ranges do not narrow when rows go, and once space
/// is used again each of them reaches back to the beginning.
pub(super) fn create_shared(tables: &Tables) -> Vec<String> {
    let Tables {
        held,
        lease,
        inbox,
        attempt,
        migration,
        ..
    } = tables;
    let mut statements = Vec::new();
    if let Some(schema) = &tables.schema {
        // CREATE SCHEMA IF NOT EXISTS asks for the right to create even where it exists.
        let quoted = quote(sea_orm::DbBackend::Postgres, schema);
        statements.push(format!(
            "DO $$ BEGIN IF to_regnamespace('{quoted}') IS NULL THEN CREATE SCHEMA {quoted}; END IF; END $$"
        ));
    }
    statements.extend([
        format!(
            r#"CREATE TABLE IF NOT EXISTS {migration} (
    component TEXT COLLATE "C" NOT NULL,
    version INTEGER NOT NULL,
    applied_at TIMESTAMPTZ(6) NOT NULL,
    PRIMARY KEY (component, version)
)"#
        ),
        format!(
            r#"CREATE TABLE IF NOT EXISTS {held} (
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
{MESSAGE_COLUMNS}
)"#
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_due" ON {held} (target, reason, due_at)"#,
            held.name
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_key" ON {held} (target, ordering_key, seq)"#,
            held.name
        ),
        format!(
            r#"CREATE TABLE IF NOT EXISTS {lease} (
    target TEXT COLLATE "C" PRIMARY KEY,
    owner UUID,
    epoch BIGINT NOT NULL,
    leased_until TIMESTAMPTZ(6) NOT NULL,
    lease_ms BIGINT NOT NULL
)"#
        ),
        format!(
            r#"CREATE TABLE IF NOT EXISTS {inbox} (
    message_id UUID NOT NULL,
    consumer TEXT COLLATE "C" NOT NULL,
    processed_at TIMESTAMPTZ(6) NOT NULL,
    PRIMARY KEY (message_id, consumer)
)"#
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_processed" ON {inbox} (processed_at)"#,
            inbox.name
        ),
        format!(
            r#"CREATE TABLE IF NOT EXISTS {attempt} (
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
)"#
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_changed" ON {attempt} (changed_at)"#,
            attempt.name
        ),
    ]);
    statements
}

/// Rows come in about the order of their times and go in it, so the index stays small and its pages
/// are used up whole.
pub(super) fn create_archive(tables: &Tables) -> Vec<String> {
    let archive = &tables.archive;
    vec![
        format!(
            r#"CREATE TABLE IF NOT EXISTS {archive} (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target TEXT COLLATE "C" NOT NULL,
    seq BIGINT,
    stream TEXT COLLATE "C" NOT NULL,
    stream_seq BIGINT NOT NULL,
    published_at TIMESTAMPTZ(6) NOT NULL,
{MESSAGE_COLUMNS}
)"#
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_published" ON {archive} (target, published_at)"#,
            archive.name
        ),
    ]
}

pub(super) fn exists(table: &Table) -> Statement {
    let sql = "SELECT CASE WHEN to_regclass($1) IS NULL THEN 0 ELSE 1 END";
    statement(sql, vec![table.to_string().into()])
}

/// The lock is given back by the end of the transaction, so it works behind a pooler.
pub(super) async fn lock(connection: &DatabaseTransaction, tables: &Tables) -> Result<(), DbErr> {
    let sql = "SELECT 1 FROM (SELECT pg_advisory_xact_lock(hashtextextended($1, 0))) AS locked";
    let name = format!("outbox migration {}", tables.migration);
    connection
        .query_one_raw(statement(sql, vec![name.into()]))
        .await
        .map(drop)
}

pub(super) async fn requirements(
    connection: &dyn Query,
    tables: &Tables,
) -> Result<Result<(), String>, DbErr> {
    let version = "SELECT current_setting('server_version_num')::int";
    let version = connection.row(statement(version, vec![])).await?;
    if version
        .map(|row| row.try_get_by_index::<i32>(0))
        .transpose()?
        .is_some_and(|version| version < MIN_VERSION)
    {
        return Ok(Err("PostgreSQL 14 or newer is needed".to_owned()));
    }
    for (_, table) in tables.outboxes() {
        let sql = "SELECT CASE WHEN seqincrement = 1 AND seqcache = 1 AND NOT seqcycle THEN 1 ELSE 0 END \
                   FROM pg_sequence WHERE seqrelid = to_regclass(pg_get_serial_sequence($1, 'seq'))";
        let row = connection
            .row(statement(sql, vec![table.to_string().into()]))
            .await?;
        let fits = row.map(|row| row.try_get_by_index::<i32>(0)).transpose()?;
        if fits != Some(1) {
            return Ok(Err(format!(
                "the sequence of {table}.seq must have INCREMENT 1, CACHE 1 and NO CYCLE: the order of events rests on it"
            )));
        }
    }
    Ok(Ok(()))
}
