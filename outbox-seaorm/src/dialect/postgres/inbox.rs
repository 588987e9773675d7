//! The consumers' statements on PostgreSQL.

use std::{collections::HashSet, time::Duration};

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr, Statement, sea_query::ArrayType};
use uuid::Uuid;

use super::{array, statement};
use crate::{clock::duration_micros, tables::Table};

/// A concurrent transaction with the same id is waited for; at READ COMMITTED the conflict is then
/// seen, above it there is a serialisation failure.
pub(super) async fn record(
    tx: &DatabaseTransaction,
    table: &Table,
    consumer: &str,
    now: &str,
    ids: &[Uuid],
) -> Result<Vec<bool>, DbErr> {
    if let [id] = ids {
        let sql = format!(
            "INSERT INTO {table} (message_id, consumer, processed_at) VALUES ($1, $2, {now}) ON CONFLICT DO NOTHING"
        );
        let done = tx
            .execute_raw(statement(sql, vec![(*id).into(), consumer.into()]))
            .await?;
        return Ok(vec![done.rows_affected() == 1]);
    }
    let sql = format!(
        "INSERT INTO {table} (message_id, consumer, processed_at) \
         SELECT r.id, $2, {now} FROM unnest($1::uuid[]) WITH ORDINALITY AS r(id, ord) ORDER BY r.ord \
         ON CONFLICT DO NOTHING RETURNING message_id"
    );
    let values = vec![array(ArrayType::Uuid, ids.iter().copied()), consumer.into()];
    let mut fresh = HashSet::with_capacity(ids.len());
    for row in tx.query_all_raw(statement(sql, values)).await? {
        fresh.insert(row.try_get_by_index::<Uuid>(0)?);
    }
    Ok(ids.iter().map(|id| fresh.contains(id)).collect())
}

/// Statements without parameters can go together.
pub(super) async fn record_guarded(
    tx: &DatabaseTransaction,
    guard: &'static str,
    table: &Table,
    consumer: &str,
    now: &str,
    id: Uuid,
) -> Result<bool, DbErr> {
    // In this form a backslash is special whatever `standard_conforming_strings` says.
    let consumer = consumer.replace('\\', r"\\").replace('\'', "''");
    let done = tx
        .execute_unprepared(&format!(
            "{guard}; INSERT INTO {table} (message_id, consumer, processed_at) \
             VALUES ('{id}', E'{consumer}', {now}) ON CONFLICT DO NOTHING"
        ))
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Several processes prune side by side, so rows that another one has in hand are skipped.
pub(super) fn prune(
    table: &Table,
    column: &str,
    now: &str,
    age: Duration,
    limit: u32,
) -> Statement {
    let sql = format!(
        "DELETE FROM {table} WHERE ctid = ANY(ARRAY(\
           SELECT ctid FROM {table} WHERE {column} < {now} - $1 * INTERVAL '1 microsecond' \
           ORDER BY {column} LIMIT $2 FOR UPDATE SKIP LOCKED))"
    );
    statement(
        sql,
        vec![duration_micros(age).into(), i64::from(limit).into()],
    )
}
