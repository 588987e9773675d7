//! The tables on MySQL and MariaDB. They set their own character set, whatever the server's is.

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr, RuntimeErr, Statement};

use super::{super::Query, statement};
use crate::tables::{Table, Tables};

const OPTIONS: &str =
    "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin";

/// What a table of messages has besides its own columns.
const MESSAGE_COLUMNS: &str = "    message_id BINARY(16) NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    event_version INT NOT NULL,
    subject VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ordering_key VARBINARY(255),
    headers MEDIUMTEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    payload_size INT UNSIGNED GENERATED ALWAYS AS (OCTET_LENGTH(payload)) STORED,
    occurred_at DATETIME(6) NOT NULL";

/// How long to wait for another process's migration.
const LOCK_SECONDS: i64 = 60;

pub(super) fn create_outbox(table: &Table) -> Vec<String> {
    vec![format!(
        "CREATE TABLE IF NOT EXISTS {table} (
    seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
{MESSAGE_COLUMNS}
) {OPTIONS}"
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
    component VARCHAR(64) NOT NULL,
    version INT NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    PRIMARY KEY (component, version)
) {OPTIONS}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {held} (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    target VARCHAR(64) NOT NULL,
    seq BIGINT,
    reason VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    due_at DATETIME(6) NOT NULL,
    attempts INT NOT NULL,
    first_error TEXT,
    last_error TEXT,
    held_at DATETIME(6) NOT NULL,
    changed_at DATETIME(6) NOT NULL,
{MESSAGE_COLUMNS},
    KEY {held_due} (target, reason, due_at),
    KEY {held_key} (target, ordering_key, seq)
) {OPTIONS}",
            held_due = index(held, "due"),
            held_key = index(held, "key"),
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {lease} (
    target VARCHAR(64) NOT NULL PRIMARY KEY,
    owner BINARY(16),
    epoch BIGINT NOT NULL,
    leased_until DATETIME(6) NOT NULL,
    lease_ms BIGINT NOT NULL
) {OPTIONS}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {inbox} (
    message_id BINARY(16) NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    processed_at DATETIME(6) NOT NULL,
    PRIMARY KEY (message_id, consumer),
    KEY {processed} (processed_at)
) {OPTIONS}",
            processed = index(inbox, "processed"),
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {attempt} (
    message_id BINARY(16) NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    attempts INT NOT NULL,
    open_starts INT NOT NULL,
    lone_starts INT NOT NULL,
    uncounted INT NOT NULL,
    first_error TEXT,
    last_error TEXT,
    first_failed_at DATETIME(6),
    last_failed_at DATETIME(6),
    changed_at DATETIME(6) NOT NULL,
    PRIMARY KEY (message_id, consumer),
    KEY {changed} (changed_at)
) {OPTIONS}",
            changed = index(attempt, "changed"),
        ),
    ]
}

pub(super) fn create_archive(tables: &Tables) -> Vec<String> {
    let archive = &tables.archive;
    vec![format!(
        "CREATE TABLE IF NOT EXISTS {archive} (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    target VARCHAR(64) NOT NULL,
    seq BIGINT,
    stream VARCHAR(255) NOT NULL,
    stream_seq BIGINT NOT NULL,
    published_at DATETIME(6) NOT NULL,
{MESSAGE_COLUMNS},
    KEY {published} (target, published_at)
) {OPTIONS}",
        published = index(archive, "published"),
    )]
}

fn index(table: &Table, suffix: &str) -> String {
    format!("`{}_{suffix}`", table.name)
}

pub(super) fn exists(tables: &Tables, table: &Table) -> Statement {
    let sql = "SELECT COUNT(*) FROM information_schema.tables \
               WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";
    statement(
        sql,
        vec![tables.schema.clone().into(), table.name.as_str().into()],
    )
}

/// DDL commits, so the lock has to belong to the connection.
pub(super) async fn lock(connection: &DatabaseTransaction, tables: &Tables) -> Result<(), DbErr> {
    let sql = "SELECT COALESCE(GET_LOCK(LEFT(CONCAT('outbox ', COALESCE(?, DATABASE()), ' ', ?), 64), ?), 0)";
    let values = vec![
        tables.schema.clone().into(),
        tables.migration.name.as_str().into(),
        LOCK_SECONDS.into(),
    ];
    let row = connection.query_one_raw(statement(sql, values)).await?;
    match row.map(|row| row.try_get_by_index::<i64>(0)).transpose()? {
        Some(1) => Ok(()),
        _ => Err(DbErr::Exec(RuntimeErr::Internal(
            "another migration held its lock for a minute".to_owned(),
        ))),
    }
}

pub(super) async fn unlock(connection: &DatabaseTransaction, tables: &Tables) -> Result<(), DbErr> {
    let sql = "SELECT RELEASE_LOCK(LEFT(CONCAT('outbox ', COALESCE(?, DATABASE()), ' ', ?), 64))";
    let values = vec![
        tables.schema.clone().into(),
        tables.migration.name.as_str().into(),
    ];
    connection
        .query_one_raw(statement(sql, values))
        .await
        .map(drop)
}

pub(super) async fn requirements(connection: &dyn Query) -> Result<Result<(), String>, DbErr> {
    let sql = "SELECT CAST(VERSION() AS CHAR), CAST(@@autocommit AS SIGNED), CAST(@@auto_increment_increment AS SIGNED)";
    let Some(row) = connection.row(statement(sql, vec![])).await? else {
        return Ok(Ok(()));
    };
    let version: String = row.try_get_by_index(0)?;
    if !new_enough(&version) {
        return Ok(Err(
            "MySQL 8.0 or MariaDB 10.6, or newer, is needed".to_owned()
        ));
    }
    if row.try_get_by_index::<i64>(1)? != 1 {
        return Ok(Err(
            "connections must begin with autocommit = 1, or nothing would be committed".to_owned(),
        ));
    }
    if row.try_get_by_index::<i64>(2)? != 1 {
        tracing::warn!(
            "auto_increment_increment is not 1, as in a cluster with several writing nodes: the order of keyed events \
             is kept only if all writers use one node"
        );
    }
    Ok(Ok(()))
}

fn new_enough(version: &str) -> bool {
    let mut numbers = version
        .split(|digit: char| !digit.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let version_number: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let least = if version.contains("MariaDB") {
        (10, 6)
    } else {
        (8, 0)
    };
    version_number >= least
}

#[cfg(test)]
mod tests {
    use super::new_enough;

    #[test]
    fn old_servers_are_refused() {
        for version in [
            "10.11.19-MariaDB-0+deb12u1",
            "8.0.36",
            "8.4.0-commercial",
            "11.4.2-MariaDB",
            "9.1.0",
        ] {
            assert!(new_enough(version), "{version}");
        }
        for version in ["10.5.29-MariaDB", "5.7.44-log", "10.3.1-MariaDB", ""] {
            assert!(!new_enough(version), "{version}");
        }
    }
}
