//! Reading rows, and deleting those that the broker acknowledged.

use outbox_core::{
    error::StoreError,
    store::{OutboxRow, ReadQuery, Settled},
};

use crate::{SeaOrm, rows};

const READ: &str = "read the outbox";
const SETTLE: &str = "delete published rows";

/// A statement by itself has one snapshot, whatever isolation level the session has.
pub(super) async fn read(
    store: &SeaOrm,
    target: &str,
    query: &ReadQuery,
) -> Result<Vec<OutboxRow>, StoreError> {
    if query.limit == 0 {
        return Ok(Vec::new());
    }
    let statement = store.dialect().read(store.outbox(target, READ)?, query);
    let rows = store.query(READ, statement).await?;
    let mut rows: Vec<_> = rows.iter().map(rows::message).collect();
    // They mostly are; where the database would have to sort them, payloads would go through the sort.
    rows.sort_by_key(|row| row.seq);
    Ok(rows)
}

pub(super) async fn settle(
    store: &SeaOrm,
    target: &str,
    settled: &[Settled],
) -> Result<u64, StoreError> {
    let table = store.outbox(target, SETTLE)?;
    let mut deleted = 0;
    for chunk in settled.chunks(store.dialect().pairs()) {
        deleted += store
            .execute(SETTLE, store.dialect().settle(table, chunk))
            .await?
            .rows_affected();
    }
    Ok(deleted)
}
