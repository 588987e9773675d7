//! What a seed says about each order.

use serde::{Deserialize, Serialize};

/// Numbers of one slot (a process that places orders) begin at its multiple of this.
pub const SLOT: i64 = 1_000_000;

/// How an order is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publishing {
    /// `bus.publish(&tx, ..)` in the caller's transaction.
    Direct,
    /// A unit of work.
    Unit,
    /// A unit of work inside which a savepoint with an event of its own is undone.
    UnitWithUndoneSavepoint,
    /// In the caller's transaction, with a nested one that publishes and is rolled back.
    UndoneSavepoint,
    /// The same message id twice.
    Twice,
    /// With a delay.
    Scheduled,
    /// Published, and then rolled back.
    RolledBack,
    /// Published, and the transaction dropped.
    Dropped,
}

/// What the handler of an order does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handling {
    /// Ships it.
    Ship,
    /// Fails so many times.
    Fail(u32),
    /// Fails once, after its effect.
    FailAfterTheEffect,
    /// Rejects it until the shop is mended: it goes to the dead letters and is replayed.
    Reject,
    /// Panics at the first attempt.
    Panic,
    /// Hangs at the first attempt.
    Hang,
    /// Swallows a database error after its effect, at the first attempt.
    SwallowAnError,
    /// Kills its own database connection at the first delivery.
    KillTheConnection,
    /// Ships it, but takes its time.
    TakeTime,
}

/// One order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Its number.
    pub number: i64,
    /// The ordering key, if it has one.
    pub customer: Option<String>,
    /// How it is placed.
    pub publishing: Publishing,
    /// What its handler does.
    pub handling: Handling,
}

impl Planned {
    /// Whether the order exists in the end.
    #[must_use]
    pub fn commits(&self) -> bool {
        !matches!(
            self.publishing,
            Publishing::RolledBack | Publishing::Dropped
        )
    }
}

/// What a seed says.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    seed: u64,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// What it says about an order.
    #[must_use]
    pub fn of(&self, number: i64) -> Planned {
        let mixed = self.seed ^ number.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = fastrand::Rng::with_seed(mixed);
        let publishing = match random.u8(..20) {
            0..6 => Publishing::Direct,
            6..12 => Publishing::Unit,
            12 => Publishing::UnitWithUndoneSavepoint,
            13 => Publishing::UndoneSavepoint,
            14 | 15 => Publishing::Twice,
            16 | 17 => Publishing::Scheduled,
            18 => Publishing::RolledBack,
            _ => Publishing::Dropped,
        };
        let handling = match random.u8(..40) {
            0 | 1 => Handling::Fail(1),
            2 => Handling::Fail(2),
            3 => Handling::FailAfterTheEffect,
            4 => Handling::Reject,
            5 => Handling::Panic,
            6 => Handling::Hang,
            7 => Handling::SwallowAnError,
            8 => Handling::KillTheConnection,
            9 | 10 => Handling::TakeTime,
            _ => Handling::Ship,
        };
        // Scheduled events have no place in the order of their key.
        let keyed = publishing != Publishing::Scheduled && random.u8(..4) > 0;
        Planned {
            number,
            customer: keyed.then(|| format!("slot-{}-{}", number / SLOT, random.u8(..5))),
            publishing,
            handling,
        }
    }

    /// The orders of a slot up to and with `last` that exist in the end.
    pub fn committed(self, slot: i64, last: i64) -> impl Iterator<Item = Planned> {
        (slot * SLOT..=last)
            .map(move |number| self.of(number))
            .filter(Planned::commits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_the_same_twice_and_everything_in_time() {
        let orders = |seed| {
            (0..2000)
                .map(|number| Plan::new(seed).of(number))
                .collect::<Vec<_>>()
        };
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
        for publishing in [Publishing::Dropped, Publishing::UndoneSavepoint] {
            assert!(orders(3).iter().any(|order| order.publishing == publishing));
        }
        assert!(
            orders(3)
                .iter()
                .any(|order| order.handling == Handling::KillTheConnection)
        );
    }
}
