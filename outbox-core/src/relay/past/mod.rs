//! What reads may pass over because it is done. Only for speed: what is left of deleted rows under an old
//! snapshot makes a read that looks at all of it slow.

mod floor;
mod gone;

use std::time::Duration;

use tokio::time::Instant;

use self::{floor::Floor, gone::Gone};
use crate::store::{FloorProbe, OutboxRow, SeqRuns};

/// How often a read looks at everything, at most.
const EVERYTHING_EVERY: Duration = Duration::from_secs(5);
/// And the part of the time that those reads take, at most: with what is left of millions of rows before
/// the first one, one takes seconds.
const EVERYTHING_SHARE: u32 = 20;

/// The numbers below the floor, and those that this relay has deleted: no row has one of them any more.
///
/// They can yet be handed out again, by a restored backup or a table that is emptied with its sequence,
/// which a connection may survive. So a sequence that went back ends all of it, and now and then a read
/// looks at everything.
#[derive(Debug, Default)]
pub(super) struct Past {
    floor: Floor,
    gone: Gone,
    /// When a read looks at everything again.
    everything_at: Option<Instant>,
}

/// What a read looks at.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) floor: i64,
    pub(super) exclude: SeqRuns,
    pub(super) began: Began,
}

/// How a read began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began {
    pub(super) at: Instant,
    everything: bool,
    /// The passed candidate up to which it moves the floor.
    proves: Option<i64>,
}

impl Past {
    /// What a read that begins now looks at, with these rows in hand.
    pub(super) fn look(&self, in_hand: SeqRuns, now: Instant) -> Look {
        let everything = self.everything_at.is_none_or(|at| at <= now);
        let began = Began {
            at: now,
            everything,
            proves: self.floor.pending(),
        };
        if everything {
            return Look {
                floor: 0,
                exclude: in_hand,
                began,
            };
        }
        Look {
            floor: self.floor.get(),
            exclude: in_hand.and(self.gone.longest()),
            began,
        }
    }

    /// A read returned these rows: the lowest ones that it looked at, and all of them if there are none.
    pub(super) fn read(&mut self, began: Began, rows: &[OutboxRow], now: Instant) {
        if rows.iter().any(|row| self.gone.contains(row.seq)) {
            self.reset();
        }
        if began.everything {
            let took = now.saturating_duration_since(began.at);
            self.everything_at = Some(now + EVERYTHING_EVERY.max(took * EVERYTHING_SHARE));
        }
        // Fewer rows than asked for can also mean that the byte limit cut the read.
        let complete_to = rows.last().map_or(i64::MAX, |row| row.seq);
        self.floor.read(began.proves, complete_to);
        self.gone.forget_to(self.floor.get());
    }

    /// These rows were deleted, each of them.
    pub(super) fn deleted(&mut self, seqs: impl IntoIterator<Item = i64>) {
        self.gone.add(seqs);
    }

    /// The last step of proving a floor that has not passed.
    pub(super) const fn last_probe(&self) -> Option<FloorProbe> {
        self.floor.last()
    }

    /// A floor is proved up to a number that reads have not come to yet.
    pub(super) const fn proves(&self) -> bool {
        self.floor.pending().is_some()
    }

    pub(super) fn probed(&mut self, probe: Option<FloorProbe>) {
        if probe.is_some_and(|probe| probe.candidate < self.floor.get()) {
            return self.reset();
        }
        self.floor.probed(probe);
    }

    /// Forgets everything: numbers can be handed out twice by a failover or a restored backup.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn row(seq: i64) -> OutboxRow {
        OutboxRow {
            seq,
            id: Uuid::from_u128(1),
            event_type: "t".to_owned(),
            version: 1,
            subject: "s".to_owned(),
            key: None,
            headers: String::new(),
            payload: Bytes::new(),
            occurred_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn probe(candidate: i64, passed: bool) -> Option<FloorProbe> {
        Some(FloorProbe {
            candidate,
            marker: 1,
            passed,
        })
    }

    /// What a read now would look at.
    fn looks(past: &Past, now: Instant) -> (i64, Vec<(i64, i64)>) {
        let look = past.look(SeqRuns::of([7_000]), now);
        (look.floor, look.exclude.as_slice().to_vec())
    }

    fn read(past: &mut Past, rows: &[i64], began: Instant, now: Instant) {
        let look = past.look(SeqRuns::default(), began);
        let rows: Vec<_> = rows.iter().map(|&seq| row(seq)).collect();
        past.read(look.began, &rows, now);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_pass_over_what_is_done() {
        let (start, mut past) = (Instant::now(), Past::default());
        read(&mut past, &[1], start, start);
        assert_eq!(looks(&past, start), (0, vec![(7_000, 7_000)]));
        past.deleted(2_001..=6_999);
        assert_eq!(looks(&past, start), (0, vec![(2_001, 7_000)]), "in one run");
        past.probed(probe(5_000, true));
        read(&mut past, &[2_000], start, start);
        assert_eq!(looks(&past, start), (2_000, vec![(2_001, 7_000)]));
        read(&mut past, &[], start, start);
        assert_eq!(looks(&past, start), (5_000, vec![(2_001, 7_000)]));
        past.probed(probe(8_000, true));
        read(&mut past, &[], start, start);
        assert_eq!(looks(&past, start), (8_000, vec![(7_000, 7_000)]));
    }

    #[tokio::test(start_paused = true)]
    async fn looking_at_everything_takes_a_small_part_of_the_time() {
        let (start, mut past) = (Instant::now(), Past::default());
        past.probed(probe(5_000, true));
        past.deleted(2_001..=6_999);
        let everything = (0, vec![(7_000, 7_000)]);
        assert_eq!(looks(&past, start), everything);
        read(&mut past, &[1_000], start, start);
        let later = start + EVERYTHING_EVERY;
        let before = later - Duration::from_millis(1);
        assert_eq!(looks(&past, before), (1_000, vec![(2_001, 7_000)]));
        assert_eq!(looks(&past, later), everything);
        let slow = later + Duration::from_secs(2);
        read(&mut past, &[2_000], later, slow);
        assert_eq!(looks(&past, slow + Duration::from_secs(39)).0, 2_000);
        assert_eq!(looks(&past, slow + Duration::from_secs(40)), everything);
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_that_come_again_end_all_of_it() {
        let (start, mut past) = (Instant::now(), Past::default());
        let everything = (0, vec![(7_000, 7_000)]);
        let fill = |past: &mut Past| {
            past.probed(probe(5_000, true));
            read(past, &[], start, start);
            past.deleted(5_001..=6_000);
            assert_eq!(
                looks(past, start),
                (5_000, vec![(5_001, 6_000), (7_000, 7_000)])
            );
        };
        fill(&mut past);
        past.probed(probe(4_999, false));
        assert_eq!(looks(&past, start), everything, "the sequence went back");
        fill(&mut past);
        read(&mut past, &[5_500], start, start);
        assert_eq!(
            looks(&past, start),
            everything,
            "a number was handed out again"
        );
        fill(&mut past);
        let began = past.look(SeqRuns::default(), start).began;
        past.reset();
        past.read(began, &[], start);
        assert_eq!(
            looks(&past, start),
            everything,
            "an old read proves nothing"
        );
    }
}
