//! The consumers' statements on SQLite.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbErr, Statement};
use uuid::Uuid;

use super::statement;
use crate::{clock::duration_micros, tables::Table};

/// One by one: there is no round trip to save.
pub(super) async fn record(
    tx: &DatabaseTransaction,
    table: &Table,
    consumer: &str,
    now: &str,
    ids: &[Uuid],
) -> Result<Vec<bool>, DbErr> {
    let sql = format!(
        "INSERT INTO {table} (message_id, consumer, processed_at) VALUES (?, ?, {now}) ON CONFLICT DO NOTHING"
    );
    let mut fresh = Vec::with_capacity(ids.len());
    for id in ids {
        let done = tx
            .execute_raw(statement(sql.as_str(), vec![(*id).into(), consumer.into()]))
            .await?;
        fresh.push(done.rows_affected() == 1);
    }
    Ok(fresh)
}

/// One after the other: there is no round trip to save.
pub(super) async fn record_guarded(
    tx: &DatabaseTransaction,
    guard: &'static str,
    table: &Table,
    consumer: &str,
    now: &str,
    id: Uuid,
) -> Result<bool, DbErr> {
    tx.execute_unprepared(guard).await?;
    let fresh = record(tx, table, consumer, now, &[id]).await?;
    Ok(fresh == [true])
}

pub(super) fn prune(
    table: &Table,
    column: &str,
    now: &str,
    age: Duration,
    limit: u32,
) -> Statement {
    let sql = format!(
        "DELETE FROM {table} WHERE (message_id, consumer) IN (\
           SELECT message_id, consumer FROM {table} WHERE {column} < {now} - ? ORDER BY {column} LIMIT ?)"
    );
    statement(
        sql,
        vec![duration_micros(age).into(), i64::from(limit).into()],
    )
}
