//! The relay: publishes what committed transactions left in the outbox.
//!
//! One relay per outbox is active, by a lease in the database; others stand by. The parts:
//!
//! * `active`: taking, keeping and giving up the lease around an engine;
//! * `engine`: the task that overlaps reading, publishing and settling;
//! * `hands`, `keys`, `lanes`: what it has in hand, as a state machine without I/O;
//! * `source`: where rows come from; `poll`: when to look; `archive`: what is kept of published rows.

mod active;
mod archive;
mod engine;
mod hands;
mod keys;
mod lanes;
mod options;
mod past;
mod poll;
#[cfg(test)]
mod scenes;
#[cfg(test)]
mod simulation;
mod slab;
mod source;
mod status;

use std::fmt;

use tokio_util::sync::CancellationToken;

pub use active::{DispatchError, Dispatched};
pub use archive::Retention;
pub use options::{DeadHead, RelayOptions};
pub(crate) use status::SharedStatus;
pub use status::{RelayState, RelayStatus};

use crate::{broker::Broker, bus::Bus, store::OutboxStore};

/// Publishes the events of one outbox.
///
/// Usually started by [`Runtime::relay`](crate::Runtime::relay); on its own it serves a process that
/// only relays, or a test:
///
/// ```no_run
/// # use outbox_core::{Broker, Bus, Relay, store::OutboxStore};
/// # async fn example<S: OutboxStore>(
/// #     bus: Bus<S>, broker: impl Broker, shutdown: tokio_util::sync::CancellationToken,
/// # ) {
/// Relay::new(bus, broker).run(shutdown).await;
/// # }
/// ```
///
/// # What is guaranteed
///
/// A row of a committed transaction is published at least once and deleted only after the broker
/// confirmed it. Rows of one ordering key are published in the order of their numbers. What cannot
/// be published is held with its reason; nothing is dropped.
///
/// Duplicates can happen: when a process dies between a confirmation and the deletion, when a
/// confirmation is lost, and when a lease changes hands. They carry the same message id.
pub struct Relay<S: OutboxStore, B: Broker> {
    bus: Bus<S>,
    broker: B,
    options: RelayOptions,
    status: SharedStatus,
}

impl<S: OutboxStore, B: Broker> Relay<S, B> {
    /// A relay for the outbox of the bus's target.
    #[must_use]
    pub fn new(bus: Bus<S>, broker: B) -> Self {
        Self {
            bus,
            broker,
            options: RelayOptions::default(),
            status: SharedStatus::default(),
        }
    }

    /// Replaces the options.
    #[must_use]
    pub fn options(mut self, options: RelayOptions) -> Self {
        self.options = options;
        self
    }

    /// What it is doing.
    #[must_use]
    pub fn status(&self) -> RelayStatus {
        self.status.get()
    }

    pub(crate) const fn shared_status(&self) -> &SharedStatus {
        &self.status
    }

    /// Relays until `stop` is cancelled, then waits for what is in flight, settles it, and gives the
    /// lease up, so that the next relay starts at once.
    ///
    /// Outages of the database and the broker are waited out.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing; the lease then has to run out before another relay starts.
    pub async fn run(&self, stop: CancellationToken) {
        self.run_until(stop).await;
    }

    /// As [`run`](Self::run); returns whether no lease is left that has to run out.
    pub(crate) async fn run_until(&self, stop: CancellationToken) -> bool {
        archive::beside(self, active::run(self, &stop)).await
    }

    /// Reads one batch with the held rows that are due, publishes it, awaits all answers, settles,
    /// and gives the lease up: a relay without a runtime, for tests and scheduled jobs.
    ///
    /// # Errors
    ///
    /// [`DispatchError::NotActive`] if another relay holds the lease.
    pub async fn dispatch_batch(&self) -> Result<Dispatched, DispatchError> {
        let dispatched = active::dispatch_batch(self).await?;
        archive::prune_some(self).await;
        Ok(dispatched)
    }
}

impl<S: OutboxStore, B: Broker> fmt::Debug for Relay<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("bus", &self.bus)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
