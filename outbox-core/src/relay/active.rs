//! Taking, keeping and giving up the lease.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use super::{
    Relay,
    engine::{End, Engine, Mode, Parts},
    status::RelayState,
};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, Publisher},
    error::StoreError,
    policy::Backoff,
    store::{Lease, OutboxStore},
    telemetry::{self, OutageLog},
};

const RETRY: Backoff = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));
/// How long the last deletions and the release may take.
const LAST_STATEMENTS: Duration = Duration::from_secs(3);
/// A database that is silent for so long is a problem.
const SILENCE: Duration = Duration::from_secs(5);
const BROKER_AWAY: &str = "the relay cannot reach its broker; events wait in the outbox";

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
    /// Asked to stop; whether the lease was given up.
    Stop(bool),
    Standby,
    StandBack,
}

/// Returns whether no lease is left that has to run out.
pub(super) async fn run<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
    stop: &CancellationToken,
) -> bool {
    let target = relay.bus.target_name().to_owned();
    let mut outage = OutageLog::new("taking the relay's lease");
    let mut released = true;
    while !stop.is_cancelled() {
        telemetry::relay_leader(&target, false);
        let wait = match watched(relay, acquire(relay)).await {
            Ok(taken) => {
                outage.worked(&target);
                relay.status.update(|status| {
                    status.state = RelayState::Standby;
                    status.broker_connected = false;
                    status.store_error = None;
                    status.unavailable.clear();
                });
                match taken {
                    None => {
                        relay.status.update(|status| status.problem = None);
                        relay.options.standby_poll
                    }
                    Some((lease, _)) => match active(relay, lease, stop).await {
                        Next::Stop(gone) => {
                            released = gone;
                            break;
                        }
                        Next::Standby => continue,
                        Next::StandBack => {
                            stand_back(relay, stop).await;
                            continue;
                        }
                    },
                }
            }
            Err(error) => {
                outage.failed(&target, &error);
                relay.status.update(|status| {
                    status.state = RelayState::Standby;
                    status.store_error = Some(telemetry::Chain(&error).to_string());
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
    released
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

/// Waits for the database, and says so if that takes long: a server that is frozen reports no error.
async fn watched<S: OutboxStore, B: Broker, T>(
    relay: &Relay<S, B>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = sleep(SILENCE) => {}
    }
    let text = format!("no answer for {} s", SILENCE.as_secs());
    relay
        .status
        .update(|status| status.store_error = Some(text));
    work.await
}

/// Opens a publisher within half a lease.
async fn open<S: OutboxStore, B: Broker>(relay: &Relay<S, B>) -> Result<B::Publisher, BrokerError> {
    let late = || {
        BrokerError::new(
            BrokerErrorKind::Unavailable,
            "no connection to the broker within half a lease",
        )
    };
    timeout(relay.options.lease / 2, relay.broker.publisher())
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// Works while the lease lasts.
async fn active<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
    lease: Lease,
    stop: &CancellationToken,
) -> Next {
    let store = relay.bus.store();
    let opened = tokio::select! {
        opened = open(relay) => opened,
        () = stop.cancelled() => return Next::Stop(release(store, &lease).await),
    };
    let publisher = match opened {
        Ok(publisher) => Arc::new(publisher),
        Err(error) => {
            tracing::error!(target_name = %lease.target, error = %telemetry::Chain(&error), "the relay cannot open a publisher");
            let text = format!(
                "the relay cannot open a publisher: {}",
                telemetry::Chain(&error)
            );
            relay.status.update(|status| status.problem = Some(text));
            release(store, &lease).await;
            return Next::StandBack;
        }
    };
    // Opening may have taken long: from here on the lease counts anew.
    let Some(mut acquired) = renew(store, &lease).await else {
        return Next::Standby;
    };
    relay.status.update(|status| {
        status.state = RelayState::Active;
        status.broker_connected = publisher.connected();
        status.problem = None;
    });
    telemetry::relay_leader(&lease.target, true);
    tracing::info!(target_name = %lease.target, epoch = lease.epoch, "the relay is active");
    let mut publisher = Some(publisher);
    let mut rebuilds = 0_u32;
    while let Some(shared) = publisher.clone() {
        let began = Instant::now();
        let mut engine = Engine::new(parts(relay, shared), lease.clone(), acquired, Mode::Run);
        let span = tracing::info_span!("relay", target_name = %lease.target, epoch = lease.epoch);
        let end = engine.run(stop).instrument(span).await;
        let unsettled = engine.into_unsettled();
        if matches!(end, End::LeaseLost | End::BrokerAway) {
            // Before anything else: what it still has queued must not outlive the lease.
            publisher = None;
        }
        match end {
            End::Stopped | End::Rebuild => {}
            End::LeaseLost => step_down(relay, &lease, None),
            End::BrokerAway => step_down(relay, &lease, Some(BROKER_AWAY)),
        }
        let settled = timeout(LAST_STATEMENTS, unsettled.settle()).await.is_ok();
        tracing::debug!(target_name = %lease.target, ?end, settled, "the relay's engine ended");
        match end {
            End::Stopped => {
                let released = release(store, &lease).await;
                tracing::info!(target_name = %lease.target, released, "the relay has stopped");
                return Next::Stop(released);
            }
            End::LeaseLost => {
                tracing::warn!(target_name = %lease.target, epoch = lease.epoch, "the relay has lost its lease and stands by");
                return if stop.is_cancelled() {
                    Next::Stop(false)
                } else {
                    Next::Standby
                };
            }
            End::BrokerAway => {
                tracing::warn!(target_name = %lease.target, "the relay cannot reach its broker and lets another host try");
                release(store, &lease).await;
                return Next::StandBack;
            }
            End::Rebuild => {
                // A statement that fails again and again must not become a loop of publishing.
                rebuilds = if began.elapsed() > relay.options.lease {
                    1
                } else {
                    rebuilds.saturating_add(1)
                };
                tokio::select! {
                    () = sleep(RETRY.delay(rebuilds)) => {}
                    () = stop.cancelled() => return Next::Stop(release(store, &lease).await),
                }
                match renew(store, &lease).await {
                    Some(at) => acquired = at,
                    None => {
                        step_down(relay, &lease, None);
                        return Next::Standby;
                    }
                }
            }
        }
    }
    Next::Standby
}

/// Says that this relay is not the active one any more, before another one can be.
fn step_down<S: OutboxStore, B: Broker>(relay: &Relay<S, B>, lease: &Lease, problem: Option<&str>) {
    relay.status.update(|status| {
        status.state = RelayState::Standby;
        status.broker_connected = false;
        status.problem = problem.map(str::to_owned);
        status.unavailable.clear();
    });
    telemetry::relay_leader(&lease.target, false);
}

/// Renews the lease. Returns from when it counts, or `None` if it is not certainly ours.
async fn renew<S: OutboxStore>(store: &S, lease: &Lease) -> Option<Instant> {
    let before = Instant::now();
    match store.renew(lease).await {
        Ok(()) => Some(before),
        Err(error) => {
            tracing::warn!(target_name = %lease.target, error = %telemetry::Chain(&error), "the relay could not renew its lease and stands by");
            None
        }
    }
}

fn parts<S: OutboxStore, B: Broker>(
    relay: &Relay<S, B>,
    publisher: Arc<B::Publisher>,
) -> Parts<S, B::Publisher> {
    Parts {
        store: relay.bus.store().clone(),
        publisher,
        signal: Arc::clone(relay.bus.signal()),
        options: relay.options.clone(),
        source_name: relay.bus.prepare().source().to_owned(),
        status: relay.status.clone(),
    }
}

/// Gives the lease up; whether that is certain.
async fn release<S: OutboxStore>(store: &S, lease: &Lease) -> bool {
    match timeout(LAST_STATEMENTS, store.release(lease)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(target_name = %lease.target, error = %telemetry::Chain(&error), "the relay's lease could not be given up and has to run out");
            false
        }
        Err(_) => {
            tracing::warn!(target_name = %lease.target, "the relay's lease could not be given up in time and has to run out");
            false
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
    let publisher = match open(relay).await {
        Ok(publisher) => Arc::new(publisher),
        Err(source) => {
            release(relay.bus.store(), &lease).await;
            return Err(DispatchError::Broker { target, source });
        }
    };
    let reachable = timeout(relay.options.lease / 2, until_connected(&*publisher))
        .await
        .is_ok();
    let acquired = renew(relay.bus.store(), &lease).await.unwrap_or(acquired);
    let mut engine = Engine::new(parts(relay, publisher), lease.clone(), acquired, Mode::Once);
    let end = if reachable {
        engine.run(&CancellationToken::new()).await
    } else {
        End::BrokerAway
    };
    let tally = engine.tally();
    engine.into_unsettled().settle().await;
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
