//! The tables on SQLite. They are strict, so a row edited by hand keeps its columns' types.

use sea_orm::{DbErr, Statement};

use super::{super::Query, statement};
use crate::tables::{Table, Tables};

/// What a table of messages has besides its own columns.
const MESSAGE_COLUMNS: &str = "    message_id BLOB NOT NULL CHECK (length(message_id) = 16),
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL,
    subject TEXT NOT NULL,
    ordering_key TEXT,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    occurred_at INTEGER NOT NULL";

/// AUTOINCREMENT: without it the number of a deleted last row would be given again.
pub(super) fn create_outbox(table: &Table) -> Vec<String> {
    vec![format!(
        "CREATE TABLE IF NOT EXISTS {table} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
{MESSAGE_COLUMNS}
) STRICT"
    )]
}

pub(super) fn create_shared(tables: &Tables) -> Vec<String> {
    let Tables {
        held,
        lease,
        inbox,
        attempt,
        migration,
        ..
    } = tables;
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {migration} (
    component TEXT NOT NULL,
    version INTEGER NOT NULL,
    applied_at INTEGER NOT NULL,
    PRIMARY KEY (component, version)
) STRICT, WITHOUT ROWID"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {held} (
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
{MESSAGE_COLUMNS}
) STRICT"
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
            "CREATE TABLE IF NOT EXISTS {lease} (
    target TEXT NOT NULL PRIMARY KEY,
    owner BLOB,
    epoch INTEGER NOT NULL,
    leased_until INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL
) STRICT"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {inbox} (
    message_id BLOB NOT NULL,
    consumer TEXT NOT NULL,
    processed_at INTEGER NOT NULL,
    PRIMARY KEY (message_id, consumer)
) STRICT, WITHOUT ROWID"
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_processed" ON {inbox} (processed_at)"#,
            inbox.name
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {attempt} (
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
) STRICT, WITHOUT ROWID"
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_changed" ON {attempt} (changed_at)"#,
            attempt.name
        ),
    ]
}

pub(super) fn create_archive(tables: &Tables) -> Vec<String> {
    let archive = &tables.archive;
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {archive} (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    target TEXT NOT NULL,
    seq INTEGER,
    stream TEXT NOT NULL,
    stream_seq INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
{MESSAGE_COLUMNS}
) STRICT"
        ),
        format!(
            r#"CREATE INDEX IF NOT EXISTS "{}_published" ON {archive} (target, published_at)"#,
            archive.name
        ),
    ]
}

pub(super) fn exists(table: &Table) -> Statement {
    let sql = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE";
    statement(sql, vec![table.name.as_str().into()])
}

pub(super) async fn requirements(connection: &dyn Query) -> Result<Result<(), String>, DbErr> {
    let Some(row) = connection
        .row(statement("SELECT sqlite_version()", vec![]))
        .await?
    else {
        return Ok(Ok(()));
    };
    let version: String = row.try_get_by_index(0)?;
    let mut numbers = version
        .split('.')
        .map(|number| number.parse().unwrap_or(0_u32));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (3, 42) {
        return Ok(Err("SQLite 3.42 or newer is needed".to_owned()));
    }
    Ok(Ok(()))
}
