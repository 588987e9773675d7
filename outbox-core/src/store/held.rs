//! Rows that left the outbox because they cannot go now.

use std::{fmt, str::FromStr, time::Duration};

use time::OffsetDateTime;
use uuid::Uuid;

use super::outbox::OutboxRow;

/// Why a row is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HeldReason {
    /// An attempt failed and was counted; retried when due.
    Failing,
    /// It follows a held row of its key.
    Parked,
    /// Its stream is unavailable while others work; uncounted.
    Waiting,
    /// It was published with a delay.
    Scheduled,
    /// Out of attempts: until it is replayed or discarded.
    Dead,
}

impl HeldReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Failing,
        Self::Parked,
        Self::Waiting,
        Self::Scheduled,
        Self::Dead,
    ];

    /// The name in the table and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Parked => "parked",
            Self::Waiting => "waiting",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
        }
    }
}

impl fmt::Display for HeldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for HeldReason {
    type Err = UnknownHeldReason;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|reason| reason.as_str() == name)
            .ok_or_else(|| UnknownHeldReason(name.chars().take(40).collect()))
    }
}

/// The held table has a reason that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown reason {0:?} in the held table")]
pub struct UnknownHeldReason(String);

/// A held row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct HeldRow {
    /// The held table's own id.
    pub id: i64,
    /// The row with its old number; 0 for a scheduled row, which has none yet.
    pub row: OutboxRow,
    /// Why it is held.
    pub reason: HeldReason,
    /// Counted failures.
    pub attempts: u32,
    /// How long until it is due, by the database's clock; zero if it is.
    pub due_in: Duration,
    /// The first counted failure.
    pub first_error: Option<String>,
    /// The latest one.
    pub last_error: Option<String>,
    /// When it was moved here.
    pub held_at: OffsetDateTime,
    /// When it last changed.
    pub changed_at: OffsetDateTime,
}

/// A move from the outbox to the held table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct HoldMove {
    /// The row's number.
    pub seq: i64,
    /// The row's message id; both must match.
    pub id: Uuid,
    /// Why.
    pub reason: HeldReason,
    /// When it is due, from now.
    pub due_in: Duration,
    /// Counted failures so far.
    pub attempts: u32,
    /// The failure's text.
    pub error: Option<String>,
}

/// A change of a held row after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct HeldChange {
    /// The held table's id.
    pub id: i64,
    /// The row's message id; both must match.
    pub message_id: Uuid,
    /// The new reason.
    pub reason: HeldReason,
    /// When it is due, from now.
    pub due_in: Duration,
    /// Counted failures so far.
    pub attempts: u32,
    /// The failure's text; the first one stays as the first error.
    pub error: Option<String>,
}

/// Which held rows.
#[derive(Debug, Clone, Default)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct HeldFilter {
    /// Only these reasons; empty means all.
    pub reasons: Vec<HeldReason>,
    /// Only rows that are due.
    pub due: bool,
    /// Only this key.
    pub key: Option<String>,
    /// Not these keys (at most a few hundred).
    pub exclude_keys: Vec<String>,
    /// Not these subjects (at most a few hundred).
    pub exclude_subjects: Vec<String>,
    /// Not these held ids.
    pub exclude_ids: Vec<i64>,
    /// Only held ids above this one, in the order of ids: for paging a listing.
    pub after_id: Option<i64>,
    /// At most this many rows.
    pub limit: u32,
    /// Stop before the payloads exceed this many bytes; at least one row is returned.
    pub max_bytes: usize,
}
