//! All consumers of a runtime: started together, stopped together.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    alone::Alone,
    attempt::Shared,
    mount::Built,
    outage::DatabaseWatch,
    pump::{Kind, Pump},
    signs::GRACE,
    status::SharedConsumerStatus,
};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind},
    store::InboxStore,
    telemetry::Chain,
};

/// How long abandoned handlers may take to roll back and hand their messages back: half of what is
/// left of the stop, within these bounds.
const LAST_SETTLEMENTS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// The running consumers.
#[derive(Debug)]
pub(crate) struct Group {
    stop: CancellationToken,
    abandon: CancellationToken,
    pumps: JoinSet<()>,
    tasks: TaskTracker,
}

impl Group {
    /// Opens all subscriptions and starts pulling.
    ///
    /// A configuration that is wrong is an error; a broker that is away is waited for.
    pub(crate) async fn start<S: InboxStore, B: Broker>(
        store: &S,
        broker: &B,
        consumers: Vec<(Built, SharedConsumerStatus)>,
        database: &DatabaseWatch,
    ) -> Result<Self, BrokerError> {
        let mut group = Self {
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            pumps: JoinSet::new(),
            tasks: TaskTracker::new(),
        };
        // The first question opens the connection that tells outages from handlers' own mistakes.
        if store.ping().await.is_err() {
            database.down();
        }
        let longest = consumers
            .iter()
            .map(|(built, _)| built.settings.timeout)
            .max()
            .unwrap_or_default();
        let alone = Alone::new(longest + GRACE);
        let mut pumps = Vec::new();
        for (built, status) in consumers {
            let shared = Arc::new(Shared {
                store: store.clone(),
                broker: broker.clone(),
                settings: built.settings,
                alone: alone.clone(),
                database: database.clone(),
                abandon: group.abandon.clone(),
                status: status.clone(),
            });
            pumps.extend([Kind::Messages, Kind::Replays].map(|kind| Pump {
                shared: Arc::clone(&shared),
                service: built.service.clone(),
                kind,
                tasks: group.tasks.clone(),
                status: status.clone(),
            }));
        }
        let subscriptions: Vec<_> = pumps.iter().map(Pump::open).collect();
        let mut opened = Vec::new();
        for (pump, subscription) in pumps.into_iter().zip(join_all(subscriptions).await) {
            let subscription = match subscription {
                Ok(subscription) => Some(subscription),
                Err(error) if error.kind() == BrokerErrorKind::Unavailable => {
                    tracing::warn!(consumer = %pump.shared.settings.name, error = %Chain(&error), "the broker cannot be reached; the consumer starts when it can");
                    None
                }
                Err(error) => return Err(error),
            };
            opened.push((pump, subscription));
        }
        for (pump, subscription) in opened {
            let stop = group.stop.clone();
            group.pumps.spawn(pump.run(subscription, stop));
        }
        group
            .pumps
            .spawn(database.clone().guard(store.clone(), group.stop.clone()));
        Ok(group)
    }

    /// Stops pulling, hands back what was not started, and waits for running handlers until
    /// `deadline`; then abandons them, which rolls back and hands their messages back. That leaves
    /// some time until `end` to others. Returns how many had to be abandoned.
    pub(crate) async fn stop(mut self, deadline: Instant, end: Instant) -> usize {
        self.stop.cancel();
        self.tasks.close();
        let finished = async {
            while self.pumps.join_next().await.is_some() {}
            self.tasks.wait().await;
        };
        if timeout_at(deadline, finished).await.is_ok() {
            return 0;
        }
        let abandoned = self.tasks.len();
        self.abandon.cancel();
        let (least, most) = LAST_SETTLEMENTS;
        let rest = end.saturating_duration_since(Instant::now()) / 2;
        if timeout(rest.clamp(least, most), self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                left = self.tasks.len(),
                "some handlers did not end in time; their messages come again after the ack wait"
            );
        }
        abandoned
    }
}

impl Drop for Group {
    /// A runtime that is dropped instead of stopped abandons its handlers.
    fn drop(&mut self) {
        self.stop.cancel();
        self.abandon.cancel();
    }
}
