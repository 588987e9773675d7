//! Where the relay's rows come from.
//!
//! The engine reads and settles through this small seam, apart from lease and held rows, so that
//! rows may come from elsewhere one day (a replication log, for example).

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

    /// The lowest rows above `floor` that are not excluded: one snapshot.
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
