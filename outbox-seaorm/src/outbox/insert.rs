//! Writing events in the publisher's transaction.

use outbox_core::{
    error::{StoreError, StoreErrorKind},
    failpoint::Failpoint,
    store::OutboxRecord,
};
use sea_orm::{ConnectionTrait, DatabaseTransaction, Statement};

use crate::{
    SeaOrm,
    error::{failed, refused},
};

const INSERT: &str = "write to the outbox";

/// One statement carries at most this many bytes of payloads, or one row: MariaDB accepts packets
/// of up to 16 MiB by default (`max_allowed_packet`).
const MAX_BYTES: usize = 4 << 20;

pub(crate) async fn insert(
    store: &SeaOrm,
    tx: &DatabaseTransaction,
    target: &str,
    records: &[OutboxRecord],
) -> Result<(), StoreError> {
    let dialect = store.dialect();
    if tx.get_database_backend() != dialect.backend() {
        let message = "the transaction belongs to another kind of database than the store";
        return Err(refused(StoreErrorKind::Other, INSERT, message));
    }
    let table = store.outbox(target, INSERT)?;
    let held = &store.tables().held;
    for record in records {
        check(record)?;
    }
    let (scheduled, immediate): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record.delay.is_some());
    let now = store.now();
    write(store, tx, &immediate, |rows| {
        dialect.insert(table, &now, rows)
    })
    .await?;
    write(store, tx, &scheduled, |rows| {
        dialect.schedule(held, target, &now, rows)
    })
    .await
}

async fn write(
    store: &SeaOrm,
    tx: &DatabaseTransaction,
    mut rows: &[&OutboxRecord],
    statement: impl Fn(&[&OutboxRecord]) -> Statement,
) -> Result<(), StoreError> {
    while !rows.is_empty() {
        let mut bytes = 0;
        let fit = rows.iter().take_while(|row| {
            bytes += row.payload.len() + row.headers.len();
            bytes <= MAX_BYTES
        });
        let (chunk, rest) = rows.split_at(store.dialect().chunk(fit.count().max(1)));
        tx.execute_raw(statement(chunk))
            .await
            .map_err(|error| failed(INSERT, &error))?;
        Failpoint::after(|| format!("{INSERT}: INSERT")).passed();
        rows = rest;
    }
    Ok(())
}

/// What some database would cut or refuse in a way that tells nothing.
fn check(record: &OutboxRecord) -> Result<(), StoreError> {
    let refuse = |message: &str| Err(refused(StoreErrorKind::Other, INSERT, message));
    let key = record.key.as_deref().unwrap_or_default();
    let texts = [&record.event_type, &record.subject, key, &record.headers];
    if texts.iter().any(|text| text.contains('\0')) {
        return refuse(
            "an event's type, subject, key or headers contain a NUL character, which PostgreSQL cannot store",
        );
    }
    if record.event_type.len() > 255 || key.len() > 255 {
        return refuse("an event's type or key is longer than the 255 bytes of its column");
    }
    if record.subject.len() > 1024 || !record.subject.is_ascii() {
        return refuse(
            "an event's subject is not ASCII or longer than the 1,024 bytes of its column",
        );
    }
    if record.headers.len() > 0xff_ffff {
        return refuse("an event's headers are longer than the 16 MiB of their column");
    }
    Ok(())
}
