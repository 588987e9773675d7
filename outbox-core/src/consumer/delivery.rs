//! A delivery on its way through the outer layers, and what comes back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use tokio::time::Instant;
use tower::util::BoxCloneService;

use crate::{broker::Origin, envelope::Envelope, error::BoxError};

/// The service that outer layers wrap: around the inbox and everything inside it.
pub type DeliveryService = BoxCloneService<Delivery, Outcome, BoxError>;

/// One delivery of a message to one consumer: the request of outer layers.
///
/// It may be cloned and handled again (a retry layer outside the inbox): each time runs in a
/// transaction of its own.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub(crate) envelope: Envelope<Bytes>,
    pub(crate) consumer: Arc<str>,
    pub(crate) origin: Origin,
    pub(crate) attempt: u32,
    pub(crate) deliveries: u64,
    pub(crate) deadline: Instant,
    /// The message has a row in the attempt ledger.
    pub(crate) in_ledger: bool,
    /// Set when the handler itself begins.
    pub(crate) started: Started,
}

/// Whether a handler has begun. A time-out that passes before that (the database or a layer made it
/// wait) is no failure of the message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Started(Arc<AtomicBool>);

impl Started {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Delivery {
    /// The message, its payload undecoded.
    #[must_use]
    pub const fn envelope(&self) -> &Envelope<Bytes> {
        &self.envelope
    }

    /// The consumer that handles it.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Where it is stored.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How often it has been delivered, this time included.
    #[must_use]
    pub const fn deliveries(&self) -> u64 {
        self.deliveries
    }
}

/// A delivery that is done. Only the runtime makes one, so that a layer cannot claim that work was
/// committed which was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    duplicate: bool,
}

impl Outcome {
    pub(crate) const fn handled() -> Self {
        Self { duplicate: false }
    }

    pub(crate) const fn duplicate() -> Self {
        Self { duplicate: true }
    }

    /// The message had been handled before, and nothing was done now.
    #[must_use]
    pub const fn is_duplicate(&self) -> bool {
        self.duplicate
    }
}
