//! The delay before the next attempt.

use std::time::Duration;

/// No delay is longer, so that it can be added to any clock.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// How long to wait before attempt `n + 1` after `n` failures.
///
/// Each delay is jittered: uniformly between half of the computed delay and the whole of it, so
/// that messages that failed together do not return together.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::Backoff;
///
/// let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(300));
/// assert_eq!(backoff.base(1), Duration::from_secs(1));
/// assert_eq!(backoff.base(4), Duration::from_secs(8));
/// assert_eq!(backoff.base(u32::MAX), Duration::from_secs(300));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    factor: u32,
}

impl Backoff {
    /// Doubles from `initial` up to `max`; each delay is drawn between half of that and the whole.
    #[must_use]
    pub const fn exponential(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            factor: 2,
        }
    }

    /// Does not grow: each delay is drawn between half of `delay` and the whole.
    #[must_use]
    pub const fn fixed(delay: Duration) -> Self {
        Self {
            initial: delay,
            max: delay,
            factor: 1,
        }
    }

    /// The delay after `failures` failures (from 1), before jitter. Never above the maximum.
    #[must_use]
    pub fn base(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = self.factor.checked_pow(doublings).unwrap_or(u32::MAX);
        self.initial
            .checked_mul(factor)
            .unwrap_or(self.max)
            .min(self.max)
            .min(LONGEST)
    }

    /// The delay after `failures` failures with jitter applied.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let base = self.base(failures);
        base.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Default for Backoff {
    /// One second, doubling to five minutes.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_mins(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_above_the_cap_nor_below_half_of_the_base() {
        let backoff = Backoff::exponential(Duration::from_hours(24), Duration::from_hours(48));
        for failures in [1, 2, 31, 32, 63, 64, 500, u32::MAX] {
            let delay = backoff.delay(failures);
            assert!(delay <= Duration::from_hours(48));
            assert!(delay >= backoff.base(failures) / 2);
        }
    }
}
