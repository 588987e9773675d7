//! Where the relay's rows come from.
//!
//! The engine reads and settles through this small seam, apart from lease and held rows, so that
//! rows may come from elsewhere one day (a replication log, for example).

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::StoreError,
    store::{FloorProbe, OutboxRow, OutboxStore, ReadQuery, SeqRuns, Settled, SettledHeld},
};

/// The rows of one target's outbox table.
#[derive(Debug, Clone)]
pub(super) struct TableSource<S> {
    store: S,
    target: String,
    limit: u32,
    max_bytes: usize,
    /// Published rows go to the archive.
    keep: bool,
}

impl<S: OutboxStore> TableSource<S> {
    pub(super) const fn new(store: S, target: String, limit: u32, max_bytes: usize) -> Self {
        Self {
            store,
            target,
            limit,
            max_bytes,
            keep: false,
        }
    }

    /// The same source, with published rows moved to the archive if `keep`.
    pub(super) const fn keeping(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// The lowest rows above `floor` that are not in hand: one snapshot.
    pub(super) async fn next(
        &self,
        floor: i64,
        exclude: SeqRuns,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let query = ReadQuery {
            floor,
            exclude,
            limit: self.limit,
            max_bytes: self.max_bytes,
        };
        self.store.read(&self.target, &query).await
    }

    /// Deletes or archives acknowledged rows.
    pub(super) async fn settle(&self, rows: &[Settled]) -> Result<u64, StoreError> {
        if self.keep {
            return self.store.archive(&self.target, rows).await;
        }
        self.store.settle(&self.target, rows).await
    }

    /// Deletes or archives acknowledged held rows.
    pub(super) async fn settle_held(&self, rows: &[SettledHeld]) -> Result<u64, StoreError> {
        if self.keep {
            return self.store.archive_held(&self.target, rows).await;
        }
        let ids: Vec<_> = rows.iter().map(|row| (row.id, row.message_id)).collect();
        self.store.settle_held(&self.target, &ids).await
    }

    /// One step of proving a floor.
    pub(super) async fn probe_floor(
        &self,
        last: Option<FloorProbe>,
    ) -> Result<Option<FloorProbe>, StoreError> {
        self.store.probe_floor(&self.target, last).await
    }
}

/// How often a read begins at zero.
const FROM_ZERO_EVERY: Duration = Duration::from_secs(5);

/// The proved lower bound of rows to come. Only for speed: dead row versions under an old snapshot
/// make a scan from zero slow.
///
/// A candidate becomes the floor when its probe has passed and one more read was made after that.
///
/// Numbers below it can yet be handed out again, by a restored backup or a table that is emptied
/// with its sequence, which a connection may survive. So a sequence that went back ends the floor,
/// and now and then a read begins at zero.
#[derive(Debug, Default)]
pub(super) struct Floor {
    floor: i64,
    /// When the next read begins at zero.
    from_zero_at: Option<Instant>,
    last: Option<FloorProbe>,
    /// A passed candidate that waits for one more read.
    passed: Option<i64>,
}

impl Floor {
    /// What a read that begins now leaves out.
    pub(super) fn below(&mut self, now: Instant) -> i64 {
        if self.from_zero_at.is_some_and(|at| now < at) {
            return self.floor;
        }
        self.from_zero_at = Some(now + FROM_ZERO_EVERY);
        0
    }

    pub(super) const fn last(&self) -> Option<FloorProbe> {
        self.last
    }

    /// Forgets everything: numbers can be handed out twice by a failover or a restored backup.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(super) fn probed(&mut self, probe: Option<FloorProbe>) {
        match probe {
            Some(probe) if probe.candidate < self.floor => self.reset(),
            Some(probe) if probe.passed => {
                self.passed = Some(probe.candidate);
                self.last = None;
            }
            other => self.last = other,
        }
    }

    /// A read that began after the candidate had passed is complete, in that it returned fewer rows
    /// than asked for or reached beyond the candidate.
    pub(super) fn read(&mut self, begun_with: Option<i64>, complete_to: i64) {
        if let Some(candidate) = begun_with
            && self.passed == Some(candidate)
            && complete_to >= candidate
        {
            self.floor = self.floor.max(candidate);
            self.passed = None;
        }
    }

    /// The passed candidate that a read beginning now would prove.
    pub(super) const fn pending(&self) -> Option<i64> {
        self.passed
    }
}
