//! Where the relay's rows come from.
//!
//! The engine reads and settles through this small seam, apart from lease and held rows, so that
//! rows may come from elsewhere one day (a replication log, for example).

use crate::{
    error::StoreError,
    store::{FloorProbe, OutboxRow, OutboxStore, ReadQuery, SeqRuns, Settled},
};

/// The rows of one target's outbox table.
#[derive(Debug, Clone)]
pub(super) struct TableSource<S> {
    store: S,
    target: String,
    limit: u32,
    max_bytes: usize,
}

impl<S: OutboxStore> TableSource<S> {
    pub(super) const fn new(store: S, target: String, limit: u32, max_bytes: usize) -> Self {
        Self {
            store,
            target,
            limit,
            max_bytes,
        }
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

    /// Deletes acknowledged rows.
    pub(super) async fn settle(&self, rows: &[Settled]) -> Result<u64, StoreError> {
        self.store.settle(&self.target, rows).await
    }

    /// One step of proving a floor.
    pub(super) async fn probe_floor(
        &self,
        last: Option<FloorProbe>,
    ) -> Result<Option<FloorProbe>, StoreError> {
        self.store.probe_floor(&self.target, last).await
    }
}

/// The proved lower bound of rows to come. Only for speed: dead row versions under an old snapshot
/// make a scan from zero slow.
///
/// A candidate becomes the floor when its probe has passed and one more read was made after that.
#[derive(Debug, Default)]
pub(super) struct Floor {
    floor: i64,
    last: Option<FloorProbe>,
    /// A passed candidate that waits for one more read.
    passed: Option<i64>,
}

impl Floor {
    pub(super) const fn get(&self) -> i64 {
        self.floor
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
