//! Published rows that are kept for a while: into the archive, and back.

use std::time::Duration;

use outbox_core::{
    error::{StoreError, StoreErrorKind},
    failpoint::Failpoint,
    store::{ArchivedIds, ArchivedRow, Settled, SettledHeld},
};
use sea_orm::{ConnectionTrait, DatabaseTransaction, QueryResult, Statement, Value};
use uuid::Uuid;

use crate::{
    SeaOrm,
    clock::{duration_micros, moment, to_duration},
    dialect::{Published, Relocation, Source, binds, padded},
    error::refused,
    guard, rows,
    store::step,
};

const ARCHIVE: &str = "archive published rows";
const ARCHIVE_HELD: &str = "archive published held rows";
const PRUNE: &str = "prune the archive";
const READ: &str = "read the archive";
const REPUBLISH: &str = "republish archived rows";

/// How often a relocation is tried in all that found the database busy, or rows going meanwhile.
const TRIES: u32 = 4;

pub(super) async fn archive(
    store: &SeaOrm,
    target: &str,
    settled: &[Settled],
) -> Result<u64, StoreError> {
    let table = store.outbox(target, ARCHIVE)?;
    let published = settled.iter().map(|row| Published {
        number: row.seq,
        id: row.id,
        stream: &row.stream,
        stream_seq: row.stream_seq,
    });
    keep(store, ARCHIVE, Source::Outbox(table), target, published).await
}

pub(super) async fn archive_held(
    store: &SeaOrm,
    target: &str,
    settled: &[SettledHeld],
) -> Result<u64, StoreError> {
    let held = &store.tables().held;
    let published = settled.iter().map(|row| Published {
        number: row.id,
        id: row.message_id,
        stream: &row.stream,
        stream_seq: row.stream_seq,
    });
    keep(store, ARCHIVE_HELD, Source::Held(held), target, published).await
}

/// Moves rows into the archive, a bounded number with each step.
async fn keep<'a>(
    store: &SeaOrm,
    operation: &'static str,
    source: Source<'_>,
    target: &str,
    published: impl Iterator<Item = Published<'a>>,
) -> Result<u64, StoreError> {
    let dialect = store.dialect();
    let mut rows: Vec<_> = published.collect();
    // In the order of their numbers, and none twice, which would be copied twice and deleted once.
    rows.sort_by_key(|row| row.number);
    rows.dedup_by_key(|row| row.number);
    let now = store.now();
    let mut moved = 0;
    for chunk in rows.chunks(dialect.pairs()) {
        let step = dialect.archive(store.tables(), source, target, &now, chunk);
        moved += relocate(store, operation, &step).await?;
    }
    Ok(moved)
}

pub(super) async fn republish(
    store: &SeaOrm,
    target: &str,
    rows: &[(i64, Uuid)],
) -> Result<u64, StoreError> {
    let table = store.outbox(target, REPUBLISH)?;
    let (dialect, archive) = (store.dialect(), &store.tables().archive);
    let mut rows = rows.to_vec();
    rows.sort_unstable();
    rows.dedup_by_key(|row| row.0);
    let mut moved = 0;
    for chunk in rows.chunks(dialect.pairs()) {
        let step = dialect.republish(archive, table, target, chunk);
        moved += relocate(store, REPUBLISH, &step).await?;
    }
    Ok(moved)
}

/// Moves rows from one table to another, all that are there or none.
async fn relocate(
    store: &SeaOrm,
    operation: &'static str,
    step: &Relocation,
) -> Result<u64, StoreError> {
    match step {
        Relocation::Whole(statement) => {
            let done = store.execute(operation, statement.clone()).await?;
            Ok(done.rows_affected())
        }
        Relocation::Parts { copy, delete } => {
            let mut tries = 0;
            loop {
                tries += 1;
                match in_parts(store, operation, copy, delete).await {
                    Err(error) if tries < TRIES && error.kind() == StoreErrorKind::Busy => {
                        let pause = Duration::from_millis(fastrand::u64(1..=5) << tries);
                        tokio::time::sleep(pause).await;
                    }
                    result => return result,
                }
            }
        }
    }
}

/// Copies, deletes and commits; or does nothing, if somebody takes rows away meanwhile.
async fn in_parts(
    store: &SeaOrm,
    operation: &'static str,
    copy: &Statement,
    delete: &Statement,
) -> Result<u64, StoreError> {
    let connections = &store.inner.connections;
    let _writer = connections.writer().await;
    let begun = guard::begin_plain(connections.system());
    let tx = store.bounded(operation, begun).await?;
    let copied = part(store, operation, &tx, copy).await?;
    let removed = part(store, operation, &tx, delete).await?;
    if copied != removed {
        let _ = store.bounded(operation, tx.rollback()).await;
        let message = format!(
            "{copied} rows were there and {removed} could be deleted, as another process took some; nothing was moved"
        );
        return Err(refused(StoreErrorKind::Busy, operation, message));
    }
    store.bounded(operation, guard::commit_plain(tx)).await?;
    Failpoint::after(|| format!("{operation}: COMMIT")).passed();
    Ok(removed)
}

async fn part(
    store: &SeaOrm,
    operation: &'static str,
    tx: &DatabaseTransaction,
    statement: &Statement,
) -> Result<u64, StoreError> {
    let point = Failpoint::after(|| step(operation, statement));
    let done = store
        .bounded(operation, tx.execute_raw(statement.clone()))
        .await?;
    point.passed();
    Ok(done.rows_affected())
}

/// Looks first, without locks, and deletes by number: a DELETE by time would on MySQL lock the first row
/// that is to stay, too.
pub(super) async fn prune(
    store: &SeaOrm,
    target: &str,
    age: Duration,
    limit: u32,
) -> Result<u64, StoreError> {
    let archive = &store.tables().archive;
    let sql = format!(
        "SELECT id FROM {archive} WHERE target = ? AND published_at < {} ORDER BY published_at LIMIT ?",
        store.later(),
    );
    let values = vec![
        target.into(),
        Value::from(-duration_micros(age)),
        i64::from(limit).into(),
    ];
    let found = store.query(PRUNE, store.sql(&sql, values)).await?;
    let ids: Vec<Value> = found
        .iter()
        .filter_map(|row| rows::int(row, 0))
        .map(Value::from)
        .collect();
    let mut deleted = 0;
    for chunk in ids.chunks(512) {
        let list = binds(padded(chunk).count());
        let sql = format!("DELETE FROM {archive} WHERE id IN ({list})");
        let statement = store.sql(&sql, padded(chunk).cloned().collect());
        deleted += store.execute(PRUNE, statement).await?.rows_affected();
    }
    Ok(deleted)
}

pub(super) async fn ids(
    store: &SeaOrm,
    target: &str,
    oldest: Option<Duration>,
    newest: Option<Duration>,
) -> Result<Option<ArchivedIds>, StoreError> {
    let mut sql = format!(
        "SELECT MIN(id), MAX(id) FROM {} WHERE target = ?",
        store.tables().archive
    );
    let mut values = vec![target.into()];
    for (age, comparison) in [(oldest, ">="), (newest, "<=")] {
        if let Some(age) = age {
            sql.push_str(&format!(" AND published_at {comparison} {}", store.later()));
            values.push(Value::from(-duration_micros(age)));
        }
    }
    let found = store.query(READ, store.sql(&sql, values)).await?;
    let bound = |index| found.first().and_then(|row| rows::int(row, index));
    Ok(bound(0)
        .zip(bound(1))
        .map(|(first, last)| ArchivedIds { first, last }))
}

pub(super) async fn rows(
    store: &SeaOrm,
    target: &str,
    ids: ArchivedIds,
    limit: u32,
) -> Result<Vec<ArchivedRow>, StoreError> {
    let dialect = store.dialect();
    let published_at = dialect.micros("published_at");
    let sql = format!(
        "SELECT id, message_id, event_type, subject, ordering_key, stream, stream_seq, {published_at}, \
         {} - {published_at} FROM {} WHERE target = ? AND id >= ? AND id <= ? ORDER BY id LIMIT ?",
        dialect.micros(&store.now()),
        store.tables().archive
    );
    let values = vec![
        target.into(),
        ids.first.into(),
        ids.last.into(),
        i64::from(limit).into(),
    ];
    let rows = store.query(READ, store.sql(&sql, values)).await?;
    Ok(rows.iter().map(row).collect())
}

fn row(row: &QueryResult) -> ArchivedRow {
    ArchivedRow {
        id: rows::int(row, 0).unwrap_or_default(),
        message_id: rows::id(row, 1),
        event_type: rows::text(row, 2).unwrap_or_default(),
        subject: rows::text(row, 3).unwrap_or_default(),
        key: rows::text(row, 4),
        stream: rows::text(row, 5).unwrap_or_default(),
        stream_seq: rows::int(row, 6)
            .and_then(|number| u64::try_from(number).ok())
            .unwrap_or_default(),
        published_at: moment(rows::int(row, 7).unwrap_or_default()),
        age: to_duration(rows::int(row, 8).unwrap_or_default()),
    }
}
