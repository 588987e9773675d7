//! What a handler's attribute says, and what the mount may override.

use std::time::Duration;

use crate::policy::Backoff;

/// The options of a `#[handler]`; a field that is `None` takes the consumer's default.
///
/// `#[handler]` writes a constant of this type; each value can be overridden where the handler is
/// mounted, on [`Consumer`](crate::Consumer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// The consumer's name: the JetStream durable and the inbox key. Must not follow a rename.
    pub consumer: &'static str,
    /// Failures after which a message is dead-lettered. Default 5.
    pub max_attempts: Option<u32>,
    /// Lone crashes of the process after which a message is dead-lettered. Default 3.
    pub max_crashes: Option<u32>,
    /// The delay between attempts. Default: 1 s doubling to 5 min, with jitter.
    pub backoff: Option<Backoff>,
    /// How many messages this process handles at once. Default 16.
    pub concurrency: Option<u32>,
    /// How long the handler may take before it counts as failed. Default 60 s.
    pub timeout: Option<Duration>,
}

impl HandlerOptions {
    /// Options that name the consumer and leave the rest to the defaults.
    #[must_use]
    pub const fn new(consumer: &'static str) -> Self {
        Self {
            consumer,
            max_attempts: None,
            max_crashes: None,
            backoff: None,
            concurrency: None,
            timeout: None,
        }
    }

    /// Sets the number of failures after which a message is dead-lettered.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets the number of lone crashes after which a message is dead-lettered.
    #[must_use]
    pub const fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = Some(crashes);
        self
    }

    /// Sets the delay between attempts.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Sets how many messages one process handles at once.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Sets how long the handler may take.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}
