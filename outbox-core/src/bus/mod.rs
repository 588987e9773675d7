//! Publishing: events become rows in the caller's own transaction.

mod buffer;
mod finite;
mod prepare;
mod publish;
mod settings;
mod signal;
mod unit;

use std::{fmt, sync::Arc};

use tracing::Instrument;
use uuid::Uuid;

pub(crate) use buffer::{EventBuffer, nested};
pub(crate) use prepare::{Prepare, Provenance};
pub use publish::Publish;
pub use settings::{BusBuilder, DEFAULT_ENVELOPE_LIMIT, DEFAULT_TARGET};
pub(crate) use signal::{Seen, Signal, Signals};
pub use unit::Unit;

use crate::{
    error::{PublishError, StoreError},
    event::IntegrationEvent,
    store::{OpenTx, Store},
};

/// Writes events to the outbox, and is where relay and consumers start from.
///
/// Cheap to clone; clones share the store and wake the same relay.
///
/// ```no_run
/// # use outbox_core::{Bus, IntegrationEvent, OpenTx, Store, error::PublishError};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, IntegrationEvent)]
/// # #[event(subject = "shop.orders.placed")]
/// # struct OrderPlaced { order_id: u64 }
/// # async fn example<S: Store>(store: S, tx: impl OpenTx<S>, order_id: u64) -> Result<(), PublishError> {
/// let bus = Bus::new(store);
///
/// // With SeaORM: let tx = db.begin().await?; order.insert(&tx).await?;
/// bus.publish(&tx, &OrderPlaced { order_id }).await?; // one INSERT in the same transaction
/// // tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # What is guaranteed
///
/// An event of a transaction (or savepoint) that rolled back is never published; an event of a
/// committed one is published at least once, and the consumers' inbox gives it its effect once.
pub struct Bus<S: Store> {
    inner: Arc<Inner<S>>,
    target: Arc<str>,
    signal: Arc<Signal>,
}

struct Inner<S> {
    store: S,
    prepare: Arc<Prepare>,
    signals: Signals,
}

impl<S: Store> Bus<S> {
    /// A bus with default settings.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// Starts building a bus with other settings.
    pub fn builder(store: S) -> BusBuilder<S> {
        BusBuilder::new(store)
    }

    pub(crate) fn from_parts(store: S, prepare: Prepare, target: Arc<str>) -> Self {
        let signals = Signals::default();
        let signal = signals.of(&target);
        Self {
            inner: Arc::new(Inner {
                store,
                prepare: Arc::new(prepare),
                signals,
            }),
            target,
            signal,
        }
    }

    /// The same bus, writing to the outbox of another target: a named broker with a relay of its own.
    #[must_use]
    pub fn target(&self, name: &str) -> Self {
        let target: Arc<str> = Arc::from(name);
        let signal = self.inner.signals.of(&target);
        Self {
            inner: Arc::clone(&self.inner),
            target,
            signal,
        }
    }

    /// The target whose outbox this bus writes to.
    #[must_use]
    pub fn target_name(&self) -> &str {
        &self.target
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    pub(crate) fn prepare(&self) -> &Arc<Prepare> {
        &self.inner.prepare
    }

    pub(crate) const fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Publishes `event` inside `tx`: one INSERT, which commits and rolls back with the rest.
    ///
    /// Returns the message's id. The relay of this process looks for the event at once and then
    /// ever less often until it sees it committed; [`wake`](Self::wake) after the commit saves that.
    ///
    /// # Errors
    ///
    /// [`PublishError`]: the event cannot travel (nothing was written), or the INSERT failed (on
    /// PostgreSQL the transaction can only be rolled back then).
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the event written completely or not at all in `tx`, and `tx` usable; on
    /// MySQL not always: a statement that is cut while it is prepared leaves its connection out of step,
    /// and the next one fails. Roll back then.
    pub async fn publish<E: IntegrationEvent>(
        &self,
        tx: &impl OpenTx<S>,
        event: &E,
    ) -> Result<Uuid, PublishError> {
        self.publish_with(tx, event, Publish::new()).await
    }

    /// Publishes `event` with an id, headers, a delay or a correlation of its own.
    ///
    /// Publishing one id twice writes two rows; the consumers' inbox drops the second.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub async fn publish_with<E: IntegrationEvent>(
        &self,
        tx: &impl OpenTx<S>,
        event: &E,
        options: Publish,
    ) -> Result<Uuid, PublishError> {
        let record = self
            .inner
            .prepare
            .record(event, options, &Provenance::none())?;
        let id = record.id;
        let span = tracing::debug_span!("publish", message_id = %id, event_type = E::TYPE, subject = E::SUBJECT);
        self.inner
            .store
            .insert(tx.open_tx(), &self.target, std::slice::from_ref(&record))
            .instrument(span)
            .await
            .map_err(|error| PublishError::store(E::TYPE, error))?;
        self.signal.touch();
        Ok(id)
    }

    /// Publishes several events of one type with one INSERT, in their order.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish); one event that cannot travel refuses them all.
    pub async fn publish_all<'e, E: IntegrationEvent>(
        &self,
        tx: &impl OpenTx<S>,
        events: impl IntoIterator<Item = &'e E, IntoIter: Send> + Send,
    ) -> Result<Vec<Uuid>, PublishError> {
        let mut records = Vec::new();
        for event in events {
            records.push(
                self.inner
                    .prepare
                    .record(event, Publish::new(), &Provenance::none())?,
            );
        }
        if records.is_empty() {
            return Ok(Vec::new());
        }
        self.inner
            .store
            .insert(tx.open_tx(), &self.target, &records)
            .await
            .map_err(|error| PublishError::store(E::TYPE, error))?;
        self.signal.touch();
        Ok(records.iter().map(|record| record.id).collect())
    }

    /// Begins a unit of work: a transaction that buffers events, writes them with one INSERT right
    /// before a guarded commit, and wakes the relay after it.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if no transaction can be begun.
    pub async fn begin(&self) -> Result<Unit<S>, StoreError> {
        Unit::begin(self.clone()).await
    }

    /// Runs `work` in a unit of work: commits if it succeeds, rolls back if it fails or panics.
    ///
    /// The work is never run a second time; a deadlock is returned as the error that it is.
    ///
    /// # Errors
    ///
    /// The work's own error, or a [`StoreError`] of beginning and committing, converted.
    pub async fn transaction<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&Unit<S>) -> Result<T, E>,
        E: From<StoreError>,
    {
        let unit = self.begin().await?;
        match work(&unit).await {
            Ok(value) => {
                unit.commit().await?;
                Ok(value)
            }
            Err(error) => {
                if let Err(rollback) = unit.rollback().await {
                    tracing::debug!(error = %rollback, "a failed unit of work could not be rolled back; the database does it");
                }
                Err(error)
            }
        }
    }

    /// Tells the relay of this process that something was committed.
    ///
    /// Only for speed: without it the event is found by polling.
    pub fn wake(&self) {
        self.signal.wake();
    }
}

impl<S: Store> Clone for Bus<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            target: Arc::clone(&self.target),
            signal: Arc::clone(&self.signal),
        }
    }
}

impl<S: Store> fmt::Debug for Bus<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}
