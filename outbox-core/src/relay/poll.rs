//! When to read next: at once after a wake, densely after a publish whose commit cannot be seen, and
//! every idle interval always.

use std::time::Duration;

use tokio::time::Instant;

use crate::bus::Seen;

/// The first gap of dense polling; it doubles up to the idle interval.
const DENSE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Poll {
    idle: Duration,
    gap: Duration,
    next: Instant,
    seen: Seen,
}

impl Poll {
    pub(super) const fn new(idle: Duration, seen: Seen, now: Instant) -> Self {
        Self {
            idle,
            gap: idle,
            next: now,
            seen,
        }
    }

    pub(super) fn due(&self, now: Instant) -> bool {
        now >= self.next
    }

    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Something was signalled.
    pub(super) fn signalled(&mut self, seen: Seen, now: Instant) {
        if seen.wakes != self.seen.wakes {
            self.next = now;
        }
        if seen.touches != self.seen.touches {
            self.gap = DENSE;
            self.next = self.next.min(now + DENSE);
        }
        self.seen = seen;
    }

    /// There is something to read.
    pub(super) const fn signalled_now(&mut self, now: Instant) {
        self.next = now;
    }

    /// A read begins: what was signalled before it, it will see.
    pub(super) const fn reading(&mut self, seen: Seen) {
        self.seen = seen;
    }

    /// A read is done. One that is not full has seen everything that was committed when it began.
    pub(super) fn read(&mut self, found: bool, full: bool, began: Instant, now: Instant) {
        if full {
            self.next = now;
            return;
        }
        if found {
            self.gap = DENSE.min(self.idle);
        }
        if self.next <= began {
            self.next = now + self.gap;
            self.gap = (self.gap * 2).min(self.idle);
        }
    }
}
