//! Rows as they come from the database.
//!
//! A row edited by hand must not break the batch: what cannot be decoded becomes empty, zero or
//! nil, and the relay refuses that row alone.

use bytes::Bytes;
use outbox_core::store::{HeldReason, HeldRow, OutboxRow};
use sea_orm::{QueryResult, TryGetable};
use uuid::Uuid;

use crate::clock::{moment, to_duration};

fn get<T: TryGetable>(row: &QueryResult, index: usize) -> Option<T> {
    row.try_get_by_index::<Option<T>>(index).ok().flatten()
}

/// An integer of any width.
pub(crate) fn int(row: &QueryResult, index: usize) -> Option<i64> {
    get::<i64>(row, index).or_else(|| get::<i32>(row, index).map(i64::from))
}

/// An integer that is narrow on most databases. The type that fits is tried first: an attempt that fails
/// makes an error with a text of its own.
fn narrow(row: &QueryResult, index: usize) -> Option<i64> {
    get::<i32>(row, index)
        .map(i64::from)
        .or_else(|| get::<i64>(row, index))
}

/// Text, also where the column is binary (keys on MySQL) or is not UTF-8 (which SQLite does not check).
pub(crate) fn text(row: &QueryResult, index: usize) -> Option<String> {
    row.try_get_by_index(index).unwrap_or_else(|_| {
        get::<Vec<u8>>(row, index).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// An id; nil if there is none.
pub(crate) fn id(row: &QueryResult, index: usize) -> Uuid {
    get::<Uuid>(row, index).unwrap_or_default()
}

/// How many columns [`message`] reads.
pub(crate) const MESSAGE_COLUMNS: usize = 9;

/// A message from the columns `seq`, [`MESSAGE`](crate::dialect::MESSAGE) and the time.
pub(crate) fn message(row: &QueryResult) -> OutboxRow {
    let version = narrow(row, 3).unwrap_or_default();
    OutboxRow {
        seq: int(row, 0).unwrap_or_default(),
        id: get::<Uuid>(row, 1).unwrap_or_default(),
        event_type: text(row, 2).unwrap_or_default(),
        version: i32::try_from(version).unwrap_or(-1),
        subject: text(row, 4).unwrap_or_default(),
        key: text(row, 5),
        headers: text(row, 6).unwrap_or_default(),
        payload: Bytes::from(get::<Vec<u8>>(row, 7).unwrap_or_default()),
        occurred_at: moment(int(row, 8).unwrap_or_default()),
    }
}

/// A held row: a message, and the columns of [`crate::outbox::held`].
pub(crate) fn held(row: &QueryResult) -> HeldRow {
    const AT: usize = MESSAGE_COLUMNS;
    // An unknown reason is a newer build's. Nothing is done to dead rows unasked.
    let reason = text(row, AT + 1)
        .and_then(|reason| reason.parse().ok())
        .unwrap_or(HeldReason::Dead);
    HeldRow {
        row: message(row),
        id: int(row, AT).unwrap_or_default(),
        reason,
        attempts: u32::try_from(int(row, AT + 2).unwrap_or_default()).unwrap_or_default(),
        due_in: to_duration(int(row, AT + 3).unwrap_or_default()),
        first_error: text(row, AT + 4),
        last_error: text(row, AT + 5),
        held_at: moment(int(row, AT + 6).unwrap_or_default()),
        changed_at: moment(int(row, AT + 7).unwrap_or_default()),
    }
}
