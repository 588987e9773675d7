//! The relay's statements on MySQL and MariaDB.

use outbox_core::store::{HeldChange, HoldMove, OutboxRecord, ReadQuery};
use sea_orm::{Statement, Value};
use uuid::Uuid;

use super::{
    super::{MESSAGE, gaps, padded, tuples},
    statement,
};
use crate::{clock::duration_micros, tables::Table, text::clip};

fn push_message(values: &mut Vec<Value>, row: &OutboxRecord) {
    values.extend([
        row.id.into(),
        row.event_type.as_str().into(),
        i32::from(row.version).into(),
        row.subject.as_str().into(),
        row.key
            .as_deref()
            .filter(|key| !key.is_empty())
            .map(|key| key.as_bytes().to_vec())
            .into(),
        row.headers.as_str().into(),
        row.payload.to_vec().into(),
    ]);
}

/// A multi-row INSERT of known length takes consecutive numbers in the order of its rows.
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
    let row = format!(
        "(?, ?, ?, ?, ?, ?, ?, {now}, ?, 'scheduled', {now} + INTERVAL ? MICROSECOND, 0, {now}, {now})"
    );
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
/// gaps come as one JSON parameter and are looked up one by one: a condition for each run would cost
/// the square of their number (MariaDB 10.11: 1.6 s for 2,000 runs, 50 ms this way).
///
/// The running sum goes over numbers and sizes only; payloads are looked up by number
/// afterwards, and not sorted.
pub(super) fn read(table: &Table, query: &ReadQuery, occurred_at: &str) -> Statement {
    let (gaps, low) = gaps(query.floor, &query.exclude);
    let mut values: Vec<Value> = Vec::new();
    let mut source = format!(
        "SELECT seq, payload_size FROM {table} FORCE INDEX (PRIMARY) WHERE seq > ? ORDER BY seq LIMIT ?"
    );
    let limit = Value::from(i64::from(query.limit));
    if let Some(gaps) = gaps {
        source = format!(
            "(SELECT t.seq, t.payload_size \
             FROM JSON_TABLE(?, '$[*]' COLUMNS (low BIGINT PATH '$[0]', high BIGINT PATH '$[1]')) AS g \
             STRAIGHT_JOIN {table} AS t FORCE INDEX (PRIMARY) ON t.seq > g.low AND t.seq < g.high) \
             UNION ALL ({source}) ORDER BY seq LIMIT ?"
        );
        values.push(gaps.into());
    }
    values.extend([low.into(), limit.clone()]);
    if values.len() == 3 {
        values.push(limit);
    }
    let columns = MESSAGE.replace(", ", ", o.");
    let sql = format!(
        "SELECT o.seq, o.{columns}, {occurred_at} FROM (\
           SELECT s.*, SUM(payload_size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM ({source}) AS s\
         ) AS r STRAIGHT_JOIN {table} AS o ON o.seq = r.seq \
         WHERE r.total <= ? OR r.total = r.payload_size"
    );
    values.push(i64::try_from(query.max_bytes).unwrap_or(i64::MAX).into());
    statement(sql, values)
}

/// Point by point through the primary key: a scan would wait for rows that others are inserting.
/// The form with a join's syntax is the one in which an index can be forced.
pub(super) fn delete_pairs(table: &Table, column: &str, pairs: &[(i64, Uuid)]) -> Statement {
    let count = padded(pairs).count();
    let sql = format!(
        "DELETE t FROM {table} AS t FORCE INDEX (PRIMARY) WHERE t.{column} IN ({}) AND (t.{column}, t.message_id) IN ({})",
        super::super::binds(count),
        tuples(count, 2)
    );
    let mut values: Vec<Value> = padded(pairs).map(|(number, _)| (*number).into()).collect();
    values.extend(padded(pairs).flat_map(|(number, id)| [(*number).into(), (*id).into()]));
    statement(sql, values)
}

/// The rows of a change as a derived table: `VALUES` differs between MySQL and MariaDB. The casts
/// are for MySQL, which decides a parameter's type before it sees the value.
fn rows(count: usize) -> String {
    let row = "SELECT CAST(? AS SIGNED) AS a, CAST(? AS BINARY(16)) AS b, CAST(? AS CHAR(16)) AS c, \
               CAST(? AS SIGNED) AS d, CAST(? AS SIGNED) AS e, CAST(? AS CHAR) AS f";
    format!("({})", vec![row; count].join(" UNION ALL "))
}

pub(super) fn hold(
    held: &Table,
    table: &Table,
    target: &str,
    now: &str,
    moves: &[HoldMove],
) -> Statement {
    let sql = format!(
        "INSERT INTO {held} (seq, {MESSAGE}, occurred_at, target, reason, due_at, attempts, \
         first_error, last_error, held_at, changed_at) \
         SELECT t.seq, t.message_id, t.event_type, t.event_version, t.subject, t.ordering_key, t.headers, t.payload, \
         t.occurred_at, ?, r.c, {now} + INTERVAL r.d MICROSECOND, r.e, r.f, r.f, {now}, {now} \
         FROM {} AS r STRAIGHT_JOIN {table} AS t ON t.seq = r.a AND t.message_id = r.b",
        rows(moves.len())
    );
    let mut values: Vec<Value> = vec![target.into()];
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
    statement(sql, values)
}

pub(super) fn change(held: &Table, target: &str, now: &str, changes: &[HeldChange]) -> Statement {
    let sql = format!(
        "UPDATE {} AS r STRAIGHT_JOIN {held} AS t ON t.id = r.a AND t.message_id = r.b \
         SET t.reason = r.c, t.due_at = {now} + INTERVAL r.d MICROSECOND, t.attempts = r.e, \
         t.first_error = COALESCE(t.first_error, r.f), t.last_error = COALESCE(r.f, t.last_error), \
         t.changed_at = {now} WHERE t.target = ?",
        rows(changes.len())
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
