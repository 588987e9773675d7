//! Keeping what was published, for as long as the broker may lose it.

use std::{convert::Infallible, future::Future, time::Duration};

use tokio::time::sleep;

use super::{Relay, status::RelayState};
use crate::{broker::Broker, store::OutboxStore, telemetry::Chain};

/// Rows deleted with one statement, and the pause between two: small steps that leave the table to
/// others.
const PRUNE_ROWS: u32 = 1000;
const PRUNE_PAUSE: Duration = Duration::from_millis(100);
/// How often the archive is pruned at most and at least.
const PRUNE_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// Steps after one `dispatch_batch`, which archives fewer rows than these delete.
const PRUNE_STEPS: u32 = 8;

/// What becomes of a row of the outbox that the broker has confirmed.
///
/// A broker can lose what it has confirmed: JetStream syncs its files every two minutes unless its
/// `sync_interval` says otherwise. With [`Keep`](Self::Keep) such a loss can be found and mended by
/// [`Bus::audit`](crate::Bus::audit).
///
/// ```
/// use std::time::Duration;
/// use outbox_core::{RelayOptions, Retention};
///
/// let options = RelayOptions::default().retention(Retention::Keep(Duration::from_secs(6 * 3600)));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// It is deleted.
    #[default]
    Delete,
    /// It moves to the archive, with stream and sequence, and is deleted from there this long after it
    /// was published, in small steps by the active relay. Longer than it may take to notice a loss, and
    /// shorter than [`inbox_retention`](crate::Runtime::inbox_retention): what is republished from the
    /// archive must find consumers that still remember it.
    ///
    /// The archive grows by the size of all that is published meanwhile, and each published row is
    /// written once more. Only a relay with this option prunes it: one that goes back to
    /// [`Delete`](Self::Delete) leaves what there is.
    Keep(Duration),
}

impl Retention {
    pub(super) const fn keeps(self) -> bool {
        matches!(self, Self::Keep(_))
    }
}

/// Runs `work`, and prunes the archive beside it while the relay is the active one.
pub(super) async fn beside<S: OutboxStore, B: Broker, T>(
    relay: &Relay<S, B>,
    work: impl Future<Output = T>,
) -> T {
    let Retention::Keep(age) = relay.options.retention else {
        return work.await;
    };
    tokio::select! {
        done = work => done,
        never = prune(relay, age) => match never {},
    }
}

async fn prune<S: OutboxStore, B: Broker>(relay: &Relay<S, B>, age: Duration) -> Infallible {
    let every = (age / 4).clamp(PRUNE_EVERY.0, PRUNE_EVERY.1);
    loop {
        sleep(every).await;
        while relay.status.get().state == RelayState::Active && step(relay, age).await {
            sleep(PRUNE_PAUSE).await;
        }
    }
}

/// A bounded part of pruning, for relays without a loop.
pub(super) async fn prune_some<S: OutboxStore, B: Broker>(relay: &Relay<S, B>) {
    if let Retention::Keep(age) = relay.options.retention {
        for _ in 0..PRUNE_STEPS {
            if !step(relay, age).await {
                return;
            }
        }
    }
}

/// Deletes some rows; whether there may be more.
async fn step<S: OutboxStore, B: Broker>(relay: &Relay<S, B>, age: Duration) -> bool {
    let target = relay.bus.target_name();
    match relay
        .bus
        .store()
        .prune_archive(target, age, PRUNE_ROWS)
        .await
    {
        Ok(deleted) => deleted >= u64::from(PRUNE_ROWS),
        Err(error) => {
            tracing::warn!(target_name = %target, error = %Chain(&error), "pruning the archive failed; it is tried again");
            false
        }
    }
}
