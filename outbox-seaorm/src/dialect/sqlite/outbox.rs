//! The relay's statements on SQLite.

use outbox_core::store::{HeldChange, HoldMove, OutboxRecord, ReadQuery};
use sea_orm::{Statement, Value};
use uuid::Uuid;

use super::{
    super::{MESSAGE, binds, gaps, padded, tuples},
    statement,
};
use crate::{clock::duration_micros, tables::Table, text::clip};

fn push_message(values: &mut Vec<Value>, row: &OutboxRecord) {
    values.extend([
        row.id.into(),
        row.event_type.as_str().into(),
        i32::from(row.version).into(),
        row.subject.as_str().into(),
        row.key.clone().filter(|key| !key.is_empty()).into(),
        row.headers.as_str().into(),
        row.payload.to_vec().into(),
    ]);
}

pub(super) fn insert(table: &Table, now: &str, rows: &[&OutboxRecord]) -> Statement {
    let row = format!("(?, ?, ?, ?, ?, ?, ?, {now})");
    let sql = format!(
        "INSERT INTO {table} ({MESSAGE}, occurred_at) VALUES {}",
        vec![row; rows.len()].join(", ")
    );
    let mut values = Vec::with_capacity(rows.len() * 7);
    for row in rows {
        push_message(&mut values, row);
    }
    statement(sql, values)
}

pub(super) fn schedule(
    table: &Table,
    target: &str,
    now: &str,
    rows: &[&OutboxRecord],
) -> Statement {
    let row = format!("(?, ?, ?, ?, ?, ?, ?, {now}, ?, 'scheduled', {now} + ?, 0, {now}, {now})");
    let sql = format!(
        "INSERT INTO {table} ({MESSAGE}, occurred_at, target, reason, due_at, attempts, held_at, changed_at) VALUES {}",
        vec![row; rows.len()].join(", ")
    );
    let mut values = Vec::with_capacity(rows.len() * 9);
    for row in rows {
        push_message(&mut values, row);
        values.extend([
            target.into(),
            duration_micros(row.delay.unwrap_or_default()).into(),
        ]);
    }
    statement(sql, values)
}

/// What is not excluded are the gaps between the runs, and all that comes after the last one. The
/// gaps come as one JSON parameter and are looked up one by one, so their number has no limit.
/// The running sum goes over numbers and sizes only; a size is in a row's head.
pub(super) fn read(table: &Table, query: &ReadQuery) -> Statement {
    let (gaps, low) = gaps(query.floor, &query.exclude);
    let columns = MESSAGE.replace(", ", ", o.");
    let sql = format!(
        "SELECT o.seq, o.{columns}, COALESCE(o.occurred_at, 0) FROM (\
           SELECT *, SUM(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM (\
             SELECT * FROM (\
               SELECT t.seq AS seq, length(t.payload) AS size FROM json_each(?) AS gap CROSS JOIN {table} AS t \
               WHERE t.seq > json_extract(gap.value, '$[0]') AND t.seq < json_extract(gap.value, '$[1]')\
             ) UNION ALL SELECT * FROM (\
               SELECT seq, length(payload) AS size FROM {table} WHERE seq > ? ORDER BY seq LIMIT ?\
             ) ORDER BY seq LIMIT ?\
           )\
         ) AS r CROSS JOIN {table} AS o ON o.seq = r.seq \
         WHERE r.total <= ? OR r.total = r.size"
    );
    let limit = i64::from(query.limit);
    let max_bytes = i64::try_from(query.max_bytes).unwrap_or(i64::MAX);
    statement(
        sql,
        vec![
            gaps.unwrap_or_else(|| "[]".to_owned()).into(),
            low.into(),
            limit.into(),
            limit.into(),
            max_bytes.into(),
        ],
    )
}

pub(super) fn delete_pairs(table: &Table, column: &str, pairs: &[(i64, Uuid)]) -> Statement {
    let count = padded(pairs).count();
    let sql = format!(
        "DELETE FROM {table} WHERE {column} IN ({}) AND ({column}, message_id) IN (VALUES {})",
        binds(count),
        tuples(count, 2)
    );
    let mut values: Vec<Value> = padded(pairs).map(|(number, _)| (*number).into()).collect();
    values.extend(padded(pairs).flat_map(|(number, id)| [(*number).into(), (*id).into()]));
    statement(sql, values)
}

pub(super) fn hold(
    held: &Table,
    table: &Table,
    target: &str,
    now: &str,
    moves: &[HoldMove],
) -> Statement {
    let sql = format!(
        "WITH r(a, b, c, d, e, f) AS (VALUES {}) \
         INSERT INTO {held} (seq, {MESSAGE}, occurred_at, target, reason, due_at, attempts, \
         first_error, last_error, held_at, changed_at) \
         SELECT t.seq, t.message_id, t.event_type, t.event_version, t.subject, t.ordering_key, t.headers, t.payload, \
         t.occurred_at, ?, r.c, {now} + r.d, r.e, r.f, r.f, {now}, {now} \
         FROM r CROSS JOIN {table} AS t ON t.seq = r.a AND t.message_id = r.b",
        tuples(moves.len(), 6)
    );
    let mut values: Vec<Value> = Vec::with_capacity(moves.len() * 6 + 1);
    for row in moves {
        values.extend([
            row.seq.into(),
            row.id.into(),
            row.reason.as_str().into(),
            duration_micros(row.due_in).into(),
            i32::try_from(row.attempts).unwrap_or(i32::MAX).into(),
            clip(row.error.as_deref()).into(),
        ]);
    }
    values.push(target.into());
    statement(sql, values)
}

pub(super) fn change(held: &Table, target: &str, now: &str, changes: &[HeldChange]) -> Statement {
    let sql = format!(
        "WITH r(a, b, c, d, e, f) AS (VALUES {}) \
         UPDATE {held} AS t SET reason = r.c, due_at = {now} + r.d, attempts = r.e, \
         first_error = COALESCE(t.first_error, r.f), last_error = COALESCE(r.f, t.last_error), changed_at = {now} \
         FROM r WHERE t.id = r.a AND t.message_id = r.b AND t.target = ?",
        tuples(changes.len(), 6)
    );
    let mut values: Vec<Value> = Vec::with_capacity(changes.len() * 6 + 1);
    for row in changes {
        values.extend([
            row.id.into(),
            row.message_id.into(),
            row.reason.as_str().into(),
            duration_micros(row.due_in).into(),
            i32::try_from(row.attempts).unwrap_or(i32::MAX).into(),
            clip(row.error.as_deref()).into(),
        ]);
    }
    values.push(target.into());
    statement(sql, values)
}
