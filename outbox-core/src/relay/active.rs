//! Taking, keeping and giving up the lease.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Relay,
    engine::{End, Engine, Mode, Parts},
    status::RelayState,
};
use crate::{
    broker::{Broker, BrokerError, Publisher},
    error::StoreError,
    policy::Backoff,
    store::{Lease, OutboxStore},
    telemetry::{self, OutageLog},
};

const RETRY: Backoff = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));
/// How long the last deletions and the release may take.
const LAST_STATEMENTS: Duration = Duration::from_secs(3);

/// What [`Relay::dispatch_batch`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dispatched {
    /// Rows that the broker confirmed.
    pub published: u64,
    /// Counted failures.
    pub failed: u64,
    /// Rows that became dead, of those.
    pub dead: u64,
}

/// Why [`Relay::dispatch_batch`] could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// Another relay holds the lease.
    #[error("another relay is active for target `{target}`; it publishes, or its lease runs out")]
    NotActive {
        /// The target.
        target: String,
    },
    /// The lease was lost on the way: what was published is settled or will be published again.
    #[error("the lease of target `{target}` was lost on the way")]
    LeaseLost {
        /// The target.
        target: String,
    },
    /// The broker is out of reach; nothing was lost.
    #[error("the broker of target `{target}` cannot be reached; the rows wait")]
    BrokerAway {
        /// The target.
        target: String,
    },
    /// The database reported an error.
    #[error("the relay of target `{target}` could not use its database")]
    Store {
        /// The target.
        target: String,
        /// The cause, if it is known.
        #[source]
        source: Option<StoreError>,
    },
    /// The broker's configuration is wrong.
    #[error("the relay of target `{target}` could not open a publisher")]
    Broker {
        /// The target.
        target: String,
        /// The cause.
        #[source]
        source: BrokerError,
    },
}

/// How an active time ended.
enum Next {
    Stop,
    Standby,
    StandBack,
}

pub(super) async fn run<S: OutboxStore, B: Broker>(relay: &Relay<S, B>, stop: &CancellationToken) {
    let target = relay.bus.target_name().to_owned();
    let mut outage = OutageLog::new("taking the relay's lease");
    while !stop.is_cancelled() {
        relay.status.update(|status| {
            status.state = RelayState::Standby;
            status.broker_connected = false;
        });
        telemetry::relay_leader(&target, false);
        let wait = match acquire(relay).await {
            Ok(Some((lease, acquired))) => {
                outage.worked(&target);
                match active(relay, lease, acquired, stop).await {
                    Next::Stop => break,
                    Next::Standby => continue,
                    Next::StandBack => {
                        stand_back(relay, stop).await;
                        continue;
                    }
                }
            }
            Ok(None) => {
                outage.worked(&target);
                relay.options.standby_poll
            }
            Err(error) => {
                outage.failed(&target, &error);
                relay.status.update(|status| {
                    status.store_error = Some(telemetry::Chain(&error).to_string())
                });
                RETRY.delay(outage.failures())
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep(wait) => {}
        }
    }
    relay
        .status
        .update(|status| status.state = RelayState::Stopped);
    telemetry::relay_leader(&target, false);
}

/// Leaves the lease to others for as long as one lasts, or until the broker can be reached again.
async fn stand_back<S: OutboxStore, B: Broker>(relay: &Relay<S, B>, stop: &CancellationToken) {
    let reachable = async {
        match relay.broker.publisher().await {
            Ok(publisher) => until_connected(&publisher).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = sleep(relay.options.lease) => {}
        () = reachable => {}
    }
}

async fn until_connected(publisher: &impl Publisher) {
    while !publisher.connected() {
        sleep(Duration::from_millis(20)).await;
    }
}

async fn acquire<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
) -> Result<Option<(Lease, Instant)>, StoreError> {
    // The lease is measured from before the statement was sent, so that it never seems longer here
    // than it is there.
    let acquired = Instant::now();
    let (target, owner, length) = (relay.bus.target_name(), Uuid::new_v4(), relay.options.lease);
    let epoch = relay.bus.store().acquire(target, owner, length).await?;
    Ok(epoch.map(|epoch| {
        (
            Lease {
                target: target.to_owned(),
                owner,
                epoch,
                length,
            },
            acquired,
        )
    }))
}

/// Works while the lease lasts.
async fn active<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
    lease: Lease,
    mut acquired: Instant,
    stop: &CancellationToken,
) -> Next {
    let publisher = match relay.broker.publisher().await {
        Ok(publisher) => Arc::new(publisher),
        Err(error) => {
            tracing::error!(target_name = %lease.target, error = %telemetry::Chain(&error), "the relay cannot open a publisher");
            release(relay.bus.store(), &lease).await;
            return Next::StandBack;
        }
    };
    relay.status.update(|status| {
        status.state = RelayState::Active;
        status.broker_connected = publisher.connected();
        status.unavailable.clear();
    });
    telemetry::relay_leader(&lease.target, true);
    tracing::info!(target_name = %lease.target, epoch = lease.epoch, "the relay is active");
    loop {
        let mut engine = Engine::new(parts(relay, &publisher), lease.clone(), acquired, Mode::Run);
        let end = engine.run(stop).await;
        let settled = timeout(LAST_STATEMENTS, engine.settle_rest()).await.is_ok();
        drop(engine);
        tracing::debug!(target_name = %lease.target, ?end, settled, "the relay's engine ended");
        match end {
            End::Stopped => {
                release(relay.bus.store(), &lease).await;
                tracing::info!(target_name = %lease.target, "the relay has stopped and given its lease up");
                return Next::Stop;
            }
            End::LeaseLost => {
                tracing::warn!(target_name = %lease.target, epoch = lease.epoch, "the relay has lost its lease and stands by");
                return Next::Standby;
            }
            End::BrokerAway => {
                tracing::warn!(target_name = %lease.target, "the relay cannot reach its broker and lets another host try");
                release(relay.bus.store(), &lease).await;
                return Next::StandBack;
            }
            End::Rebuild if stop.is_cancelled() => {
                release(relay.bus.store(), &lease).await;
                return Next::Stop;
            }
            End::Rebuild => {
                let before = Instant::now();
                match relay.bus.store().renew(&lease).await {
                    Ok(()) => acquired = before,
                    Err(error) => {
                        tracing::warn!(target_name = %lease.target, error = %telemetry::Chain(&error), "the relay could not renew its lease and stands by");
                        return Next::Standby;
                    }
                }
            }
        }
    }
}

fn parts<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
    publisher: &Arc<B::Publisher>,
) -> Parts<S, B::Publisher> {
    Parts {
        store: relay.bus.store().clone(),
        publisher: Arc::clone(publisher),
        signal: Arc::clone(relay.bus.signal()),
        options: relay.options.clone(),
        source_name: relay.bus.prepare().source().to_owned(),
        status: relay.status.clone(),
    }
}

async fn release<S: OutboxStore>(store: &S, lease: &Lease) {
    match timeout(LAST_STATEMENTS, store.release(lease)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(target_name = %lease.target, error = %telemetry::Chain(&error), "the relay's lease could not be given up and has to run out");
        }
        Err(_) => {
            tracing::warn!(target_name = %lease.target, "the relay's lease could not be given up in time and has to run out")
        }
    }
}

pub(super) async fn dispatch_batch<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
) -> Result<Dispatched, DispatchError> {
    let target = relay.bus.target_name().to_owned();
    let store_error = |source| DispatchError::Store {
        target: target.clone(),
        source,
    };
    let Some((lease, acquired)) = acquire(relay)
        .await
        .map_err(|error| store_error(Some(error)))?
    else {
        return Err(DispatchError::NotActive { target });
    };
    let publisher = match relay.broker.publisher().await {
        Ok(publisher) => Arc::new(publisher),
        Err(source) => {
            release(relay.bus.store(), &lease).await;
            return Err(DispatchError::Broker { target, source });
        }
    };
    let reachable = timeout(relay.options.lease / 2, until_connected(&*publisher)).await.is_ok();
    let mut engine = Engine::new(
        parts(relay, &publisher),
        lease.clone(),
        acquired,
        Mode::Once,
    );
    let end = if reachable {
        engine.run(&CancellationToken::new()).await
    } else {
        End::BrokerAway
    };
    engine.settle_rest().await;
    let tally = engine.tally();
    release(relay.bus.store(), &lease).await;
    match end {
        End::Stopped => Ok(Dispatched {
            published: tally.published,
            failed: tally.failed,
            dead: tally.dead,
        }),
        End::LeaseLost => Err(DispatchError::LeaseLost { target }),
        End::BrokerAway => Err(DispatchError::BrokerAway { target }),
        End::Rebuild => Err(store_error(None)),
    }
}
