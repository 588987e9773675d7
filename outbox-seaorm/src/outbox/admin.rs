//! What operators ask for: how much waits, and what becomes of dead rows.

use outbox_core::{
    error::StoreError,
    store::{Backlog, HeldReason},
};

use crate::{SeaOrm, clock::to_duration, rows};

const BACKLOG: &str = "count what waits";
const REPLAY: &str = "replay a dead row";
const DISCARD: &str = "discard a dead row";

pub(super) async fn backlog(store: &SeaOrm, target: &str) -> Result<Backlog, StoreError> {
    let table = store.outbox(target, BACKLOG)?;
    let held = &store.tables().held;
    let dialect = store.dialect();
    let now = store.now();
    let age = |time| format!("{} - {}", dialect.micros(&now), dialect.micros(time));

    let sql = format!(
        "SELECT COUNT(*) FROM (SELECT 1 AS one FROM {table} LIMIT {}) AS w",
        Backlog::COUNT_LIMIT
    );
    let counted = store.query(BACKLOG, store.sql(&sql, vec![])).await?;
    let waiting = counted
        .first()
        .and_then(|row| rows::int(row, 0))
        .unwrap_or_default();

    // The outbox is ordered by number, and its first row is about its oldest one.
    let sql = format!(
        "SELECT {} FROM {table} ORDER BY seq LIMIT 1",
        age("occurred_at")
    );
    let mut oldest = store.query(BACKLOG, store.sql(&sql, vec![])).await?;

    let since = "CASE WHEN reason = 'scheduled' THEN due_at ELSE occurred_at END";
    let sql = format!(
        "SELECT {} FROM (SELECT MIN({since}) AS since FROM {held} \
         WHERE target = ? AND reason <> 'dead' AND (reason <> 'scheduled' OR due_at <= {now})) AS o \
         WHERE since IS NOT NULL",
        age("since")
    );
    oldest.extend(
        store
            .query(BACKLOG, store.sql(&sql, vec![target.into()]))
            .await?,
    );

    let sql = format!(
        "SELECT reason, COUNT(*) FROM {held} WHERE target = ? GROUP BY reason ORDER BY reason"
    );
    let reasons = store
        .query(BACKLOG, store.sql(&sql, vec![target.into()]))
        .await?;
    let held = reasons.iter().filter_map(|row| {
        let reason: HeldReason = rows::text(row, 0)?.parse().ok()?;
        Some((reason, count(rows::int(row, 1))))
    });

    Ok(Backlog {
        waiting: count(Some(waiting)),
        oldest_age: oldest
            .iter()
            .filter_map(|row| rows::int(row, 0))
            .max()
            .map(to_duration),
        held: held.collect(),
    })
}

fn count(number: Option<i64>) -> u64 {
    number
        .and_then(|number| u64::try_from(number).ok())
        .unwrap_or_default()
}

pub(super) async fn replay_dead(store: &SeaOrm, target: &str, id: i64) -> Result<bool, StoreError> {
    let now = store.now();
    let sql = format!(
        "UPDATE {} SET reason = 'failing', due_at = {now}, attempts = 0, changed_at = {now} \
         WHERE id = ? AND target = ? AND reason = 'dead'",
        store.tables().held
    );
    let done = store
        .execute(REPLAY, store.sql(&sql, vec![id.into(), target.into()]))
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn discard_dead(
    store: &SeaOrm,
    target: &str,
    id: i64,
) -> Result<bool, StoreError> {
    let sql = format!(
        "DELETE FROM {} WHERE id = ? AND target = ? AND reason = 'dead'",
        store.tables().held
    );
    let done = store
        .execute(DISCARD, store.sql(&sql, vec![id.into(), target.into()]))
        .await?;
    Ok(done.rows_affected() == 1)
}
