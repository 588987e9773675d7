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

/// How often a read begins at zero, at most.
const FROM_ZERO_EVERY: Duration = Duration::from_secs(5);
/// And the part of the time that those reads take, at most: with millions of dead row versions before the
/// first row, one takes seconds.
const FROM_ZERO_SHARE: u32 = 20;

/// The proved lower bound of rows to come. Only for speed: dead row versions under an old snapshot
/// make a scan from zero slow.
///
/// Up to a candidate whose probe has passed, all rows that there will be can be seen: each read that begins
/// after that takes the lowest of them in hand, and moves the floor to the last one that it returned, or
/// to the candidate.
///
/// Numbers below it can yet be handed out again, by a restored backup or a table that is emptied
/// with its sequence, which a connection may survive. So a sequence that went back ends the floor,
/// and now and then a read begins at zero.
#[derive(Debug, Default)]
pub(super) struct Floor {
    floor: i64,
    /// When a read begins at zero again.
    from_zero_at: Option<Instant>,
    /// The present read began at zero because it was time to.
    from_zero: bool,
    last: Option<FloorProbe>,
    /// A passed candidate that reads have not come to yet.
    passed: Option<i64>,
}

impl Floor {
    /// What a read that begins now leaves out.
    pub(super) fn below(&mut self, now: Instant) -> i64 {
        self.from_zero = self.from_zero_at.is_none_or(|at| at <= now);
        if self.from_zero { 0 } else { self.floor }
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

    /// A read that began with this passed candidate returned all rows up to `complete_to` that were not
    /// in hand.
    pub(super) fn read(
        &mut self,
        begun_with: Option<i64>,
        complete_to: i64,
        began: Instant,
        now: Instant,
    ) {
        if self.from_zero {
            let took = now.saturating_duration_since(began);
            self.from_zero_at = Some(now + FROM_ZERO_EVERY.max(took * FROM_ZERO_SHARE));
        }
        if let Some(candidate) = begun_with
            && self.passed == Some(candidate)
        {
            self.floor = self.floor.max(candidate.min(complete_to));
            if complete_to >= candidate {
                self.passed = None;
            }
        }
    }

    /// The passed candidate up to which a read beginning now moves the floor.
    pub(super) const fn pending(&self) -> Option<i64> {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(candidate: i64, passed: bool) -> Option<FloorProbe> {
        Some(FloorProbe {
            candidate,
            marker: 1,
            passed,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn it_follows_the_reads_up_to_what_is_proved() {
        let (start, mut floor) = (Instant::now(), Floor::default());
        assert_eq!(floor.below(start), 0);
        floor.probed(probe(5_000, false));
        floor.read(floor.pending(), 1_000, start, start);
        assert_eq!(floor.below(start), 0, "nothing is proved");
        let begun_before = floor.pending();
        floor.probed(probe(5_000, true));
        floor.read(begun_before, 2_000, start, start);
        assert_eq!(floor.below(start), 0, "it began before");
        for (complete_to, expected) in [(3_000, 3_000), (2_500, 3_000), (9_000, 5_000)] {
            floor.read(floor.pending(), complete_to, start, start);
            assert_eq!(floor.below(start), expected);
        }
        floor.read(floor.pending(), 10_000, start, start);
        assert_eq!(floor.below(start), 5_000, "no more is proved");
        floor.probed(probe(8_000, true));
        let begun = floor.pending();
        floor.probed(probe(4_000, false));
        assert_eq!(floor.below(start), 0, "the sequence went back");
        floor.read(begun, 8_000, start, start);
        assert_eq!(floor.below(start), 0, "what was proved before is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn reads_from_zero_take_a_small_part_of_the_time() {
        let (start, mut floor) = (Instant::now(), Floor::default());
        floor.probed(probe(5_000, true));
        assert_eq!(floor.below(start), 0);
        floor.read(floor.pending(), 1_000, start, start);
        let later = start + FROM_ZERO_EVERY;
        assert_eq!(floor.below(later - Duration::from_millis(1)), 1_000);
        assert_eq!(floor.below(later), 0);
        let slow = later + Duration::from_secs(2);
        floor.read(floor.pending(), 2_000, later, slow);
        assert_eq!(floor.below(slow + Duration::from_secs(39)), 2_000);
        assert_eq!(floor.below(slow + Duration::from_secs(40)), 0);
    }
}
