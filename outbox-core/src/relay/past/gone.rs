//! The numbers whose rows this relay has deleted, by which its reads pass over what is left of them.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::store::SeqRuns;

/// Numbers in a run that is worth looking up what lies beside it, at least.
const WORTH: i64 = 1_000;
/// Runs that a read is told of, at most: the longest ones.
const TOLD: usize = 256;
/// Runs in memory, at most. Transactions that were rolled back leave gaps, each of which ends a run.
const KEPT: usize = 4_096;

/// Runs of deleted numbers. None of these has a row again, unless numbers are handed out twice.
///
/// Runs are never joined over a gap: a transaction that is still open may have its numbers.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The last number of each run by its first one.
    runs: BTreeMap<i64, i64>,
}

impl Gone {
    pub(super) fn add(&mut self, seqs: impl IntoIterator<Item = i64>) {
        let mut seqs: Vec<_> = seqs.into_iter().collect();
        seqs.sort_unstable();
        for &(first, last) in SeqRuns::of(seqs).as_slice() {
            self.add_run(first, last);
        }
        self.tidy();
    }

    fn add_run(&mut self, mut first: i64, mut last: i64) {
        while let Some((&begin, &end)) = self.runs.range(..=last.saturating_add(1)).next_back()
            && end.saturating_add(1) >= first
        {
            self.runs.remove(&begin);
            (first, last) = (first.min(begin), last.max(end));
        }
        self.runs.insert(first, last);
    }

    /// Keeps the highest runs, which may still grow together, and the longest of the others.
    fn tidy(&mut self) {
        if self.runs.len() <= KEPT {
            return;
        }
        if let Some(&from) = self.runs.keys().rev().nth(KEPT / 2) {
            let highest = self.runs.split_off(&from);
            self.runs = self.longest().into_iter().chain(highest).collect();
        }
    }

    /// The runs that a read is to be told of, in no order.
    pub(super) fn longest(&self) -> Vec<(i64, i64)> {
        let runs = self.runs.iter().map(|(&first, &last)| (first, last));
        let mut runs: Vec<_> = runs.filter(|run| length(run) >= WORTH).collect();
        if runs.len() > TOLD {
            runs.sort_unstable_by_key(|run| Reverse(length(run)));
            runs.truncate(TOLD);
        }
        runs
    }

    /// Forgets what ends at or below `floor`.
    pub(super) fn forget_to(&mut self, floor: i64) {
        while let Some(run) = self.runs.first_entry()
            && *run.get() <= floor
        {
            run.remove();
        }
    }

    pub(super) fn contains(&self, seq: i64) -> bool {
        let run = self.runs.range(..=seq).next_back();
        run.is_some_and(|(_, &last)| seq <= last)
    }
}

const fn length(&(first, last): &(i64, i64)) -> i64 {
    last.saturating_sub(first).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(runs: &[(i64, i64)]) -> Gone {
        let mut gone = Gone::default();
        for &(first, last) in runs {
            gone.add(first..=last);
        }
        gone
    }

    #[test]
    fn runs_grow_together_and_gaps_stay() {
        let gone = of(&[(1, 500), (1_001, 2_000), (501, 900), (2_002, 3_500)]);
        assert_eq!(
            gone.longest(),
            [(1_001, 2_000), (2_002, 3_500)],
            "the others are short"
        );
        let mut gone = of(&[(1, 500), (1_001, 2_000), (501, 1_000), (2_002, 3_500)]);
        assert_eq!(gone.longest(), [(1, 2_000), (2_002, 3_500)]);
        assert!(gone.contains(1) && gone.contains(2_000) && gone.contains(2_002));
        assert!(!gone.contains(0) && !gone.contains(2_001) && !gone.contains(3_501));
        gone.add([2_001, 2_001, 1_500]);
        assert_eq!(gone.longest(), [(1, 3_500)]);
        gone.forget_to(3_499);
        assert_eq!(gone.longest(), [(1, 3_500)]);
        gone.forget_to(3_500);
        assert!(gone.longest().is_empty());
    }

    #[test]
    fn many_gaps_cost_little_memory_and_the_longest_runs_are_told() {
        let mut gone = of(&[(1, 5_000), (6_000, 6_999)]);
        for number in 0..20_000 {
            let first = 10_000 + number * 10;
            gone.add(first..first + 9);
            assert!(gone.runs.len() <= KEPT);
        }
        assert_eq!(gone.longest(), [(1, 5_000), (6_000, 6_999)]);
        for number in 0..TOLD as i64 {
            let first = 1_000_000 + number * 10_000;
            gone.add(first..first + 2_000);
        }
        let told = gone.longest();
        assert_eq!(told.len(), TOLD);
        assert!(told.contains(&(1, 5_000)) && !told.contains(&(6_000, 6_999)));
    }
}
