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
    /// How many messages this process handles at once. Default 16; of a handler that takes batches, how
    /// many batches, by default 2.
    pub concurrency: Option<u32>,
    /// How long the handling of a message may take, layers, inbox and commit included, before it counts
    /// as failed. Default 60 s.
    pub timeout: Option<Duration>,
    /// The most messages of a batch. Default 100. Only for handlers that take a `Vec`.
    pub batch: Option<u32>,
    /// How long the first message of a batch waits for others. Default 20 ms, at most a quarter of the
    /// ack wait. Only for handlers that take a `Vec`.
    pub linger: Option<Duration>,
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
            batch: None,
            linger: None,
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

    /// Sets how long the handling of a message may take.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the most messages of a batch.
    #[must_use]
    pub const fn batch(mut self, messages: u32) -> Self {
        self.batch = Some(messages);
        self
    }

    /// Sets how long the first message of a batch waits for others.
    #[must_use]
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.linger = Some(linger);
        self
    }
}
