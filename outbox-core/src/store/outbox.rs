//! The relay's side of a store: the lease, reading, and settling.

use std::{fmt, future::Future, time::Duration};

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    Store,
    archive::{ArchivedIds, ArchivedRow, SettledHeld, no_archive},
    held::{HeldChange, HeldFilter, HeldRow, HoldMove},
};
use crate::error::StoreError;

/// An event on its way into the outbox: the columns that the publisher fills.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxRecord {
    /// The message's id.
    pub id: Uuid,
    /// The event's stable name.
    pub event_type: String,
    /// The version of the payload's shape.
    pub version: u16,
    /// The subject, already checked.
    pub subject: String,
    /// The ordering key.
    pub key: Option<String>,
    /// Further wire headers, one `name: value` a line.
    pub headers: String,
    /// The payload's bytes.
    pub payload: Bytes,
    /// How long the event is held back; `None` sends it at once.
    pub delay: Option<Duration>,
}

impl OutboxRecord {
    /// A record of version 1 without key, headers and delay; the fields are public.
    pub fn new(
        id: Uuid,
        event_type: impl Into<String>,
        subject: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self {
            id,
            event_type: event_type.into(),
            version: 1,
            subject: subject.into(),
            key: None,
            headers: String::new(),
            payload: payload.into(),
            delay: None,
        }
    }
}

/// A row of the outbox, as the relay reads it.
#[derive(Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct OutboxRow {
    /// The database's sequence number: the relay's order.
    pub seq: i64,
    /// The message's id.
    pub id: Uuid,
    /// The event's stable name.
    pub event_type: String,
    /// The version of the payload's shape, as stored; a row edited by hand can hold anything.
    pub version: i32,
    /// The subject, as stored.
    pub subject: String,
    /// The ordering key.
    pub key: Option<String>,
    /// Further wire headers, one `name: value` a line.
    pub headers: String,
    /// The payload's bytes.
    pub payload: Bytes,
    /// When the row was written, by the database's clock.
    pub occurred_at: OffsetDateTime,
}

impl fmt::Debug for OutboxRecord {
    /// Shows neither headers nor the payload: both can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRecord")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("version", &self.version)
            .field("payload_len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OutboxRow {
    /// Shows neither headers nor the payload: both can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRow")
            .field("seq", &self.seq)
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("version", &self.version)
            .field("subject", &self.subject)
            .field("payload_len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl OutboxRow {
    /// What the row takes in memory, in bytes, roughly.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len() + self.headers.len() + self.subject.len() + self.event_type.len() + 200
    }
}

/// A lease that this process holds on the relay of one outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct Lease {
    /// The target whose outbox it is.
    pub target: String,
    /// Random for each acquisition.
    pub owner: Uuid,
    /// Grows by one with each acquisition.
    pub epoch: i64,
    /// The lease's length.
    pub length: Duration,
}

/// Sorted, disjoint, inclusive runs of sequence numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeqRuns(Vec<(i64, i64)>);

impl SeqRuns {
    /// The runs of `sorted`, which must ascend.
    #[must_use]
    pub fn of(sorted: impl IntoIterator<Item = i64>) -> Self {
        Self::joined(sorted.into_iter().map(|seq| (seq, seq)))
    }

    /// Runs that ascend, those that touch or overlap joined into one.
    fn joined(sorted: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for (first, last) in sorted {
            match runs.last_mut() {
                Some((_, end)) if end.saturating_add(1) >= first => *end = last.max(*end),
                _ => runs.push((first, last)),
            }
        }
        Self(runs)
    }

    /// These and other runs of numbers, in any order.
    pub(crate) fn and(self, others: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut all = self.0;
        all.extend(others);
        all.sort_unstable();
        Self::joined(all)
    }

    /// The runs as inclusive pairs.
    #[must_use]
    pub fn as_slice(&self) -> &[(i64, i64)] {
        &self.0
    }
}

/// What the relay wants to read: the lowest rows above the floor that it does not leave out.
#[derive(Debug, Clone)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct ReadQuery {
    /// Only rows above this number. A bound for speed, proved to lie below every row to come.
    pub floor: i64,
    /// Numbers that are left out: rows that are already in the relay's hands, and long runs of those that it
    /// has deleted, which are best passed over without looking at what is left of them.
    pub exclude: SeqRuns,
    /// At most this many rows.
    pub limit: u32,
    /// Stop before the payloads exceed this many bytes; at least one row is returned.
    pub max_bytes: usize,
}

/// A row that the broker acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct Settled {
    /// Its sequence number.
    pub seq: i64,
    /// Its message id; a row that has the number but not the id is left alone.
    pub id: Uuid,
    /// The stream that stored it.
    pub stream: std::sync::Arc<str>,
    /// Its sequence in the stream.
    pub stream_seq: u64,
}

/// What waits in one target's outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct Backlog {
    /// Rows in the outbox; counted up to [`Backlog::COUNT_LIMIT`].
    pub waiting: u64,
    /// The age of the oldest row that is neither dead nor scheduled for later, by the database's clock.
    pub oldest_age: Option<Duration>,
    /// Held rows by reason.
    pub held: Vec<(super::HeldReason, u64)>,
}

impl Backlog {
    /// Where counting the outbox stops, so that asking stays cheap.
    pub const COUNT_LIMIT: u64 = 1_000_000;
}

/// A step of proving that no row at or below a number can appear any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct FloorProbe {
    /// The highest number handed out when the probe was made.
    pub candidate: i64,
    /// A transaction id taken afterwards.
    pub marker: i64,
    /// Whether every transaction up to the marker has ended by now.
    pub passed: bool,
}

/// The relay's side of a store.
///
/// Methods that take a [`Lease`] are fenced: they begin by renewing it in their own transaction and
/// fail with [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced), changing nothing, if
/// it is no longer held.
pub trait OutboxStore: Store {
    /// Takes the lease of `target` if it is free, ran out, or lies further ahead than twice its own
    /// length (a clock was set back). Returns its epoch.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn acquire(
        &self,
        target: &str,
        owner: Uuid,
        length: Duration,
    ) -> impl Future<Output = Result<Option<i64>, StoreError>> + Send;

    /// Renews the lease.
    ///
    /// # Errors
    ///
    /// Fenced if it was lost.
    fn renew(&self, lease: &Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives the lease up at once. Losing it before is no error.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads rows in the order of their numbers: one statement, one snapshot, no lock.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn read(
        &self,
        target: &str,
        query: &ReadQuery,
    ) -> impl Future<Output = Result<Vec<OutboxRow>, StoreError>> + Send;

    /// Deletes acknowledged rows, by number and id. Not fenced: what the broker has acknowledged
    /// may be deleted by anybody. Returns how many there were.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn settle(
        &self,
        target: &str,
        rows: &[Settled],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Moves rows from the outbox to the held table, all or none. Fenced.
    ///
    /// # Errors
    ///
    /// Fenced; or a row was gone, and nothing was moved.
    fn hold(
        &self,
        lease: &Lease,
        moves: &[HoldMove],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Held rows that match, in the order of their numbers (scheduled ones by due time).
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn held(
        &self,
        target: &str,
        filter: &HeldFilter,
    ) -> impl Future<Output = Result<Vec<HeldRow>, StoreError>> + Send;

    /// The distinct keys that have held rows which hold their followers back: all reasons but
    /// `scheduled`, and `dead` only if `dead_too`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn held_keys(
        &self,
        target: &str,
        dead_too: bool,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Changes held rows after a failed attempt, by id and message id. Fenced.
    ///
    /// # Errors
    ///
    /// Fenced.
    fn change_held(
        &self,
        lease: &Lease,
        changes: &[HeldChange],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes acknowledged held rows, by id and message id.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn settle_held(
        &self,
        target: &str,
        rows: &[(i64, Uuid)],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Moves acknowledged rows from the outbox to the archive, by number and id, instead of deleting
    /// them as [`settle`](Self::settle) does: each row that is there is in one of the two tables at any
    /// time. Not fenced. Returns how many there were.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the rows are still in the outbox, unless a commit's outcome is unknown.
    /// A store without an archive refuses.
    fn archive(
        &self,
        target: &str,
        rows: &[Settled],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (target, rows);
        async { Err(no_archive("archive published rows")) }
    }

    /// Moves acknowledged held rows to the archive, by id and message id, as
    /// [`archive`](Self::archive) does with rows of the outbox.
    ///
    /// # Errors
    ///
    /// As [`archive`](Self::archive).
    fn archive_held(
        &self,
        target: &str,
        rows: &[SettledHeld],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (target, rows);
        async { Err(no_archive("archive published held rows")) }
    }

    /// Deletes up to `limit` archived rows that were published longer than `age` ago, the oldest
    /// first. Returns how many.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn prune_archive(
        &self,
        target: &str,
        age: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (target, age, limit);
        async { Err(no_archive("prune the archive")) }
    }

    /// The ids of the archived rows that were published at most `oldest` and at least `newest` ago,
    /// where they are given; `None` if there are no such rows. Rows that were archived out of the
    /// order of their times may lie between as well.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn archived_ids(
        &self,
        target: &str,
        oldest: Option<Duration>,
        newest: Option<Duration>,
    ) -> impl Future<Output = Result<Option<ArchivedIds>, StoreError>> + Send {
        let _ = (target, oldest, newest);
        async { Err(no_archive("read the archive")) }
    }

    /// Up to `limit` archived rows, in the order of their ids.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn archived(
        &self,
        target: &str,
        ids: ArchivedIds,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<ArchivedRow>, StoreError>> + Send {
        let _ = (target, ids, limit);
        async { Err(no_archive("read the archive")) }
    }

    /// Moves archived rows back into the outbox, by archive id and message id, with new numbers and
    /// all else as it was: each is in one of the two tables at any time. What is not there (any more)
    /// is left out, so that repeating it is harmless. Returns how many.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing was moved, unless a commit's outcome is unknown.
    fn republish(
        &self,
        target: &str,
        rows: &[(i64, Uuid)],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (target, rows);
        async { Err(no_archive("republish archived rows")) }
    }

    /// Moves up to `limit` scheduled rows that are due into the outbox, with new numbers. Fenced.
    /// Returns how many.
    ///
    /// # Errors
    ///
    /// Fenced.
    fn release_due(
        &self,
        lease: &Lease,
        limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Gives each key whose held rows are all `parked` a head: its lowest row becomes `failing`,
    /// due now. A key with a dead row is left alone if `dead_blocks`. Fenced.
    ///
    /// # Errors
    ///
    /// Fenced.
    fn repair_heads(
        &self,
        lease: &Lease,
        dead_blocks: bool,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// How long until the next held row (failing, scheduled) is due; zero if one is now.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn next_due(
        &self,
        target: &str,
    ) -> impl Future<Output = Result<Option<Duration>, StoreError>> + Send;

    /// One step of proving a floor, given the last step's result; `None` where the database offers
    /// no proof.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn probe_floor(
        &self,
        target: &str,
        last: Option<FloorProbe>,
    ) -> impl Future<Output = Result<Option<FloorProbe>, StoreError>> + Send {
        let _ = (target, last);
        async { Ok(None) }
    }

    /// What waits.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn backlog(&self, target: &str) -> impl Future<Output = Result<Backlog, StoreError>> + Send;

    /// One held row with its payload.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn held_row(
        &self,
        target: &str,
        id: i64,
    ) -> impl Future<Output = Result<Option<HeldRow>, StoreError>> + Send;

    /// Makes a dead row due again with no attempts spent; `false` if it is not dead (any more).
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn replay_dead(
        &self,
        target: &str,
        id: i64,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes a dead row; `false` if it is not dead (any more).
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn discard_dead(
        &self,
        target: &str,
        id: i64,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
