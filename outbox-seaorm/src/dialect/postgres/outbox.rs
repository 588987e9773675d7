//! The relay's statements on PostgreSQL. Arrays of parameters keep their text the same for any
//! number of rows.

use outbox_core::store::{HeldChange, HoldMove, OutboxRecord, ReadQuery, SeqRuns};
use sea_orm::{Statement, Value, sea_query::ArrayType};
use uuid::Uuid;

use super::{super::MESSAGE, array, statement};
use crate::{clock::duration_micros, tables::Table, text::clip};

/// The columns of messages as array parameters, in the order of [`MESSAGE`].
fn message_arrays(rows: &[&OutboxRecord]) -> Vec<Value> {
    vec![
        array(ArrayType::Uuid, rows.iter().map(|row| row.id)),
        array(
            ArrayType::String,
            rows.iter().map(|row| row.event_type.as_str()),
        ),
        array(
            ArrayType::Int,
            rows.iter().map(|row| i32::from(row.version)),
        ),
        array(
            ArrayType::String,
            rows.iter().map(|row| row.subject.as_str()),
        ),
        array(
            ArrayType::String,
            rows.iter()
                .map(|row| row.key.as_deref().unwrap_or_default()),
        ),
        array(
            ArrayType::String,
            rows.iter().map(|row| row.headers.as_str()),
        ),
        array(
            ArrayType::Bytes,
            rows.iter().map(|row| row.payload.to_vec()),
        ),
    ]
}

/// `pg_current_xact_id()` runs before the first number is taken from the sequence, so that whoever
/// has taken a number has a transaction id: the proof of a floor rests on that.
pub(super) fn insert(table: &Table, now: &str, rows: &[&OutboxRecord]) -> Statement {
    if let [row] = rows {
        let sql = format!(
            "INSERT INTO {table} ({MESSAGE}, occurred_at) \
             SELECT $1, $2, $3, $4, $5, $6, $7, {now} FROM pg_current_xact_id()"
        );
        return statement(sql, message(row));
    }
    let sql = format!(
        "INSERT INTO {table} ({MESSAGE}, occurred_at) \
         SELECT r.a, r.b, r.c, r.d, NULLIF(r.e, ''), r.f, r.g, {now} \
         FROM pg_current_xact_id(), \
         unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::bytea[]) \
         WITH ORDINALITY AS r(a, b, c, d, e, f, g, ord) ORDER BY r.ord"
    );
    statement(sql, message_arrays(rows))
}

fn message(row: &OutboxRecord) -> Vec<Value> {
    vec![
        row.id.into(),
        row.event_type.as_str().into(),
        i32::from(row.version).into(),
        row.subject.as_str().into(),
        row.key.clone().filter(|key| !key.is_empty()).into(),
        row.headers.as_str().into(),
        row.payload.to_vec().into(),
    ]
}

pub(super) fn schedule(
    table: &Table,
    target: &str,
    now: &str,
    rows: &[&OutboxRecord],
) -> Statement {
    let sql = format!(
        "INSERT INTO {table} ({MESSAGE}, occurred_at, target, reason, due_at, attempts, held_at, changed_at) \
         SELECT r.a, r.b, r.c, r.d, NULLIF(r.e, ''), r.f, r.g, {now}, $9, 'scheduled', \
         {now} + r.h * INTERVAL '1 microsecond', 0, {now}, {now} \
         FROM unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bigint[]) \
         WITH ORDINALITY AS r(a, b, c, d, e, f, g, h, ord) ORDER BY r.ord"
    );
    let mut values = message_arrays(rows);
    values.push(array(
        ArrayType::BigInt,
        rows.iter()
            .map(|row| duration_micros(row.delay.unwrap_or_default())),
    ));
    values.push(target.into());
    statement(sql, values)
}

/// As many excluded numbers in a row are passed over in the index, and not looked at one by one: what is left
/// of deleted rows stays for as long as a transaction is open that is older.
const PASSED_OVER: i64 = 4_000;

/// The multirange is cast in a subquery of its own, so that it is parsed once and not for each row.
/// Payloads pass through the window as references: those that are not sent are not read. A row
/// whose running sum is its own size is the first one with any bytes.
pub(super) fn read(table: &Table, query: &ReadQuery, occurred_at: &str) -> Statement {
    let (lows, highs) = spans(query);
    // Nearly always there is one.
    let (bounds, rows) = match (lows.as_slice(), highs.as_slice()) {
        ([low], _) => (
            vec![(*low).into()],
            format!(
                "SELECT seq, {MESSAGE}, occurred_at FROM {table} \
                 WHERE seq > $4 AND NOT (seq <@ (SELECT CAST($1 AS int8multirange))) ORDER BY seq LIMIT $2"
            ),
        ),
        _ => (
            vec![
                array(ArrayType::BigInt, lows),
                array(ArrayType::BigInt, highs),
            ],
            format!(
                "SELECT r.* FROM unnest($4::bigint[], $5::bigint[]) AS span(low, high) CROSS JOIN LATERAL (\
                   SELECT seq, {MESSAGE}, occurred_at FROM {table} \
                   WHERE seq > span.low AND seq < span.high AND NOT (seq <@ (SELECT CAST($1 AS int8multirange))) \
                   ORDER BY seq LIMIT $2\
                 ) AS r ORDER BY seq LIMIT $2"
            ),
        ),
    };
    let sql = format!(
        "SELECT seq, {MESSAGE}, {occurred_at} FROM (\
           SELECT r.*, sum(octet_length(payload)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM ({rows}) AS r\
         ) AS r WHERE total <= $3 OR total = octet_length(payload) ORDER BY seq"
    );
    let mut values = vec![
        multirange(&query.exclude).into(),
        i64::from(query.limit).into(),
        i64::try_from(query.max_bytes).unwrap_or(i64::MAX).into(),
    ];
    values.extend(bounds);
    statement(sql, values)
}

/// What lies above the floor and beside long runs of excluded numbers: exclusive bounds.
fn spans(query: &ReadQuery) -> (Vec<i64>, Vec<i64>) {
    let mut low = query.floor;
    let (mut lows, mut highs) = (Vec::new(), Vec::new());
    for &(first, last) in query.exclude.as_slice() {
        if last.saturating_sub(first.max(low)) < PASSED_OVER {
            continue;
        }
        if first > low.saturating_add(1) {
            lows.push(low);
            highs.push(first);
        }
        low = last;
    }
    lows.push(low);
    highs.push(i64::MAX);
    (lows, highs)
}

fn multirange(runs: &SeqRuns) -> String {
    let runs: Vec<_> = runs
        .as_slice()
        .iter()
        .map(|(low, high)| format!("[{low},{high}]"))
        .collect();
    format!("{{{}}}", runs.join(","))
}

pub(super) fn delete_pairs(
    table: &Table,
    column: &str,
    pairs: impl Iterator<Item = (i64, Uuid)>,
) -> Statement {
    let (numbers, ids): (Vec<i64>, Vec<Uuid>) = pairs.unzip();
    let sql = format!(
        "DELETE FROM {table} AS t USING unnest($1::bigint[], $2::uuid[]) AS r(a, b) \
         WHERE t.{column} = r.a AND t.message_id = r.b"
    );
    statement(
        sql,
        vec![
            array(ArrayType::BigInt, numbers),
            array(ArrayType::Uuid, ids),
        ],
    )
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
         t.occurred_at, $7, r.c, {now} + r.d * INTERVAL '1 microsecond', r.e, \
         NULLIF(r.f, ''), NULLIF(r.f, ''), {now}, {now} \
         FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::int[], $6::text[]) AS r(a, b, c, d, e, f) \
         JOIN {table} AS t ON t.seq = r.a AND t.message_id = r.b ORDER BY t.seq"
    );
    let values = vec![
        array(ArrayType::BigInt, moves.iter().map(|row| row.seq)),
        array(ArrayType::Uuid, moves.iter().map(|row| row.id)),
        array(
            ArrayType::String,
            moves.iter().map(|row| row.reason.as_str()),
        ),
        array(
            ArrayType::BigInt,
            moves.iter().map(|row| duration_micros(row.due_in)),
        ),
        array(
            ArrayType::Int,
            moves
                .iter()
                .map(|row| i32::try_from(row.attempts).unwrap_or(i32::MAX)),
        ),
        array(
            ArrayType::String,
            moves
                .iter()
                .map(|row| clip(row.error.as_deref()).unwrap_or_default()),
        ),
        target.into(),
    ];
    statement(sql, values)
}

pub(super) fn change(held: &Table, target: &str, now: &str, changes: &[HeldChange]) -> Statement {
    let sql = format!(
        "UPDATE {held} AS t SET reason = r.c, due_at = {now} + r.d * INTERVAL '1 microsecond', attempts = r.e, \
         first_error = COALESCE(t.first_error, NULLIF(r.f, '')), last_error = COALESCE(NULLIF(r.f, ''), t.last_error), \
         changed_at = {now} \
         FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::int[], $6::text[]) AS r(a, b, c, d, e, f) \
         WHERE t.id = r.a AND t.message_id = r.b AND t.target = $7"
    );
    let values = vec![
        array(ArrayType::BigInt, changes.iter().map(|row| row.id)),
        array(ArrayType::Uuid, changes.iter().map(|row| row.message_id)),
        array(
            ArrayType::String,
            changes.iter().map(|row| row.reason.as_str()),
        ),
        array(
            ArrayType::BigInt,
            changes.iter().map(|row| duration_micros(row.due_in)),
        ),
        array(
            ArrayType::Int,
            changes
                .iter()
                .map(|row| i32::try_from(row.attempts).unwrap_or(i32::MAX)),
        ),
        array(
            ArrayType::String,
            changes
                .iter()
                .map(|row| clip(row.error.as_deref()).unwrap_or_default()),
        ),
        target.into(),
    ];
    statement(sql, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_passed_over() {
        let spans = |floor, exclude: Vec<i64>| {
            spans(&ReadQuery {
                floor,
                exclude: SeqRuns::of(exclude),
                limit: 1,
                max_bytes: 1,
            })
        };
        let run = |first: i64| first..=first + PASSED_OVER;
        let end = i64::MAX;
        assert_eq!(spans(5, vec![]), (vec![5], vec![end]));
        assert_eq!(spans(5, vec![7, 8]), (vec![5], vec![end]), "a short one");
        let two: Vec<_> = run(7).chain([9_000]).chain(run(10_000)).collect();
        let after = vec![5, 7 + PASSED_OVER, 10_000 + PASSED_OVER];
        assert_eq!(spans(5, two.clone()), (after, vec![7, 10_000, end]));
        let at_once = (vec![7 + PASSED_OVER], vec![end]);
        assert_eq!(
            spans(6, run(7).collect()),
            at_once,
            "it begins at the floor"
        );
        assert_eq!(spans(0, run(1).collect()).0, [1 + PASSED_OVER]);
        assert_eq!(
            spans(100_000, two),
            (vec![100_000], vec![end]),
            "below the floor"
        );
        assert_eq!(
            spans(9, run(7).collect()),
            (vec![9], vec![end]),
            "what is left is short"
        );
    }
}
