//! The proved lower bound of rows to come.

use crate::store::FloorProbe;

/// The proved lower bound of rows to come.
///
/// Up to a candidate whose probe has passed, all rows that there will be can be seen: each read that begins
/// after that takes the lowest of them in hand, and moves the floor to the last one that it returned, or
/// to the candidate.
#[derive(Debug, Default)]
pub(super) struct Floor {
    floor: i64,
    last: Option<FloorProbe>,
    /// A passed candidate that reads have not come to yet.
    passed: Option<i64>,
}

impl Floor {
    pub(super) const fn get(&self) -> i64 {
        self.floor
    }

    pub(super) const fn last(&self) -> Option<FloorProbe> {
        self.last
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

    /// A read that began with this passed candidate returned all rows up to `complete_to` that were not
    /// left out.
    pub(super) fn read(&mut self, begun_with: Option<i64>, complete_to: i64) {
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

    #[test]
    fn it_follows_the_reads_up_to_what_is_proved() {
        let probe = |candidate, passed| {
            Some(FloorProbe {
                candidate,
                marker: 1,
                passed,
            })
        };
        let mut floor = Floor::default();
        floor.probed(probe(5_000, false));
        floor.read(floor.pending(), 1_000);
        assert_eq!(floor.get(), 0, "nothing is proved");
        let begun_before = floor.pending();
        floor.probed(probe(5_000, true));
        floor.read(begun_before, 2_000);
        assert_eq!(floor.get(), 0, "it began before");
        for (complete_to, expected) in [(3_000, 3_000), (2_500, 3_000), (9_000, 5_000)] {
            floor.read(floor.pending(), complete_to);
            assert_eq!(floor.get(), expected);
        }
        floor.read(floor.pending(), 10_000);
        assert_eq!(floor.get(), 5_000, "no more is proved");
    }
}
