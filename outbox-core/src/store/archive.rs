//! Rows that were published and are kept for a while, with the place where the broker stored them.

use std::{sync::Arc, time::Duration};

use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::{StoreError, StoreErrorKind};

/// A held row that the broker acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct SettledHeld {
    /// The held table's id.
    pub id: i64,
    /// The row's message id; both must match.
    pub message_id: Uuid,
    /// The stream that stored it.
    pub stream: Arc<str>,
    /// Its sequence in the stream.
    pub stream_seq: u64,
}

/// Which archived rows: those whose ids lie between two, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct ArchivedIds {
    /// The lowest id.
    pub first: i64,
    /// The highest id.
    pub last: i64,
}

/// A row of the archive, without headers and payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct ArchivedRow {
    /// The archive's own id; later rows have higher ones.
    pub id: i64,
    /// The message's id.
    pub message_id: Uuid,
    /// The event's stable name.
    pub event_type: String,
    /// The subject.
    pub subject: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The stream that confirmed it.
    pub stream: String,
    /// Its sequence in the stream.
    pub stream_seq: u64,
    /// When it was archived, by the database's clock: right after the confirmation.
    pub published_at: OffsetDateTime,
    /// How long ago that was, by the same clock.
    pub age: Duration,
}

/// The answer of a store without an archive.
pub(super) fn no_archive(operation: &'static str) -> StoreError {
    let message = "this store has no archive of published events; use `Retention::Delete`";
    StoreError::new(StoreErrorKind::Other, operation, message)
}
