//! A delivery inside its transaction: the request of inner layers, and what comes back.

use std::{fmt, sync::Arc};

use tower::util::BoxCloneService;

use super::{
    context::{About, Context, Inner},
    delivery::Delivery,
    error::HandlerError,
};
use crate::{
    bus::{EventBuffer, Prepare},
    error::BoxError,
    store::{Store, TxGuard},
};

/// The service that inner layers wrap: the handlers.
pub type TransactedService<S> = BoxCloneService<Transacted<S>, Finished<S>, BoxError>;

/// A delivery with its open transaction: the request of layers inside the inbox.
///
/// The transaction travels into the handler and comes back with its response. It cannot be cloned,
/// so a retry layer does not fit here: a second try in a transaction that has already failed would
/// commit half of the first. Put retries outside the inbox.
///
/// ```compile_fail,E0277
/// # use outbox_core::{Store, Transacted};
/// fn try_again<Request: Clone>() {}
///
/// fn in_the_same_transaction<S: Store>() {
///     try_again::<Transacted<S>>();
/// }
/// ```
pub struct Transacted<S: Store> {
    pub(crate) delivery: Delivery,
    pub(crate) tx: TxGuard<S>,
    pub(crate) events: EventBuffer,
    pub(crate) prepare: Arc<Prepare>,
}

impl<S: Store> Transacted<S> {
    /// The delivery.
    #[must_use]
    pub const fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// The transaction.
    #[must_use]
    pub fn tx(&self) -> &S::Tx {
        self.tx.get()
    }

    pub(crate) fn context(&self) -> Context {
        context_of(&self.delivery, Some(self.events.clone()), &self.prepare)
    }

    pub(crate) fn finish(self, result: Result<(), HandlerError>) -> Finished<S> {
        Finished {
            tx: self.tx,
            events: self.events,
            result,
        }
    }
}

impl<S: Store> fmt::Debug for Transacted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transacted")
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}

/// What a handler leaves: its transaction, its events, and whether it succeeded.
///
/// Only the runtime makes one.
pub struct Finished<S: Store> {
    pub(crate) tx: TxGuard<S>,
    pub(crate) events: EventBuffer,
    pub(crate) result: Result<(), HandlerError>,
}

impl<S: Store> Finished<S> {
    /// Whether the handler succeeded. Nothing is committed yet.
    #[must_use]
    pub const fn succeeded(&self) -> bool {
        self.result.is_ok()
    }
}

impl<S: Store> fmt::Debug for Finished<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished")
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

/// The context of a delivery.
pub(crate) fn context_of(
    delivery: &Delivery,
    events: Option<EventBuffer>,
    prepare: &Arc<Prepare>,
) -> Context {
    Context::new(Inner {
        message: About::of(delivery.envelope()),
        consumer: Arc::clone(&delivery.consumer),
        origin: Some(delivery.origin().clone()),
        attempt: delivery.attempt,
        deliveries: delivery.deliveries,
        deadline: Some(delivery.deadline),
        prepare: Arc::clone(prepare),
        events,
    })
}
