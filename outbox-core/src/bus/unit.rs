//! The unit of work.

use std::fmt;

use uuid::Uuid;

use super::{
    Bus, Publish,
    buffer::{self, EventBuffer},
    prepare::Provenance,
};
use crate::{
    error::{PublishError, StoreError},
    event::IntegrationEvent,
    store::{OpenTx, Pool, Store, TxGuard},
};

/// A transaction that buffers events and commits them with the rest.
///
/// Made by [`Bus::begin`]. Dropping it rolls back.
///
/// ```no_run
/// # use outbox_core::{Bus, IntegrationEvent, Store};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, IntegrationEvent)]
/// # #[event(subject = "shop.orders.placed")]
/// # struct OrderPlaced { order_id: u64 }
/// # async fn example<S: Store>(bus: Bus<S>, order_id: u64) -> Result<(), Box<dyn std::error::Error>> {
/// let unit = bus.begin().await?;
/// // With SeaORM: order.insert(unit.tx()).await?;
/// unit.publish(&OrderPlaced { order_id })?;
/// unit.commit().await?;
/// # Ok(()) }
/// ```
///
/// The commit is guarded: it fails if the transaction is no longer the one that was begun, for
/// example because the database aborted it after an error that was swallowed, instead of reporting
/// success for work that is gone. Rows that are written at once (`bus.publish(unit.tx(), ..)`)
/// come before buffered ones.
pub struct Unit<S: Store> {
    bus: Bus<S>,
    tx: TxGuard<S>,
    events: EventBuffer,
}

impl<S: Store> Unit<S> {
    pub(super) async fn begin(bus: Bus<S>) -> Result<Self, StoreError> {
        let tx = TxGuard::begin(bus.store(), Pool::User).await?;
        Ok(Self {
            bus,
            tx,
            events: EventBuffer::default(),
        })
    }

    /// The transaction, for the caller's own statements.
    #[must_use]
    pub fn tx(&self) -> &S::Tx {
        self.tx.get()
    }

    /// Buffers an event. Returns its message id.
    ///
    /// # Errors
    ///
    /// [`PublishError`]: the event cannot travel.
    pub fn publish<E: IntegrationEvent>(&self, event: &E) -> Result<Uuid, PublishError> {
        self.publish_with(event, Publish::new())
    }

    /// Buffers an event with options of its own.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub fn publish_with<E: IntegrationEvent>(
        &self,
        event: &E,
        options: Publish,
    ) -> Result<Uuid, PublishError> {
        let record = self
            .bus
            .prepare()
            .record(event, options, &Provenance::none())?;
        let id = record.id;
        self.events.push(record)?;
        Ok(id)
    }

    /// Runs `work`, usually with a savepoint of its own; the events that were buffered meanwhile are
    /// forgotten if it fails, as what the transaction did since the savepoint. Nothing else of the
    /// unit should run beside it.
    ///
    /// ```no_run
    /// # use outbox_core::{Bus, IntegrationEvent, Store};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, IntegrationEvent)]
    /// # #[event(subject = "shop.coupons.used")]
    /// # struct CouponUsed { coupon: u64 }
    /// # async fn example<S: Store>(bus: Bus<S>, coupon: u64) -> Result<(), Box<dyn std::error::Error>> {
    /// let unit = bus.begin().await?;
    /// let used = unit.nested(async {
    ///     // With SeaORM: let savepoint = unit.tx().begin().await?; ..; savepoint.commit().await?;
    ///     unit.publish(&CouponUsed { coupon })
    /// });
    /// if used.await.is_err() {
    ///     // The order goes on without the coupon, and without its event.
    /// }
    /// unit.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The work's own.
    pub async fn nested<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        buffer::nested(&self.events, work).await
    }

    /// Writes the buffered events with one INSERT, commits, and wakes the relay.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. After [`CommitUnknown`](crate::error::StoreErrorKind::CommitUnknown) the
    /// work may have been committed; after every other error it was not.
    ///
    /// # Cancel safety
    ///
    /// A commit that has begun runs to its end even if the future is dropped.
    pub async fn commit(self) -> Result<(), StoreError> {
        let Self { bus, tx, events } = self;
        tx.commit_with(bus.target_name(), events.close()).await?;
        // Also without buffered events: `bus.publish(unit.tx(), ..)` may have written some.
        bus.wake();
        Ok(())
    }

    /// Rolls back and waits until that is done.
    ///
    /// # Errors
    ///
    /// The connection broke; the database rolls back by itself then.
    pub async fn rollback(self) -> Result<(), StoreError> {
        self.events.close();
        self.tx.rollback().await
    }
}

impl<S: Store> OpenTx<S> for Unit<S> {
    fn open_tx(&self) -> &S::Tx {
        self.tx()
    }
}

impl<S: Store> fmt::Debug for Unit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit")
            .field("bus", &self.bus)
            .field("events", &self.events.mark())
            .finish_non_exhaustive()
    }
}
