//! The runtime: relay, consumers and upkeep under one roof, with one shutdown.

mod health;
mod upkeep;

use std::{collections::HashSet, fmt, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

pub use health::{Health, HealthReport};

use crate::{
    broker::{Broker, BrokerError},
    bus::Bus,
    consumer::{BuildError, Built, Consumer, DatabaseWatch, Group, SharedConsumerStatus},
    error::{StoreError, StoreErrorKind},
    policy::Backoff,
    relay::{Relay, RelayOptions},
    store::{InboxStore, OutboxStore, Store},
    telemetry::{Chain, OutageLog},
};

const START_RETRY: Backoff =
    Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));

type Mount<S> = Box<dyn FnOnce(&Bus<S>) -> Result<Built, BuildError> + Send>;

/// Relay and consumers of one process.
///
/// ```no_run
/// # use outbox_core::{Broker, Bus, Consumer, HandlerError, IntegrationEvent, RelayOptions, State, handler};
/// # use outbox_core::store::{InboxStore, OutboxStore};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, IntegrationEvent)]
/// # #[event(subject = "shop.orders.placed")]
/// # struct OrderPlaced { order_id: u64 }
/// # #[derive(Clone)]
/// # struct App;
/// # #[handler(consumer = "shipping")]
/// # async fn create_shipment(_: OrderPlaced, _: State<App>) -> Result<(), HandlerError> { Ok(()) }
/// # async fn example<S: OutboxStore + InboxStore>(
/// #     bus: Bus<S>, broker: impl Broker, app: App, shutdown: tokio_util::sync::CancellationToken,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// bus.runtime(broker)
///     .state(app)
///     .relay(RelayOptions::default())
///     .consumer(Consumer::of(create_shipment {}))
///     .run(shutdown)
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "a runtime does nothing until it runs"]
pub struct Runtime<S: Store, B, St = ()> {
    bus: Bus<S>,
    broker: B,
    state: St,
    relay: Option<RelayOptions>,
    consumers: Vec<(&'static str, SharedConsumerStatus, Mount<S>)>,
    stop_timeout: Duration,
    inbox_retention: Duration,
    health: Health,
}

impl<S: Store> Bus<S> {
    /// Starts composing a runtime. The broker enters here, so that a process that only publishes
    /// needs none.
    pub fn runtime<B: Broker>(&self, broker: B) -> Runtime<S, B> {
        Runtime {
            bus: self.clone(),
            broker,
            state: (),
            relay: None,
            consumers: Vec::new(),
            stop_timeout: Duration::from_secs(25),
            inbox_retention: Duration::from_secs(7 * 24 * 60 * 60),
            health: Health::default(),
        }
    }
}

/// How a runtime ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Handlers that did not finish in time. Their transactions were rolled back and their messages
    /// handed back.
    pub abandoned: usize,
    /// The relay settled everything and gave its lease up. If not, another relay has to wait until
    /// the lease runs out.
    pub relay_released: bool,
}

/// Why a runtime could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A consumer is put together wrongly.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The tables are missing or of another version.
    #[error("the runtime cannot use its database")]
    Store(#[from] StoreError),
    /// A stream, durable or right is missing, or differs from what is needed.
    #[error("the runtime cannot use its broker")]
    Broker(#[from] BrokerError),
}

impl<S: Store, B: Broker, St: Clone + Send + Sync + 'static> Runtime<S, B, St> {
    /// Sets the application state that [`State`](crate::State) arguments of the consumers mounted
    /// after this call are taken from. Call it before [`consumer`](Self::consumer): a consumer whose
    /// handlers want a state does not fit a runtime that has none yet ("expected `Runtime<_, _, App>`,
    /// found `Runtime<_, _, ()>`", or the other way round for `Consumer`).
    pub fn state<T: Clone + Send + Sync + 'static>(self, state: T) -> Runtime<S, B, T> {
        Runtime {
            bus: self.bus,
            broker: self.broker,
            state,
            relay: self.relay,
            consumers: self.consumers,
            stop_timeout: self.stop_timeout,
            inbox_retention: self.inbox_retention,
            health: self.health,
        }
    }

    /// Runs a relay for the bus's target.
    pub fn relay(mut self, options: RelayOptions) -> Self {
        self.relay = Some(options);
        self
    }

    /// How long a stop may take. Default 25 s: less than the 30 s that Kubernetes grants; at
    /// most an hour.
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = timeout.min(Duration::from_hours(1));
        self
    }

    /// How long the inbox remembers a handled message. Default 7 days. It must be longer than a
    /// message can be redelivered or replayed; a stream that keeps messages longer is warned about.
    pub fn inbox_retention(mut self, retention: Duration) -> Self {
        self.inbox_retention = retention;
        self
    }

    /// What the runtime tells about itself, for health endpoints. Valid before, while and after it
    /// runs.
    pub fn health(&self) -> Health {
        self.health.clone()
    }
}

impl<S: OutboxStore + InboxStore, B: Broker, St: Clone + Send + Sync + 'static> Runtime<S, B, St> {
    /// Mounts a consumer. Its handlers take their [`State`](crate::State) from what
    /// [`state`](Self::state) has been given, so that call comes first; without it, or before it, the
    /// state is `()`.
    pub fn consumer(mut self, consumer: Consumer<S, St>) -> Self {
        let state = self.state.clone();
        let (name, status) = (consumer.name(), SharedConsumerStatus::new(consumer.name()));
        self.health.add_consumer(status.clone());
        self.consumers.push((
            name,
            status,
            Box::new(move |bus| consumer.build(bus, &state)),
        ));
        self
    }

    /// Runs until `shutdown` is cancelled, then stops gracefully: consumers stop pulling and finish
    /// what they have begun, the relay settles what is in flight and gives its lease up.
    ///
    /// A database or broker that is away is waited for, at the start as later.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`] if it cannot start: its [sources](std::error::Error::source) tell what is wrong and
    /// what to do. They are also logged, and stand among the problems of the [`health`](Self::health).
    /// Nothing runs then, so let the program end: await the runtime beside what else may end it, and do not
    /// spawn it and forget about it.
    ///
    /// ```no_run
    /// # use outbox_core::{Broker, Runtime, error::BoxError, store::{InboxStore, OutboxStore}};
    /// # use tokio_util::sync::CancellationToken;
    /// # async fn ctrl_c() {}
    /// # async fn example<S: OutboxStore + InboxStore>(runtime: Runtime<S, impl Broker>) -> Result<(), BoxError> {
    /// let shutdown = CancellationToken::new();
    /// let mut running = tokio::spawn(runtime.run(shutdown.clone()));
    /// tokio::select! {
    ///     ended = &mut running => { ended??; } // it could not start
    ///     () = ctrl_c() => {
    ///         shutdown.cancel();
    ///         running.await??;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons what is running. Nothing is lost; messages come again after the
    /// ack wait, and the relay's lease has to run out.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Stopped, RuntimeError> {
        let health = self.health.clone();
        // However it ends, by being dropped or by a panic as well, it does not live any more.
        let _stopped = health.clone().stopped_when_dropped();
        let ended = self.run_until(shutdown).await;
        if let Err(error) = &ended {
            let cause = Chain(error).to_string();
            tracing::error!(error = cause, "the runtime could not start");
            health.could_not_start(cause);
        }
        ended
    }

    async fn run_until(self, shutdown: CancellationToken) -> Result<Stopped, RuntimeError> {
        let mut built = Vec::new();
        let mut names = HashSet::new();
        for (name, status, build) in self.consumers {
            if !names.insert(name) {
                return Err(BuildError::Twice { consumer: name }.into());
            }
            built.push((build(&self.bus)?, status));
        }
        // Waiting for a database or broker that is away is living, too.
        self.health.running(true);
        let store = self.bus.store();
        match wait_for_schema(store, self.health.database(), &shutdown).await {
            Ok(true) => {}
            Ok(false) => {
                return Ok(Stopped {
                    abandoned: 0,
                    relay_released: true,
                });
            }
            Err(error) => return Err(error.into()),
        }
        let relay_stop = CancellationToken::new();
        let _stop_relay_when_dropped = relay_stop.clone().drop_guard();
        let mut background = JoinSet::new();
        let mut relays = JoinSet::new();
        if let Some(options) = self.relay {
            upkeep::compare_archive(options.retention, self.inbox_retention);
            let relay = Relay::new(self.bus.clone(), self.broker.clone()).options(options);
            self.health.set_relay(relay.shared_status().clone());
            let stop = relay_stop.clone();
            relays.spawn(async move { relay.run_until(stop).await });
        }
        let specs: Vec<_> = built
            .iter()
            .map(|(built, _)| built.settings.spec())
            .collect();
        let starting = Group::start(store, &self.broker, built, self.health.database());
        let group = tokio::select! {
            group = starting => match group {
                Ok(group) => Some(group),
                Err(error) => {
                    self.health.running(false);
                    relay_stop.cancel();
                    while relays.join_next().await.is_some() {}
                    return Err(error.into());
                }
            },
            () = shutdown.cancelled() => None,
        };
        background.spawn(upkeep::check_retention(
            self.broker.clone(),
            specs,
            self.inbox_retention,
        ));
        background.spawn(upkeep::observe(
            self.bus.clone(),
            self.broker.clone(),
            self.health.clone(),
        ));
        background.spawn(upkeep::prune(store.clone(), self.inbox_retention));

        tokio::select! {
            () = shutdown.cancelled() => {}
            // It never ends by itself; a panic in it is a defect that must not go unseen.
            Some(ended) = relays.join_next(), if !relays.is_empty() => {
                tracing::error!(panicked = ended.is_err(), "the relay ended by itself; stopping the runtime");
            }
        }
        self.health.running(false);
        let began = Instant::now();
        let abandoned = match group {
            Some(group) => {
                let end = began + self.stop_timeout;
                group.stop(began + self.stop_timeout * 4 / 5, end).await
            }
            None => 0,
        };
        background.shutdown().await;
        // Only now, so that what the last handlers published goes out as well.
        relay_stop.cancel();
        let relays_done = async {
            let mut released = true;
            while let Some(ended) = relays.join_next().await {
                released &= ended.unwrap_or(false);
            }
            released
        };
        let relay_released = tokio::time::timeout_at(began + self.stop_timeout, relays_done)
            .await
            .unwrap_or(false);
        if !relay_released {
            tracing::warn!("the relay did not give its lease up in time; it has to run out");
        }
        tracing::info!(abandoned, relay_released, took = ?began.elapsed(), "the runtime has stopped");
        Ok(Stopped {
            abandoned,
            relay_released,
        })
    }
}

/// Waits for a database that is away; `false` if the runtime is to stop meanwhile.
async fn wait_for_schema<S: Store>(
    store: &S,
    database: &DatabaseWatch,
    shutdown: &CancellationToken,
) -> Result<bool, StoreError> {
    let mut outage = OutageLog::new("checking the schema");
    loop {
        let checked = tokio::select! {
            checked = store.check_schema() => checked,
            // A database that does not answer must not hold up the stop.
            () = shutdown.cancelled() => return Ok(false),
        };
        match checked {
            Ok(()) => {
                outage.worked("start");
                database.up();
                return Ok(true);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    StoreErrorKind::Unavailable | StoreErrorKind::Busy
                ) =>
            {
                outage.failed("start", &error);
                database.down();
                tokio::select! {
                    () = tokio::time::sleep(START_RETRY.delay(outage.failures())) => {}
                    () = shutdown.cancelled() => return Ok(false),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

impl<S: Store, B, St> fmt::Debug for Runtime<S, B, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let consumers: Vec<_> = self.consumers.iter().map(|(name, ..)| name).collect();
        f.debug_struct("Runtime")
            .field("bus", &self.bus)
            .field("consumers", &consumers)
            .finish_non_exhaustive()
    }
}
