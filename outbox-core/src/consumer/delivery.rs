//! A delivery on its way through the outer layers, and what comes back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use tokio::time::Instant;
use tower::util::BoxCloneService;
use uuid::Uuid;

use super::slots::Room;
use crate::{broker::Origin, envelope::Envelope, error::BoxError};

/// The service that outer layers wrap: around the inbox and everything inside it.
pub type DeliveryService = BoxCloneService<Delivery, Outcome, BoxError>;

/// One delivery of a message to one consumer: the request of outer layers.
///
/// For a handler that takes a `Vec` it is a batch: a first message and [others](Self::others) of the
/// same event, which are handled in one transaction.
///
/// It may be cloned and handled again (a retry layer outside the inbox): each time runs in a
/// transaction of its own.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub(crate) message: Message,
    /// The other messages of a batch.
    pub(crate) others: Vec<Message>,
    pub(crate) consumer: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) deliveries: u64,
    pub(crate) deadline: Instant,
    /// The message has a row in the attempt ledger.
    pub(crate) in_ledger: bool,
    /// Set when the handler itself begins.
    pub(crate) started: Started,
    /// Left when the handler has succeeded and the commit begins.
    pub(crate) room: Room,
}

/// A message with the place where it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) envelope: Envelope<Bytes>,
    pub(crate) origin: Origin,
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
    /// The message, its payload undecoded; of a batch, the first.
    #[must_use]
    pub const fn envelope(&self) -> &Envelope<Bytes> {
        &self.message.envelope
    }

    /// The other messages of a batch; none of a single delivery.
    pub fn others(&self) -> impl ExactSizeIterator<Item = &Envelope<Bytes>> {
        self.others.iter().map(|message| &message.envelope)
    }

    /// The consumer that handles it.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Where it is stored; of a batch, the first message.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.message.origin
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

    /// The ids of all messages, in their order.
    pub(crate) fn ids(&self) -> Vec<Uuid> {
        std::iter::once(self.envelope())
            .chain(self.others())
            .map(|envelope| envelope.id)
            .collect()
    }

    /// Leaves out the messages for which `fresh` is not true. `None` if that leaves none.
    pub(crate) fn only(mut self, fresh: &[bool]) -> Option<Self> {
        let mut fresh = fresh.iter().copied().chain(std::iter::repeat(false));
        let first = fresh.next() == Some(true);
        self.others.retain(|_| fresh.next() == Some(true));
        if !first {
            if self.others.is_empty() {
                return None;
            }
            self.message = self.others.remove(0);
        }
        Some(self)
    }
}

/// A delivery that is done. Only the runtime makes one, so that a layer cannot claim that work was
/// committed which was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    handled: usize,
    duplicates: usize,
}

impl Outcome {
    pub(crate) const fn new(handled: usize, duplicates: usize) -> Self {
        Self {
            handled,
            duplicates,
        }
    }

    /// The message had been handled before, and nothing was done now; of a batch, all its messages.
    #[must_use]
    pub const fn is_duplicate(&self) -> bool {
        self.handled == 0
    }

    /// How many messages were handled: one, or of a batch those that were not duplicates.
    #[must_use]
    pub const fn handled(&self) -> usize {
        self.handled
    }

    /// How many messages had been handled before.
    #[must_use]
    pub const fn duplicates(&self) -> usize {
        self.duplicates
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    fn message(id: u128) -> Message {
        let origin = Origin {
            stream: "S".to_owned(),
            sequence: 1,
            stored_at: OffsetDateTime::UNIX_EPOCH,
        };
        let mut wire = crate::broker::WireMessage {
            subject: "s".to_owned(),
            ..Default::default()
        };
        let id = Uuid::from_u128(id).to_string();
        for (name, value) in [
            ("ce-specversion", "1.0".to_owned()),
            ("ce-id", id),
            ("ce-source", "test".to_owned()),
            ("ce-type", "s".to_owned()),
        ] {
            wire.headers.append(name, value);
        }
        let envelope = crate::wire::incoming(&wire, origin.stored_at).expect("an envelope");
        Message { envelope, origin }
    }

    #[test]
    fn duplicates_leave_the_others_in_their_order() {
        let batch = Delivery {
            message: message(1),
            others: vec![message(2), message(3)],
            consumer: Arc::from("c"),
            attempt: 1,
            deliveries: 1,
            deadline: Instant::now(),
            in_ledger: false,
            started: Started::default(),
            room: Room::default(),
        };
        let left = |fresh: &[bool]| {
            let left = batch.clone().only(fresh)?.ids();
            Some(left.into_iter().map(|id| id.as_u128()).collect::<Vec<_>>())
        };
        assert_eq!(left(&[true, true, true]), Some(vec![1, 2, 3]));
        assert_eq!(left(&[true, false, true]), Some(vec![1, 3]));
        assert_eq!(left(&[false, false, true]), Some(vec![3]));
        assert_eq!(left(&[false, true, true]), Some(vec![2, 3]));
        assert_eq!(left(&[false, false, false]), None);
        assert_eq!(
            left(&[true]),
            Some(vec![1]),
            "what is not known is left out"
        );
        assert_eq!(left(&[]), None);
    }
}
