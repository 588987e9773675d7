//! The inbox: one transaction for the inbox row, the handler's effect, and the events it publishes.

use std::{
    fmt,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use futures_util::future::BoxFuture;
use tower::{Layer, Service};

use crate::{
    bus::{Bus, EventBuffer},
    consumer::{Delivery, DeliveryError, DeliveryErrorKind, Finished, Outcome, Transacted},
    error::{BoxError, StoreError, StoreErrorKind},
    store::{InboxStore, TxGuard},
};

/// Wraps a handler service in an [`Inbox`].
///
/// Every [`Consumer`](crate::Consumer) made by `Consumer::of` has one; use it yourself to compose a
/// service by hand.
#[derive(Debug)]
pub struct InboxLayer<S: InboxStore> {
    bus: Bus<S>,
}

impl<S: InboxStore> InboxLayer<S> {
    /// An inbox in the bus's store. Events that the handler publishes go to the bus's target.
    #[must_use]
    pub const fn new(bus: Bus<S>) -> Self {
        Self { bus }
    }
}

impl<S: InboxStore> Clone for InboxLayer<S> {
    fn clone(&self) -> Self {
        Self {
            bus: self.bus.clone(),
        }
    }
}

impl<S: InboxStore, I> Layer<I> for InboxLayer<S> {
    type Service = Inbox<S, I>;

    fn layer(&self, inner: I) -> Inbox<S, I> {
        Inbox {
            bus: self.bus.clone(),
            inner,
        }
    }
}

/// Gives each message its effect once per consumer.
///
/// For a delivery it begins a transaction, inserts the inbox row first (a copy of the message that is
/// being handled elsewhere is waited for), runs the inner service, writes the buffered events, and
/// commits, all or nothing. A message that has been handled before is a duplicate: nothing runs. A batch
/// has its rows inserted by one statement, and the inner service gets those messages that are new.
///
/// The inner service receives the transaction and returns it with its response. If it fails, or is
/// dropped by a time-out, the transaction is rolled back.
pub struct Inbox<S: InboxStore, I> {
    bus: Bus<S>,
    inner: I,
}

impl<S: InboxStore, I> Inbox<S, I> {
    /// The wrapped service.
    #[must_use]
    pub const fn get_ref(&self) -> &I {
        &self.inner
    }

    /// The wrapped service.
    #[must_use]
    pub fn into_inner(self) -> I {
        self.inner
    }
}

impl<S: InboxStore, I: Clone> Clone for Inbox<S, I> {
    fn clone(&self) -> Self {
        Self {
            bus: self.bus.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<S: InboxStore, I> fmt::Debug for Inbox<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("bus", &self.bus)
            .finish_non_exhaustive()
    }
}

impl<S, I> Service<Delivery> for Inbox<S, I>
where
    S: InboxStore,
    I: Service<Transacted<S>, Response = Finished<S>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        // Take the instance that is ready and leave a clone.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let bus = self.bus.clone();
        Box::pin(async move { handle(bus, inner, delivery).await })
    }
}

async fn handle<S, I>(bus: Bus<S>, mut inner: I, delivery: Delivery) -> Result<Outcome, BoxError>
where
    S: InboxStore,
    I: Service<Transacted<S>, Response = Finished<S>, Error: Into<BoxError>>,
{
    let store = bus.store();
    let consumer = Arc::clone(&delivery.consumer);
    let in_ledger = delivery.in_ledger;
    let room = delivery.room.clone();
    let ids = delivery.ids();
    let (tx, fresh) = store
        .begin_recorded(&consumer, &ids)
        .await
        .map_err(DeliveryError::from)?;
    let tx = TxGuard::of(store, tx);
    let Some(delivery) = delivery.only(&fresh) else {
        roll_back(tx).await;
        return Ok(Outcome::new(0, ids.len()));
    };
    let (id, handled) = (delivery.envelope().id, 1 + delivery.others.len());
    let outcome = Outcome::new(handled, ids.len() - handled);
    let transacted = Transacted {
        delivery,
        tx,
        events: EventBuffer::default(),
        prepare: Arc::clone(bus.prepare()),
    };
    let Finished { tx, events, result } = inner.call(transacted).await.map_err(Into::into)?;
    // From here on nothing may be added: it would be lost.
    let records = events.close();
    if let Err(error) = result {
        roll_back(tx).await;
        return Err(DeliveryError::handler(error).into());
    }
    if in_ledger && let Err(error) = store.clear_in(tx.get(), &consumer, id).await {
        roll_back(tx).await;
        return Err(DeliveryError::from(error).into());
    }
    let count = records.len();
    room.leave();
    match tx.commit_with(bus.target_name(), records).await {
        Ok(()) => {
            if count > 0 {
                bus.wake();
            }
            Ok(outcome)
        }
        Err(error) => Err(not_committed(store, &consumer, id, error, count)
            .await
            .into()),
    }
}

/// Tells a transaction that the database or the handler ended from one that merely failed.
async fn not_committed<S: InboxStore>(
    store: &S,
    consumer: &str,
    id: uuid::Uuid,
    error: StoreError,
    events: usize,
) -> DeliveryError {
    let ended = error.kind() == StoreErrorKind::TransactionLost
        && store.is_recorded(consumer, id).await.unwrap_or(false);
    if ended {
        let text = format!(
            "the handler committed its transaction itself (a COMMIT, or a statement that commits implicitly): its \
             effect is in the database, and {events} buffered event(s) were not published"
        );
        return DeliveryError::new(DeliveryErrorKind::TransactionEnded, text);
    }
    error.into()
}

async fn roll_back<S: InboxStore>(tx: TxGuard<S>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "a handler's transaction could not be rolled back; the database does it");
    }
}
