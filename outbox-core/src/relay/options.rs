//! Options of a relay.

use std::time::Duration;

use super::archive::Retention;
use crate::policy::Backoff;

/// What a dead row does to the later rows of its ordering key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadHead {
    /// They go on without it.
    #[default]
    Continue,
    /// They wait until it is replayed, with its old place, or discarded.
    Park,
}

/// Options of a relay. The defaults suit most services.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::RelayOptions;
///
/// let options = RelayOptions::default().lease(Duration::from_secs(5)).max_attempts(20);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until they are passed to a relay"]
pub struct RelayOptions {
    pub(crate) lease: Duration,
    pub(crate) batch: u32,
    pub(crate) batch_bytes: usize,
    pub(crate) in_hand: usize,
    pub(crate) in_hand_bytes: usize,
    pub(crate) window: usize,
    pub(crate) idle_poll: Duration,
    pub(crate) standby_poll: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) dead_head: DeadHead,
    pub(crate) retention: Retention,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            batch: 1000,
            batch_bytes: 8 * 1024 * 1024,
            in_hand: 4000,
            in_hand_bytes: 32 * 1024 * 1024,
            window: 512,
            idle_poll: Duration::from_secs(1),
            standby_poll: Duration::from_secs(1),
            max_attempts: 10,
            backoff: Backoff::default(),
            dead_head: DeadHead::Continue,
            retention: Retention::Delete,
        }
    }
}

impl RelayOptions {
    /// How long a relay that died keeps others waiting. Default 10 s; from 1 s
    /// to a day.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_secs(1), Duration::from_hours(24));
        self
    }

    /// Rows read with one statement. Default 1000.
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.clamp(1, 10_000);
        self
    }

    /// Rows in memory at most. Default 4000; at least two batches are allowed.
    pub const fn in_hand(mut self, rows: usize) -> Self {
        self.in_hand = rows;
        self
    }

    /// Payload bytes in memory, roughly. Default 32 MiB.
    pub const fn in_hand_bytes(mut self, bytes: usize) -> Self {
        self.in_hand_bytes = bytes;
        self
    }

    /// Published and not yet confirmed messages at most. Default 512.
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages.max(1);
        self
    }

    /// How often an idle relay looks for rows that nothing woke it for. Default 1 s; at most a minute.
    pub fn idle_poll(mut self, interval: Duration) -> Self {
        self.idle_poll = interval.clamp(Duration::from_millis(1), Duration::from_secs(60));
        self
    }

    /// How often a standby relay looks whether the lease is free. Default 1 s.
    pub fn standby_poll(mut self, interval: Duration) -> Self {
        self.standby_poll = interval.max(Duration::from_millis(10));
        self
    }

    /// Counted failures after which a row is dead. Default 10. Outages are never counted.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// The delay between counted failures. Default: 1 s doubling to 5 min, with jitter.
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// What a dead row does to its followers. Default: they go on.
    pub const fn dead_head(mut self, policy: DeadHead) -> Self {
        self.dead_head = policy;
        self
    }

    /// What becomes of a row that the broker has confirmed. Default: it is deleted.
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }
}
