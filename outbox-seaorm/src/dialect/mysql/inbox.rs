//! The consumers' statements on MySQL and MariaDB.

use std::time::Duration;

use outbox_core::store::AttemptEnd;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr, Statement, Value};
use uuid::Uuid;

use super::{super::padded, statement};
use crate::{clock::duration_micros, error::is_duplicate, ledger::Change, tables::Table};

/// Plain INSERTs, and duplicates by the error's code: `INSERT IGNORE` would hide other errors, and
/// `ON DUPLICATE KEY UPDATE` counts a duplicate as inserted. A failed INSERT leaves the
/// transaction as it was, so several ids are tried together first.
pub(super) async fn record(
    tx: &DatabaseTransaction,
    table: &Table,
    consumer: &str,
    now: &str,
    ids: &[Uuid],
) -> Result<Vec<bool>, DbErr> {
    let insert = |ids: &[Uuid]| {
        let rows = vec![format!("(?, ?, {now})"); ids.len()].join(", ");
        let sql = format!("INSERT INTO {table} (message_id, consumer, processed_at) VALUES {rows}");
        statement(
            sql,
            ids.iter()
                .flat_map(|id| [(*id).into(), consumer.into()])
                .collect(),
        )
    };
    if fresh(tx.execute_raw(insert(ids)).await)? {
        return Ok(vec![true; ids.len()]);
    }
    if ids.len() == 1 {
        return Ok(vec![false]);
    }
    let mut each = Vec::with_capacity(ids.len());
    for id in ids {
        each.push(fresh(tx.execute_raw(insert(&[*id])).await)?);
    }
    Ok(each)
}

fn fresh<T>(inserted: Result<T, DbErr>) -> Result<bool, DbErr> {
    match inserted {
        Ok(_) => Ok(true),
        Err(error) if is_duplicate(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Statements without parameters can go together. The consumer goes as hexadecimal digits: what a
/// backslash is in a string depends on `sql_mode`.
pub(super) async fn record_guarded(
    tx: &DatabaseTransaction,
    guard: &'static str,
    table: &Table,
    consumer: &str,
    now: &str,
    id: Uuid,
) -> Result<bool, DbErr> {
    let mut digits = String::with_capacity(2 * consumer.len());
    for byte in consumer.bytes() {
        digits.push_str(&format!("{byte:02x}"));
    }
    let id = id.simple();
    let sql = format!(
        "{guard}; INSERT INTO {table} (message_id, consumer, processed_at) \
         VALUES (x'{id}', _utf8mb4 x'{digits}', {now})"
    );
    fresh(tx.execute_unprepared(&sql).await)
}

pub(super) fn open_start(
    table: &Table,
    consumer: &str,
    id: Uuid,
    now: &str,
    lone: bool,
) -> Statement {
    let sql = format!(
        "INSERT INTO {table} (message_id, consumer, attempts, open_starts, lone_starts, uncounted, changed_at) \
         VALUES (?, ?, 0, 1, ?, 0, {now}) \
         ON DUPLICATE KEY UPDATE open_starts = open_starts + 1, lone_starts = lone_starts + ?, changed_at = {now}"
    );
    let lone = i32::from(lone);
    statement(
        sql,
        vec![id.into(), consumer.into(), lone.into(), lone.into()],
    )
}

/// A row that pruning or an operator removed meanwhile comes back with this end only.
pub(super) fn end_start(
    table: &Table,
    consumer: &str,
    id: Uuid,
    now: &str,
    end: &AttemptEnd,
) -> Statement {
    let change = Change::of(end);
    let failed_at = if change.error.is_some() { now } else { "NULL" };
    let uncounted = if change.counted == 1 {
        "0"
    } else {
        "uncounted + 1"
    };
    let sql = format!(
        "INSERT INTO {table} (message_id, consumer, attempts, open_starts, lone_starts, uncounted, \
         first_error, last_error, first_failed_at, last_failed_at, changed_at) \
         VALUES (?, ?, ?, 0, 0, ?, ?, ?, {failed_at}, {failed_at}, {now}) \
         ON DUPLICATE KEY UPDATE attempts = attempts + ?, \
         open_starts = CASE WHEN open_starts > ? THEN open_starts - ? ELSE 0 END, \
         lone_starts = CASE WHEN lone_starts > ? THEN lone_starts - ? ELSE 0 END, \
         uncounted = {uncounted}, \
         first_error = COALESCE(first_error, ?), last_error = COALESCE(?, last_error), \
         first_failed_at = COALESCE(first_failed_at, {failed_at}), \
         last_failed_at = COALESCE({failed_at}, last_failed_at), changed_at = {now}"
    );
    let error: Value = change.error.into();
    let values = vec![
        id.into(),
        consumer.into(),
        change.counted.into(),
        (1 - change.counted).into(),
        error.clone(),
        error.clone(),
        change.counted.into(),
        change.opened.into(),
        change.opened.into(),
        change.lone.into(),
        change.lone.into(),
        error.clone(),
        error,
    ];
    statement(sql, values)
}

/// A look without locks. A DELETE by time locks one row more than it deletes, the first one that is to
/// stay, and waits for the handler that has just written it.
pub(super) fn find_old(
    table: &Table,
    column: &str,
    now: &str,
    age: Duration,
    limit: u32,
) -> Statement {
    let sql = format!(
        "SELECT message_id, consumer FROM {table} WHERE {column} < {now} - INTERVAL ? MICROSECOND \
         ORDER BY {column} LIMIT ?"
    );
    statement(
        sql,
        vec![duration_micros(age).into(), i64::from(limit).into()],
    )
}

/// Point by point through the primary key. The time is asked for again: since they were found, a row may
/// have been pruned by another process and written anew.
pub(super) fn prune(
    table: &Table,
    column: &str,
    now: &str,
    age: Duration,
    found: &[(Uuid, String)],
) -> Statement {
    let rows = vec!["(t.message_id = ? AND t.consumer = ?)"; padded(found).count()].join(" OR ");
    let sql = format!(
        "DELETE t FROM {table} AS t FORCE INDEX (PRIMARY) WHERE ({rows}) AND t.{column} < {now} - INTERVAL ? MICROSECOND"
    );
    let mut values: Vec<Value> = padded(found)
        .flat_map(|(id, consumer)| [(*id).into(), consumer.as_str().into()])
        .collect();
    values.push(duration_micros(age).into());
    statement(sql, values)
}
