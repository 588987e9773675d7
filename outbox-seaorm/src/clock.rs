//! Where the store takes its times from.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use time::OffsetDateTime;

/// Where the store takes its times from.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The database's own clock, so that hosts with wrong clocks agree.
    #[default]
    Database,
    /// A clock that stands still until a test moves it.
    Manual(ManualClock),
}

/// A clock that stands still until it is moved. Clones are one clock.
///
/// ```
/// use std::time::Duration;
/// use outbox_seaorm::ManualClock;
///
/// let clock = ManualClock::default();
/// let start = clock.now();
/// clock.advance(Duration::from_secs(90));
/// assert_eq!(clock.now() - start, Duration::from_secs(90));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `now`, to the microsecond.
    #[must_use]
    pub fn new(now: OffsetDateTime) -> Self {
        Self(Arc::new(AtomicI64::new(micros(now))))
    }

    /// What the clock shows.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        moment(self.micros())
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0
            .fetch_add(crate::clock::duration_micros(by), Ordering::SeqCst);
    }

    /// Sets the clock, also back.
    pub fn set(&self, now: OffsetDateTime) {
        self.0.store(micros(now), Ordering::SeqCst);
    }

    pub(crate) fn micros(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for ManualClock {
    /// A clock that shows the present.
    fn default() -> Self {
        Self::new(OffsetDateTime::now_utc())
    }
}

fn micros(moment: OffsetDateTime) -> i64 {
    i64::try_from(moment.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// The moment that many microseconds after 1970; the beginning of 1970 if no date can express it.
pub(crate) fn moment(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A duration in microseconds. At most a hundred years, which every database can add to a date.
pub(crate) fn duration_micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 366 * 86_400 * 1_000_000;
    i64::try_from(duration.as_micros())
        .unwrap_or(CENTURY)
        .min(CENTURY)
}

/// Microseconds as a duration; zero if negative.
pub(crate) fn to_duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
