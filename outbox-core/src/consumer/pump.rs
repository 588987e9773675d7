//! From a subscription to attempts: pulls as many messages as there are free slots.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    attempt::{self, Shared},
    batch,
    delivery::DeliveryService,
    settings::BatchSettings,
    slots::Slots,
    status::{ConsumerState, SharedConsumerStatus},
};
use crate::{
    broker::{Broker, BrokerError, Delivered, DeliveryHandle, Subscription},
    policy::Backoff,
    store::InboxStore,
    telemetry::{self, OutageLog},
};

const REOPEN: Backoff = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(10));
const PENDING_EVERY: Duration = Duration::from_secs(5);
/// Replayed dead letters that are handled at once, beside the consumer's own messages.
const REPLAY_SLOTS: usize = 2;

/// What kind of messages a pump takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Messages,
    Replays,
}

pub(super) struct Pump<S: InboxStore, B: Broker> {
    pub(super) shared: Arc<Shared<S, B>>,
    pub(super) service: DeliveryService,
    pub(super) kind: Kind,
    pub(super) tasks: TaskTracker,
    pub(super) status: SharedConsumerStatus,
}

impl<S: InboxStore, B: Broker> Pump<S, B> {
    // Not `async fn`: the future must not borrow the pump, whose service is not `Sync`.
    pub(super) fn open(
        &self,
    ) -> impl Future<Output = Result<B::Subscription, BrokerError>> + Send + use<S, B> {
        let (shared, kind) = (Arc::clone(&self.shared), self.kind);
        async move {
            let spec = shared.settings.spec();
            match kind {
                Kind::Messages => shared.broker.subscribe(&spec).await,
                Kind::Replays => shared.broker.subscribe_replays(&spec).await,
            }
        }
    }

    /// Pulls until `stop` is cancelled, opening the subscription again whenever it ends.
    pub(super) async fn run(
        mut self,
        mut subscription: Option<B::Subscription>,
        stop: CancellationToken,
    ) {
        let mut outage = OutageLog::new("the consumer's subscription");
        // As many as ever, whatever becomes of subscriptions.
        let slots = Slots::new(match self.kind {
            Kind::Messages => self.shared.settings.concurrency,
            Kind::Replays => REPLAY_SLOTS,
        });
        let name = Arc::clone(&self.shared.settings.name);
        while !stop.is_cancelled() {
            let opened = match subscription.take() {
                Some(subscription) => Ok(subscription),
                None => tokio::select! {
                    opened = self.open() => opened,
                    () = stop.cancelled() => break,
                },
            };
            let error = match opened {
                Ok(subscription) => {
                    self.tell(ConsumerState::Running);
                    match self.pull(subscription, &slots, &stop, &mut outage).await {
                        Ok(()) => break,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            outage.failed(&name, &error);
            self.tell(ConsumerState::Failing(telemetry::Chain(&error).to_string()));
            tokio::select! {
                () = sleep(REOPEN.delay(outage.failures())) => {}
                () = stop.cancelled() => break,
            }
        }
        self.tell(ConsumerState::Stopped);
    }

    /// Tells what this pump is doing: of the messages as the consumer's state, of replays apart.
    fn tell(&self, state: ConsumerState) {
        self.status.update(|status| match (self.kind, state) {
            (Kind::Messages, state) => status.state = state,
            (Kind::Replays, ConsumerState::Failing(error)) => status.replay_error = Some(error),
            (Kind::Replays, _) => status.replay_error = None,
        });
    }

    /// Pulls until `stop` is cancelled or the subscription ends.
    async fn pull(
        &mut self,
        mut subscription: B::Subscription,
        slots: &Slots,
        stop: &CancellationToken,
        outage: &mut OutageLog,
    ) -> Result<(), BrokerError> {
        let batch = self.shared.settings.batch;
        let (ended, mut rest) = match (self.kind, batch) {
            (Kind::Messages, Some(batch)) => {
                self.pull_batches(&mut subscription, batch, slots, stop, outage)
                    .await
            }
            _ => {
                let ended = self
                    .pull_singles(&mut subscription, slots, stop, outage)
                    .await;
                (ended, Vec::new())
            }
        };
        if ended.is_ok() {
            slots.close();
        }
        rest.extend(subscription.close().await);
        hand_back(rest).await;
        ended
    }

    /// Pulls as many messages as there are free slots.
    #[allow(
        clippy::needless_pass_by_ref_mut,
        reason = "the service is not `Sync`, so `&self` would not be `Send`"
    )]
    async fn pull_singles(
        &mut self,
        subscription: &mut B::Subscription,
        slots: &Slots,
        stop: &CancellationToken,
        outage: &mut OutageLog,
    ) -> Result<(), BrokerError> {
        let name = Arc::clone(&self.shared.settings.name);
        let mut report = Report::new();
        loop {
            self.wait_for_database(stop).await;
            let free = slots.free();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                pulled = subscription.pull(free), if free > 0 => {
                    let deliveries = pulled?;
                    outage.worked(&name);
                    for delivered in deliveries {
                        // The pull never returns more than it was asked for, and only this loop
                        // takes room; should it ever, the rest waits here for some.
                        let slot = slots.take().await;
                        let (shared, service) = (Arc::clone(&self.shared), self.service.clone());
                        self.tasks.spawn(attempt::run(shared, delivered, service, slot));
                    }
                }
                () = slots.freed() => {}
                () = report.due() => self.report(subscription).await,
            }
        }
    }

    /// Pulls batches: while a slot is free, until one is full or its first message has waited long
    /// enough. Returns what was collected last and not started as well.
    #[allow(
        clippy::needless_pass_by_ref_mut,
        reason = "the service is not `Sync`, so `&self` would not be `Send`"
    )]
    async fn pull_batches(
        &mut self,
        subscription: &mut B::Subscription,
        batch: BatchSettings,
        slots: &Slots,
        stop: &CancellationToken,
        outage: &mut OutageLog,
    ) -> (Result<(), BrokerError>, Deliveries<B>) {
        let mut report = Report::new();
        loop {
            self.wait_for_database(stop).await;
            let mut collected: Deliveries<B> = Vec::new();
            // Nothing is fetched ahead of a free slot.
            let slot = tokio::select! {
                biased;
                () = stop.cancelled() => return (Ok(()), collected),
                slot = slots.take() => slot,
                () = report.due() => {
                    self.report(subscription).await;
                    continue;
                }
            };
            let mut full = None;
            while collected.len() < batch.size {
                let missing = batch.size - collected.len();
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return (Ok(()), collected),
                    () = until(full) => break,
                    pulled = subscription.pull(missing) => match pulled {
                        Ok(deliveries) => {
                            outage.worked(&self.shared.settings.name);
                            collected.extend(deliveries);
                            full = full.or_else(|| Some(Instant::now() + batch.linger));
                        }
                        Err(error) => return (Err(error), collected),
                    },
                    () = report.due() => self.report(subscription).await,
                    () = self.shared.database.until_down(), if collected.is_empty() => break,
                }
            }
            if collected.is_empty() {
                continue;
            }
            let (shared, service) = (Arc::clone(&self.shared), self.service.clone());
            self.tasks.spawn(async move {
                batch::run(shared, collected, service).await;
                drop(slot);
            });
        }
    }

    /// Waits while the database is away, or until `stop` is cancelled.
    #[allow(
        clippy::needless_pass_by_ref_mut,
        reason = "the service is not `Sync`, so `&self` would not be `Send`"
    )]
    async fn wait_for_database(&mut self, stop: &CancellationToken) {
        if self.shared.database.works() {
            return;
        }
        let name = &self.shared.settings.name;
        self.status.update(|status| status.paused = true);
        telemetry::consumer_paused(name, true);
        tokio::select! {
            () = self.shared.database.until_up() => {}
            () = stop.cancelled() => return,
        }
        self.status.update(|status| status.paused = false);
        telemetry::consumer_paused(name, false);
    }

    /// Tells how much waits in the stream.
    #[allow(
        clippy::needless_pass_by_ref_mut,
        reason = "neither the service nor the subscription is `Sync`"
    )]
    async fn report(&mut self, subscription: &mut B::Subscription) {
        if self.kind == Kind::Messages
            && let Ok(pending) = subscription.pending().await
        {
            telemetry::consumer_pending(&self.shared.settings.name, pending);
            self.status.update(|status| status.pending = Some(pending));
        }
    }
}

/// Deliveries of a broker.
type Deliveries<B> = Vec<Delivered<<<B as Broker>::Subscription as Subscription>::Handle>>;

/// When to tell how much waits in the stream.
struct Report(Interval);

impl Report {
    fn new() -> Self {
        let mut every = tokio::time::interval(PENDING_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(every)
    }

    async fn due(&mut self) {
        self.0.tick().await;
    }
}

/// Waits until then; for ever without.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Hands back what has arrived and was not started.
async fn hand_back<H: DeliveryHandle>(rest: Vec<Delivered<H>>) {
    let handed_back = join_all(
        rest.iter()
            .map(|delivered| delivered.handle.nak(Duration::ZERO)),
    )
    .await;
    for error in handed_back.into_iter().filter_map(Result::err) {
        tracing::debug!(error = %telemetry::Chain(&error), "a message could not be handed back; it comes again after the ack wait");
    }
}
