//! Moving rows between the outbox and the held table, and changing held ones.

use outbox_core::{
    error::{StoreError, StoreErrorKind},
    store::{HeldChange, HoldMove, Lease},
};
use sea_orm::Value;
use uuid::Uuid;

use super::fence::Fence;
use crate::{
    SeaOrm,
    dialect::{MESSAGE, binds},
    error::refused,
    rows::int,
};

const HOLD: &str = "move rows to the held table";
const CHANGE: &str = "change held rows";
const SETTLE: &str = "delete published held rows";
const RELEASE_DUE: &str = "move scheduled rows that are due";
const REPAIR: &str = "give keys a head";

pub(super) async fn hold(
    store: &SeaOrm,
    lease: &Lease,
    moves: &[HoldMove],
) -> Result<(), StoreError> {
    let table = store.outbox(&lease.target, HOLD)?;
    let (dialect, now) = (store.dialect(), store.now());
    let fence = Fence::begin(store, HOLD, lease).await?;
    for chunk in moves.chunks(dialect.pairs()) {
        let copied = fence
            .execute(dialect.hold(store.tables(), table, &lease.target, &now, chunk))
            .await?;
        let removed = fence.execute(dialect.remove(table, chunk)).await?;
        let wanted = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        if copied != wanted || removed != wanted {
            fence.rollback().await;
            let message = format!(
                "of {wanted} rows {copied} were there and {removed} could be deleted; nothing was moved"
            );
            return Err(refused(StoreErrorKind::Other, HOLD, message));
        }
    }
    fence.commit().await
}

pub(super) async fn change(
    store: &SeaOrm,
    lease: &Lease,
    changes: &[HeldChange],
) -> Result<(), StoreError> {
    let now = store.now();
    let fence = Fence::begin(store, CHANGE, lease).await?;
    for chunk in changes.chunks(store.dialect().pairs()) {
        fence
            .execute(
                store
                    .dialect()
                    .change(&store.tables().held, &lease.target, &now, chunk),
            )
            .await?;
    }
    fence.commit().await
}

pub(super) async fn settle(
    store: &SeaOrm,
    target: &str,
    rows: &[(i64, Uuid)],
) -> Result<u64, StoreError> {
    let mut deleted = 0;
    for chunk in rows.chunks(store.dialect().pairs()) {
        let statement = store
            .dialect()
            .settle_held(&store.tables().held, target, chunk);
        deleted += store.execute(SETTLE, statement).await?.rows_affected();
    }
    Ok(deleted)
}

/// The new row counts as written when it was due: before that it was not late.
pub(super) async fn release_due(
    store: &SeaOrm,
    lease: &Lease,
    limit: u32,
) -> Result<u64, StoreError> {
    let table = store.outbox(&lease.target, RELEASE_DUE)?;
    let held = &store.tables().held;
    let fence = Fence::begin(store, RELEASE_DUE, lease).await?;
    let sql = format!(
        "SELECT id FROM {held} WHERE target = ? AND reason = 'scheduled' AND due_at <= {} ORDER BY due_at, id LIMIT ?",
        store.now()
    );
    let due = fence
        .query(store.sql(
            &sql,
            vec![lease.target.as_str().into(), i64::from(limit).into()],
        ))
        .await?;
    let ids: Vec<Value> = due
        .iter()
        .filter_map(|row| int(row, 0))
        .map(Value::from)
        .collect();
    let mut moved = 0;
    for chunk in ids.chunks(512) {
        let list = binds(chunk.len());
        let sql = format!(
            "INSERT INTO {table} ({MESSAGE}, occurred_at) SELECT {MESSAGE}, due_at FROM {held} \
             WHERE id IN ({list}) ORDER BY due_at, id"
        );
        let copied = fence.execute(store.sql(&sql, chunk.to_vec())).await?;
        let sql = format!("DELETE FROM {held} WHERE id IN ({list})");
        let removed = fence.execute(store.sql(&sql, chunk.to_vec())).await?;
        if copied != removed {
            fence.rollback().await;
            let message = format!(
                "{copied} rows were there and {removed} could be deleted; nothing was moved"
            );
            return Err(refused(StoreErrorKind::Other, RELEASE_DUE, message));
        }
        moved += removed;
    }
    fence.commit().await?;
    Ok(moved)
}

pub(super) async fn repair_heads(
    store: &SeaOrm,
    lease: &Lease,
    dead_blocks: bool,
) -> Result<u64, StoreError> {
    let held = &store.tables().held;
    let now = store.now();
    let ignored = if dead_blocks {
        "('scheduled')"
    } else {
        "('scheduled', 'dead')"
    };
    let sql = format!(
        "UPDATE {held} SET reason = 'failing', due_at = {now}, changed_at = {now} WHERE id IN (\
           SELECT id FROM (\
             SELECT MIN(h.id) AS id FROM {held} AS h JOIN (\
               SELECT ordering_key, MIN(seq) AS seq FROM {held} \
               WHERE target = ? AND ordering_key IS NOT NULL AND reason NOT IN {ignored} \
               GROUP BY ordering_key HAVING SUM(CASE WHEN reason = 'parked' THEN 0 ELSE 1 END) = 0\
             ) AS k ON h.ordering_key = k.ordering_key AND h.seq = k.seq \
             WHERE h.target = ? AND h.reason = 'parked' GROUP BY h.ordering_key\
           ) AS head)"
    );
    let target = || Value::from(lease.target.as_str());
    let fence = Fence::begin(store, REPAIR, lease).await?;
    let repaired = fence
        .execute(store.sql(&sql, vec![target(), target()]))
        .await?;
    fence.commit().await?;
    Ok(repaired)
}
