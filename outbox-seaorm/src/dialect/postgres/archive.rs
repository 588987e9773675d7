//! The archive's statements on PostgreSQL: one statement takes rows out of one table and puts them
//! into the other.

use sea_orm::sea_query::ArrayType;
use uuid::Uuid;

use super::{
    super::{MESSAGE, Published, Relocation, Source},
    array, statement,
};
use crate::tables::Table;

pub(super) fn archive(
    archive: &Table,
    source: Source<'_>,
    target: &str,
    now: &str,
    rows: &[Published<'_>],
) -> Relocation {
    let (table, number) = (source.table(), source.number());
    let of_target = if source.is_shared() {
        " AND t.target = $5"
    } else {
        ""
    };
    let columns = MESSAGE.replace(", ", ", t.");
    let sql = format!(
        "WITH gone AS (\
           DELETE FROM {table} AS t USING unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[]) AS r(a, b, c, d) \
           WHERE t.{number} = r.a AND t.message_id = r.b{of_target} \
           RETURNING t.seq, t.{columns}, t.occurred_at, r.c AS stream, r.d AS stream_seq) \
         INSERT INTO {archive} (target, seq, {MESSAGE}, occurred_at, stream, stream_seq, published_at) \
         SELECT $5::text, seq, {MESSAGE}, occurred_at, stream, stream_seq, {now} FROM gone"
    );
    Relocation::Whole(statement(
        sql,
        vec![
            array(ArrayType::BigInt, rows.iter().map(|row| row.number)),
            array(ArrayType::Uuid, rows.iter().map(|row| row.id)),
            array(ArrayType::String, rows.iter().map(|row| row.stream)),
            array(ArrayType::BigInt, rows.iter().map(Published::stream_seq)),
            target.into(),
        ],
    ))
}

/// `pg_current_xact_id()` runs before the first number is taken from the sequence, as with every
/// INSERT into the outbox: the proof of a floor rests on that.
pub(super) fn republish(
    archive: &Table,
    table: &Table,
    target: &str,
    rows: &[(i64, Uuid)],
) -> Relocation {
    let columns = MESSAGE.replace(", ", ", t.");
    let sql = format!(
        "WITH gone AS (\
           DELETE FROM {archive} AS t USING unnest($1::bigint[], $2::uuid[]) AS r(a, b) \
           WHERE t.id = r.a AND t.message_id = r.b AND t.target = $3 \
           RETURNING t.id, t.seq, t.{columns}, t.occurred_at) \
         INSERT INTO {table} ({MESSAGE}, occurred_at) \
         SELECT {MESSAGE}, occurred_at FROM pg_current_xact_id(), gone ORDER BY seq, id"
    );
    Relocation::Whole(statement(
        sql,
        vec![
            array(ArrayType::BigInt, rows.iter().map(|row| row.0)),
            array(ArrayType::Uuid, rows.iter().map(|row| row.1)),
            target.into(),
        ],
    ))
}
