//! How many messages have been asked for and have not arrived.

use std::collections::BTreeMap;

/// Counts what the server may still send for the pull requests of one inbox.
///
/// The server shares messages out among open requests, so which request a message answers is not
/// known; only the total is. It is exact: a message takes one off, and the status that ends a
/// request says how many of it were still open.
#[derive(Debug, Default)]
pub(super) struct Demand {
    outstanding: usize,
    /// The batch size of each request that has not been ended by a status.
    requests: BTreeMap<u64, usize>,
    next: u64,
}

impl Demand {
    /// How many more to ask for, if it is worth a request: `wanted` counts those asked for before.
    pub(super) fn shortfall(&self, wanted: usize) -> Option<usize> {
        let missing = wanted.saturating_sub(self.outstanding);
        let worth = if self.outstanding == 0 {
            1
        } else {
            (wanted / 4).max(1)
        };
        (missing >= worth).then_some(missing)
    }

    /// A number for the next request.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A request was sent.
    pub(super) fn requested(&mut self, number: u64, batch: usize) {
        self.outstanding += batch;
        self.requests.insert(number, batch);
    }

    /// A message arrived.
    pub(super) fn arrived(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            self.requests.clear();
        }
    }

    /// A status ended a request; `left` is how many messages of it were still to come.
    pub(super) fn ended(&mut self, number: u64, left: Option<usize>) {
        let Some(batch) = self.requests.remove(&number) else {
            return;
        };
        self.outstanding = self
            .outstanding
            .saturating_sub(left.unwrap_or(0).min(batch));
        // No more can be open than the open requests asked for.
        self.outstanding = self.outstanding.min(self.requests.values().sum());
    }

    /// Nothing that was asked for before is to be expected.
    pub(super) fn reset(&mut self) {
        self.outstanding = 0;
        self.requests.clear();
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The most messages that may be under way: those asked for, and of each request a sign of life
    /// and its end.
    pub(super) fn most_under_way(&self) -> u64 {
        let most = self.outstanding + 2 * self.requests.len() + 1;
        u64::try_from(most).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_in_lumps_and_never_for_more_than_wanted() {
        let mut demand = Demand::default();
        assert_eq!(demand.shortfall(16), Some(16));
        demand.requested(1, 16);
        assert_eq!(demand.shortfall(16), None);
        demand.arrived();
        demand.arrived();
        assert_eq!(demand.shortfall(16), None);
        demand.arrived();
        demand.arrived();
        assert_eq!(demand.shortfall(16), Some(4));
        demand.requested(2, 4);
        assert_eq!(demand.outstanding(), 16);
        // The first request expires with ten of its sixteen unanswered, the second got two.
        demand.arrived();
        demand.arrived();
        demand.ended(1, Some(12));
        assert_eq!(demand.outstanding(), 2);
    }

    #[test]
    fn nothing_leaks_without_exact_statuses() {
        let mut demand = Demand::default();
        demand.requested(1, 10);
        demand.requested(2, 5);
        demand.ended(1, None);
        assert_eq!(demand.outstanding(), 5);
        demand.ended(2, None);
        assert_eq!(demand.outstanding(), 0);
        demand.ended(2, Some(7));
        demand.arrived();
        assert_eq!(demand.outstanding(), 0);
        assert_eq!(demand.shortfall(1), Some(1));
    }
}
