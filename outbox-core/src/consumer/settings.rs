//! A consumer's settings, and what is refused when it is built.

use std::{sync::Arc, time::Duration};

use super::options::HandlerOptions;
use crate::{
    broker::{ConsumerSpec, StartAt},
    policy::Backoff,
};

/// A consumer that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A handler's attribute names another consumer.
    #[error(
        "handler `{handler}` belongs to consumer `{other}` and was mounted under consumer `{consumer}`; mount it with \
         a `Consumer` of its own or change its attribute"
    )]
    OtherConsumer {
        /// The consumer.
        consumer: &'static str,
        /// The handler.
        handler: &'static str,
        /// The consumer that its attribute names.
        other: &'static str,
    },
    /// Two handlers of one consumer take the same event.
    #[error(
        "handlers `{first}` and `{second}` of consumer `{consumer}` both take event `{event}`; one inbox row stands \
         for both, so give one of them another consumer name"
    )]
    SameEvent {
        /// The consumer.
        consumer: &'static str,
        /// The event's type.
        event: &'static str,
        /// One handler.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Two handlers' attributes set an option differently.
    #[error(
        "the handlers of consumer `{consumer}` set `{option}` differently, and they share one durable; set it on the \
         `Consumer`"
    )]
    Conflict {
        /// The consumer.
        consumer: &'static str,
        /// The option.
        option: &'static str,
    },
    /// A consumer without an inbox has an inner layer.
    #[error(
        "consumer `{consumer}` has no inbox, so nothing is inside it; use `layer` instead of `layer_inside`"
    )]
    InnerLayer {
        /// The consumer.
        consumer: &'static str,
    },
    /// A consumer has handlers of single events and handlers of batches.
    #[error(
        "consumer `{consumer}` has handlers of single events and handlers of batches (`Vec<..>`), which take their \
         messages differently; give them different consumer names"
    )]
    Mixed {
        /// The consumer.
        consumer: &'static str,
    },
    /// An option of batches was set on a consumer whose handlers take single events.
    #[error(
        "consumer `{consumer}` sets `{option}`, which is for handlers that take a batch: `Vec<..>` as their first \
         argument"
    )]
    NoBatches {
        /// The consumer.
        consumer: &'static str,
        /// The option.
        option: &'static str,
    },
    /// Two mounted consumers have the same name.
    #[error(
        "consumer `{consumer}` was mounted twice; put its handlers under one `Consumer`, or they would take each \
         other's messages"
    )]
    Twice {
        /// The consumer.
        consumer: &'static str,
    },
}

/// No handler may take longer, so that its time-out can be added to any clock.
const LONGEST: Duration = Duration::from_hours(24 * 7);

/// How batches are formed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSettings {
    /// The most messages of one.
    pub(crate) size: usize,
    /// How long the first message waits for others.
    pub(crate) linger: Duration,
}

/// A consumer's settings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) name: Arc<str>,
    pub(crate) subjects: Vec<String>,
    pub(crate) event_types: Vec<&'static str>,
    pub(crate) max_attempts: u32,
    pub(crate) max_crashes: u32,
    pub(crate) backoff: Backoff,
    pub(crate) concurrency: usize,
    pub(crate) timeout: Duration,
    pub(crate) ack_wait: Duration,
    pub(crate) newer_version_delay: Duration,
    pub(crate) with_inbox: bool,
    /// Set if the handlers take batches; then `concurrency` counts them.
    pub(crate) batch: Option<BatchSettings>,
    start: StartAt,
}

impl Settings {
    pub(super) fn new(
        options: &HandlerOptions,
        subjects: Vec<String>,
        event_types: Vec<&'static str>,
        ack_wait: Duration,
        newer_version_delay: Duration,
        with_inbox: bool,
        start: StartAt,
    ) -> Self {
        Self {
            name: Arc::from(options.consumer),
            subjects,
            event_types,
            max_attempts: options.max_attempts.unwrap_or(5).max(1),
            max_crashes: options.max_crashes.unwrap_or(3).max(1),
            backoff: options.backoff.unwrap_or_default(),
            concurrency: options.concurrency.unwrap_or(16).max(1) as usize,
            timeout: options
                .timeout
                .unwrap_or(Duration::from_secs(60))
                .min(LONGEST),
            ack_wait,
            newer_version_delay,
            with_inbox,
            batch: None,
            start,
        }
    }

    /// The same for handlers that take batches.
    pub(super) fn in_batches(mut self, options: &HandlerOptions) -> Self {
        let linger = options.linger.unwrap_or(Duration::from_millis(20));
        self.batch = Some(BatchSettings {
            size: options.batch.unwrap_or(100).max(1) as usize,
            linger: linger.min(self.ack_wait / 4),
        });
        self.concurrency = options.concurrency.unwrap_or(2).max(1) as usize;
        self
    }

    /// Whether a handler takes events of this type.
    pub(crate) fn takes(&self, event_type: &str) -> bool {
        self.event_types.contains(&event_type)
    }

    pub(crate) fn spec(&self) -> ConsumerSpec {
        ConsumerSpec {
            name: self.name.to_string(),
            subjects: self.subjects.clone(),
            ack_wait: self.ack_wait,
            start: self.start,
        }
    }

    /// Fills the options that the mount leaves open with those of the attributes.
    pub(super) fn fill(
        options: &mut HandlerOptions,
        attributes: impl Iterator<Item = HandlerOptions>,
    ) -> Result<(), BuildError> {
        let consumer = options.consumer;
        let overridden = *options;
        for attribute in attributes {
            for (option, differs) in [
                (
                    "max_attempts",
                    fill(
                        &mut options.max_attempts,
                        attribute.max_attempts,
                        overridden.max_attempts,
                    ),
                ),
                (
                    "max_crashes",
                    fill(
                        &mut options.max_crashes,
                        attribute.max_crashes,
                        overridden.max_crashes,
                    ),
                ),
                (
                    "backoff",
                    fill(&mut options.backoff, attribute.backoff, overridden.backoff),
                ),
                (
                    "concurrency",
                    fill(
                        &mut options.concurrency,
                        attribute.concurrency,
                        overridden.concurrency,
                    ),
                ),
                (
                    "timeout",
                    fill(&mut options.timeout, attribute.timeout, overridden.timeout),
                ),
                (
                    "batch",
                    fill(&mut options.batch, attribute.batch, overridden.batch),
                ),
                (
                    "linger",
                    fill(&mut options.linger, attribute.linger, overridden.linger),
                ),
            ] {
                if differs {
                    return Err(BuildError::Conflict { consumer, option });
                }
            }
        }
        Ok(())
    }
}

/// Takes an attribute's value where none is set; whether it differs from another attribute's.
fn fill<T: Copy + PartialEq>(
    option: &mut Option<T>,
    attribute: Option<T>,
    overridden: Option<T>,
) -> bool {
    if overridden.is_some() {
        return false;
    }
    let differs = matches!((*option, attribute), (Some(set), Some(other)) if set != other);
    *option = option.or(attribute);
    differs
}
