//! The ledger's statements where `ON CONFLICT` is known: PostgreSQL and SQLite.

use outbox_core::store::AttemptEnd;
use sea_orm::Statement;
use uuid::Uuid;

use super::{Dialect, portable};
use crate::{ledger::Change, tables::Table};

pub(super) fn open_start(
    dialect: &dyn Dialect,
    table: &Table,
    consumer: &str,
    id: Uuid,
    now: &str,
    lone: bool,
) -> Statement {
    let sql = format!(
        "INSERT INTO {table} AS t (message_id, consumer, attempts, open_starts, lone_starts, uncounted, changed_at) \
         VALUES (?, ?, 0, 1, ?, 0, {now}) \
         ON CONFLICT (message_id, consumer) DO UPDATE SET open_starts = t.open_starts + 1, \
         lone_starts = t.lone_starts + excluded.lone_starts, changed_at = excluded.changed_at"
    );
    portable(
        dialect.backend(),
        &sql,
        vec![id.into(), consumer.into(), i32::from(lone).into()],
    )
}

/// A row that pruning or an operator removed meanwhile comes back with this end only.
pub(super) fn end_start(
    dialect: &dyn Dialect,
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
        "t.uncounted + 1"
    };
    let sql = format!(
        "INSERT INTO {table} AS t (message_id, consumer, attempts, open_starts, lone_starts, uncounted, \
         first_error, last_error, first_failed_at, last_failed_at, changed_at) \
         VALUES (?, ?, ?, 0, 0, ?, ?, ?, {failed_at}, {failed_at}, {now}) \
         ON CONFLICT (message_id, consumer) DO UPDATE SET attempts = t.attempts + excluded.attempts, \
         open_starts = CASE WHEN t.open_starts > ? THEN t.open_starts - ? ELSE 0 END, \
         lone_starts = CASE WHEN t.lone_starts > ? THEN t.lone_starts - ? ELSE 0 END, \
         uncounted = {uncounted}, \
         first_error = COALESCE(t.first_error, excluded.first_error), \
         last_error = COALESCE(excluded.last_error, t.last_error), \
         first_failed_at = COALESCE(t.first_failed_at, excluded.first_failed_at), \
         last_failed_at = COALESCE(excluded.last_failed_at, t.last_failed_at), \
         changed_at = excluded.changed_at"
    );
    let values = vec![
        id.into(),
        consumer.into(),
        change.counted.into(),
        (1 - change.counted).into(),
        change.error.clone().into(),
        change.error.into(),
        change.opened.into(),
        change.opened.into(),
        change.lone.into(),
        change.lone.into(),
    ];
    portable(dialect.backend(), &sql, values)
}
