//! One delivery from its arrival to its settlement.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};
use tracing::Instrument;

use super::{
    alone::Alone,
    delivery::{Delivery, DeliveryService, Message, Outcome, Started},
    failure::{DeliveryError, DeliveryErrorKind, Panicked},
    outage::DatabaseWatch,
    settings::Settings,
    signs::SignsOfLife,
    slots::{Room, Slot},
    status::SharedConsumerStatus,
    verdict::{self, NotReady, Verdict},
};
use crate::{
    broker::{Broker, DeadLetter, DeadReason, Delivered, DeliveryHandle},
    envelope::Envelope,
    error::{BoxError, StoreError},
    policy::Backoff,
    store::{AttemptEnd, InboxStore, Ledger},
    telemetry::{self, Chain, one_line, short},
    wire,
};

/// Uncounted ends in a row (busy) before one is counted after all.
const BUSY_LIMIT: u32 = 20;
/// Uncounted ends in a row after which a message no longer waits for a build that can handle it.
const DEPLOY_TRIES: u32 = 15;
const BUSY: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(2));
/// After an outage: growing with the deliveries, so that a message that brings the database down
/// returns ever more rarely.
pub(super) const AFTER_OUTAGE: Backoff =
    Backoff::exponential(Duration::from_millis(200), Duration::from_secs(60));
/// When a suspect cannot run alone because others take long.
const SUSPECT_RETRY: Backoff =
    Backoff::exponential(Duration::from_secs(1), Duration::from_secs(30));
/// When a dead letter could not be stored.
const DEAD_LETTER_RETRY: Backoff =
    Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));
/// The longest error text that is kept, in characters.
pub(super) const ERROR_TEXT: usize = 1000;

/// What the attempts of one consumer share.
pub(super) struct Shared<S, B> {
    pub(super) store: S,
    pub(super) broker: B,
    pub(super) settings: Settings,
    pub(super) alone: Alone,
    pub(super) database: DatabaseWatch,
    /// Cancelled when handlers are to be abandoned: the grace period of a stop has passed.
    pub(super) abandon: CancellationToken,
    pub(super) status: SharedConsumerStatus,
}

/// How a delivery is settled.
#[derive(Debug)]
pub(super) enum Settlement {
    Ack,
    /// Hand it back, to be delivered again after the delay.
    Back(Duration),
    Dead {
        reason: DeadReason,
        error: String,
        ledger: Ledger,
    },
}

/// Handles one delivery, in its `slot` if it has one of its own, and settles it.
///
/// What is committed has only its acknowledgement before it, so its slot is free then.
pub(super) async fn run<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: Arc<Shared<S, B>>,
    delivered: Delivered<H>,
    service: DeliveryService,
    slot: Option<Slot>,
) {
    let consumer = Arc::clone(&shared.settings.name);
    let mut signs = SignsOfLife::new(&shared.settings);
    let mut turn = None;
    if let Some(slot) = &slot {
        // The one before it may still commit.
        turn = signs.during(&[&delivered.handle], slot.turn()).await;
        if turn.is_none() {
            return settle(&shared, &delivered, Settlement::Back(Duration::ZERO)).await;
        }
    }
    let room = slot.as_ref().map(|slot| slot.room.clone());
    let decide = decide(&shared, &delivered, service, room.unwrap_or_default());
    let decide = AssertUnwindSafe(decide).catch_unwind();
    let settlement = signs.during(&[&delivered.handle], decide).await;
    // `decide` catches what handlers and layers do; this is for our own mistakes.
    let settlement = settlement.unwrap_or_else(|panic| {
        tracing::error!(%consumer, panic = %Panicked::from_payload(panic.as_ref()), "handling a message panicked outside its handler");
        Settlement::Back(AFTER_OUTAGE.base(delivered.deliveries.try_into().unwrap_or(u32::MAX)))
    });
    let held = (!matches!(settlement, Settlement::Ack)).then_some((slot, turn));
    settle(&shared, &delivered, settlement).await;
    drop(held);
}

async fn decide<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: &Shared<S, B>,
    delivered: &Delivered<H>,
    service: DeliveryService,
    room: Room,
) -> Settlement {
    let settings = &shared.settings;
    let envelope = match wire::incoming(&delivered.message, delivered.origin.stored_at) {
        Ok(envelope) => envelope,
        Err(error) => {
            return Settlement::Dead {
                reason: DeadReason::Undecodable,
                error: error.to_string(),
                ledger: Ledger::default(),
            };
        }
    };
    // The attempt ledger holds only messages that failed or were delivered again.
    let again = delivered.deliveries > 1;
    let mut ledger = Ledger::default();
    if again {
        match until_database_works(shared, || shared.store.ledger(&settings.name, envelope.id))
            .await
        {
            Some(known) => ledger = known,
            None => return Settlement::Back(Duration::ZERO),
        }
    } else if delivered.replay.is_some()
        && until_database_works(shared, || shared.store.clear(&settings.name, envelope.id))
            .await
            .is_none()
    {
        return Settlement::Back(Duration::ZERO);
    }
    if !settings.takes(&envelope.event_type) {
        return unknown_type(shared, &envelope).await;
    }
    if ledger.attempts >= settings.max_attempts {
        let error = ledger
            .last_error
            .clone()
            .unwrap_or_else(|| "it failed as often as allowed".to_owned());
        return Settlement::Dead {
            reason: DeadReason::OutOfAttempts,
            error,
            ledger,
        };
    }
    if ledger.lone_starts >= settings.max_crashes {
        let error = format!(
            "its process vanished {} times while handling nothing else: it crashes, or is killed for memory",
            ledger.lone_starts
        );
        return Settlement::Dead {
            reason: DeadReason::Crashed,
            error,
            ledger,
        };
    }
    // A start that never ended makes the message a suspect: it runs alone in this process, and only
    // a process that vanishes then counts against it.
    let suspect = ledger.open_starts > 0;
    let permit = tokio::select! {
        permit = shared.alone.enter(suspect) => permit,
        () = shared.abandon.cancelled() => return Settlement::Back(Duration::ZERO),
    };
    let Some(permit) = permit else {
        tracing::info!(consumer = %settings.name, message_id = %envelope.id, "a suspect message could not run alone soon; it is handed back");
        return Settlement::Back(
            SUSPECT_RETRY.delay(u32::try_from(delivered.deliveries).unwrap_or(u32::MAX)),
        );
    };
    if again {
        let opened = until_database_works(shared, || {
            shared
                .store
                .open_start(&settings.name, envelope.id, suspect)
        });
        if opened.await.is_none() {
            return Settlement::Back(Duration::ZERO);
        }
    }
    let delivery = Delivery {
        message: Message {
            envelope: envelope.clone(),
            origin: delivered.origin.clone(),
        },
        others: Vec::new(),
        consumer: Arc::clone(&settings.name),
        attempt: ledger.attempts + 1,
        deliveries: delivered.deliveries,
        deadline: Instant::now() + settings.timeout,
        in_ledger: again,
        started: Started::default(),
        room,
    };
    let (began, epoch) = (Instant::now(), shared.store.epoch());
    // Handlers' own log lines stand inside this span.
    let span = tracing::info_span!(
        "handle", consumer = %settings.name, message_id = %envelope.id, event_type = envelope.event_type,
        subject = short(&envelope.subject), attempt = delivery.attempt, deliveries = delivery.deliveries,
        correlation_id = short(&envelope.correlation_id),
        traceparent = envelope.trace.traceparent.as_deref().map(short)
    );
    let result = call(shared, delivery, service).instrument(span).await;
    drop(permit);
    let attempt = Attempt {
        shared,
        delivered,
        envelope: &envelope,
        ledger,
        opened: again,
        lone: suspect,
        epoch,
    };
    attempt.conclude(result, began.elapsed()).await
}

/// No handler of this build takes the type. The durable is shared with other builds, so a newer one
/// that is being deployed may have a handler: the message waits for it.
async fn unknown_type<S: InboxStore, B: Broker>(
    shared: &Shared<S, B>,
    envelope: &Envelope<Bytes>,
) -> Settlement {
    let settings = &shared.settings;
    let error = format!(
        "no handler of consumer `{}` takes events of type `{}`; it takes {:?}",
        settings.name,
        one_line(&envelope.event_type, 200),
        settings.event_types
    );
    let end = AttemptEnd {
        opened: false,
        lone: false,
        counted: false,
        error: Some(error.clone()),
    };
    tracing::warn!(
        consumer = %settings.name, message_id = %envelope.id, subject = short(&envelope.subject), error,
        "a message waits for a build that takes its type"
    );
    let recorded = until_database_works(shared, || {
        shared.store.end_start(&settings.name, envelope.id, &end)
    });
    wait_for_deploy(settings, DeadReason::UnknownType, error, recorded.await)
}

/// A message that only another build can handle is handed back to wait for it, for so long.
fn wait_for_deploy(
    settings: &Settings,
    reason: DeadReason,
    error: String,
    recorded: Option<Ledger>,
) -> Settlement {
    match recorded {
        Some(ledger) if ledger.uncounted >= DEPLOY_TRIES => Settlement::Dead {
            reason,
            error,
            ledger,
        },
        Some(_) => Settlement::Back(settings.newer_version_delay),
        None => Settlement::Back(Duration::ZERO),
    }
}

/// Runs the service within the time-out. `None` if the runtime stops and abandons handlers.
pub(super) async fn call<S: InboxStore, B: Broker>(
    shared: &Shared<S, B>,
    delivery: Delivery,
    mut service: DeliveryService,
) -> Option<Result<Outcome, BoxError>> {
    let (deadline, started) = (delivery.deadline, delivery.started.clone());
    let work = AssertUnwindSafe(async {
        let ready = service
            .ready()
            .await
            .map_err(|error| -> BoxError { NotReady(error).into() })?;
        ready.call(delivery).await
    })
    .catch_unwind();
    tokio::select! {
        biased;
        result = timeout_at(deadline, work) => Some(match result {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => {
                let text = Panicked::from_payload(panic.as_ref());
                Err(DeliveryError::new(DeliveryErrorKind::Panicked, text).into())
            }
            Err(_) if started.get() => {
                let after = shared.settings.timeout;
                let text = "it was stopped and its transaction rolled back";
                Err(DeliveryError::new(DeliveryErrorKind::TimedOut(after), text).into())
            }
            Err(_) => {
                let text = "the time-out passed before the handler could begin: the database or a layer made it wait";
                Err(NotReady(text.into()).into())
            }
        }),
        () = shared.abandon.cancelled() => None,
    }
}

/// A started attempt on its way to a settlement.
struct Attempt<'a, S, B, H> {
    shared: &'a Shared<S, B>,
    delivered: &'a Delivered<H>,
    envelope: &'a Envelope<Bytes>,
    ledger: Ledger,
    opened: bool,
    lone: bool,
    /// The store's epoch when the handler began.
    epoch: u64,
}

impl<S: InboxStore, B: Broker, H: DeliveryHandle> Attempt<'_, S, B, H> {
    async fn conclude(
        self,
        result: Option<Result<Outcome, BoxError>>,
        took: Duration,
    ) -> Settlement {
        let (consumer, event_type) = (&self.shared.settings.name, &self.envelope.event_type);
        if result.is_some() {
            telemetry::handler_duration(consumer, event_type, took);
        }
        let error = match result {
            Some(Ok(outcome)) if !outcome.is_duplicate() => {
                telemetry::handled(consumer, event_type, "ok", 1);
                if let Ok(age) = (OffsetDateTime::now_utc() - self.envelope.occurred_at).try_into()
                {
                    telemetry::critical_time(consumer, age);
                }
                tracing::debug!(%consumer, message_id = %self.envelope.id, event_type, "handled");
                // With an inbox the ledger was cleared in the handler's own transaction.
                if self.opened && !self.shared.settings.with_inbox {
                    self.forget().await;
                }
                return Settlement::Ack;
            }
            Some(Ok(_)) => {
                telemetry::handled(consumer, event_type, "duplicate", 1);
                tracing::debug!(%consumer, message_id = %self.envelope.id, event_type, "already handled");
                if self.opened {
                    self.forget().await;
                }
                return Settlement::Ack;
            }
            Some(Err(error)) => error,
            None => {
                // Stopping: the start has ended and is no attempt.
                if self.end(false, None).await.is_none() {
                    tracing::debug!(%consumer, message_id = %self.envelope.id, "an abandoned start could not be recorded as ended");
                }
                return Settlement::Back(Duration::ZERO);
            }
        };
        let text = one_line(&Chain(error.as_ref()).to_string(), ERROR_TEXT);
        let verdict = verdict::judge(&self.shared.store, self.epoch, &error).await;
        let result = match verdict {
            Verdict::Outage | Verdict::Interrupted => "outage",
            Verdict::Busy => "busy",
            Verdict::Failed(_) | Verdict::NewerVersion => "retry",
            Verdict::Dead(_) => "dead",
        };
        telemetry::handled(consumer, event_type, result, 1);
        tracing::warn!(
            %consumer, message_id = %self.envelope.id, event_type, subject = short(&self.envelope.subject),
            attempt = self.ledger.attempts + 1, deliveries = self.delivered.deliveries, error = text, "handling failed: {result}"
        );
        self.apply(verdict, text).await
    }

    async fn apply(self, verdict: Verdict, text: String) -> Settlement {
        let settings = &self.shared.settings;
        let deliveries = u32::try_from(self.delivered.deliveries).unwrap_or(u32::MAX);
        match verdict {
            Verdict::Outage => {
                self.shared.database.down();
                // An open start is closed first: otherwise the message would come back as a suspect.
                if self.opened && self.end(false, None).await.is_none() {
                    return Settlement::Back(Duration::ZERO);
                }
                Settlement::Back(AFTER_OUTAGE.delay(deliveries))
            }
            Verdict::Busy | Verdict::Interrupted => {
                let delays = if verdict == Verdict::Busy {
                    BUSY
                } else {
                    AFTER_OUTAGE
                };
                let counted = self.ledger.uncounted + 1 >= BUSY_LIMIT;
                match self.end(counted, Some(text.clone())).await {
                    Some(after) if after.attempts >= settings.max_attempts => Settlement::Dead {
                        reason: DeadReason::OutOfAttempts,
                        error: text,
                        ledger: after,
                    },
                    Some(after) => Settlement::Back(delays.delay(after.uncounted.max(1))),
                    None => Settlement::Back(Duration::ZERO),
                }
            }
            Verdict::Failed(delay) => match self.end(true, Some(text.clone())).await {
                Some(after) if after.attempts >= settings.max_attempts => Settlement::Dead {
                    reason: DeadReason::OutOfAttempts,
                    error: text,
                    ledger: after,
                },
                Some(after) => Settlement::Back(
                    delay.unwrap_or_else(|| settings.backoff.delay(after.attempts)),
                ),
                None => Settlement::Back(Duration::ZERO),
            },
            Verdict::NewerVersion => {
                let recorded = self.end(false, Some(text.clone())).await;
                wait_for_deploy(settings, DeadReason::NewerVersion, text, recorded)
            }
            Verdict::Dead(reason) => match self.end(true, Some(text.clone())).await {
                Some(ledger) => Settlement::Dead {
                    reason,
                    error: text,
                    ledger,
                },
                None => Settlement::Back(Duration::ZERO),
            },
        }
    }

    /// Records how the start ended, waiting for the database if need be: a delivery is not handed
    /// back before its end is recorded. `None` if the runtime stops meanwhile.
    async fn end(&self, counted: bool, error: Option<String>) -> Option<Ledger> {
        if !self.opened && !counted && error.is_none() {
            return Some(self.ledger.clone());
        }
        let end = AttemptEnd {
            opened: self.opened,
            lone: self.lone,
            counted,
            error,
        };
        let (shared, id) = (self.shared, self.envelope.id);
        until_database_works(shared, || {
            shared.store.end_start(&shared.settings.name, id, &end)
        })
        .await
    }

    async fn forget(&self) {
        if let Err(error) = self
            .shared
            .store
            .clear(&self.shared.settings.name, self.envelope.id)
            .await
        {
            tracing::debug!(message_id = %self.envelope.id, error = %Chain(&error), "a ledger row stays until it is pruned");
        }
    }
}

/// Repeats `statement` until it succeeds. `None` if the runtime stops and abandons handlers.
async fn until_database_works<S: InboxStore, B: Broker, T, F>(
    shared: &Shared<S, B>,
    statement: impl Fn() -> F,
) -> Option<T>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut failures = 0;
    loop {
        match statement().await {
            Ok(value) => {
                if failures > 0 {
                    shared.status.update(|status| status.store_error = None);
                }
                return Some(value);
            }
            Err(error) => {
                failures += 1;
                let text = Chain(&error).to_string();
                shared
                    .status
                    .update(|status| status.store_error = Some(text));
                tracing::debug!(consumer = %shared.settings.name, error = %Chain(&error), failures, "a ledger statement failed; trying again");
                if shared.store.ping().await.is_err() {
                    shared.database.down();
                }
                tokio::select! {
                    () = sleep(AFTER_OUTAGE.delay(failures).min(Duration::from_secs(2))) => {}
                    () = shared.abandon.cancelled() => return None,
                }
            }
        }
    }
}

// ===== settling =====

pub(super) async fn settle<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: &Shared<S, B>,
    delivered: &Delivered<H>,
    settlement: Settlement,
) {
    let consumer = &shared.settings.name;
    let confirmed = match settlement {
        Settlement::Ack => delivered.handle.ack().await,
        Settlement::Back(delay) => delivered.handle.nak(delay).await,
        Settlement::Dead {
            reason,
            error,
            ledger,
        } => dead_letter(shared, delivered, reason, error, ledger).await,
    };
    if let Err(error) = confirmed {
        // The message comes back after the ack wait; the inbox knows whether it is done.
        tracing::warn!(
            %consumer, stream = %delivered.origin.stream, sequence = delivered.origin.sequence,
            error = %Chain(&error), "the broker did not confirm a settlement; the message will be delivered again"
        );
    }
}

/// Stores the dead letter, then terminates the original, then clears the ledger: in this order a
/// crash in between repeats a step and loses nothing.
async fn dead_letter<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: &Shared<S, B>,
    delivered: &Delivered<H>,
    reason: DeadReason,
    error: String,
    ledger: Ledger,
) -> Result<(), crate::broker::BrokerError> {
    let consumer = &shared.settings.name;
    let envelope = wire::incoming(&delivered.message, delivered.origin.stored_at).ok();
    let id = envelope.as_ref().map(|envelope| envelope.id);
    // Another process may have handled it meanwhile. A handler that ended its own transaction has
    // left an inbox row as well, and that is no reason to forget its events.
    if let Some(id) = id
        && reason != DeadReason::TransactionEnded
    {
        match until_database_works(shared, || shared.store.is_recorded(consumer, id)).await {
            Some(true) => return delivered.handle.ack().await,
            Some(false) => {}
            // Stopping while nobody can tell.
            None => return delivered.handle.nak(Duration::ZERO).await,
        }
    }
    let letter = DeadLetter {
        consumer: consumer.to_string(),
        origin: delivered.origin.clone(),
        message: delivered.message.clone(),
        reason,
        first_error: ledger.first_error.filter(|first| *first != error),
        error,
        attempts: ledger.attempts,
        deliveries: delivered.deliveries,
        replays: delivered.replay.unwrap_or(0),
        first_failed_at: ledger.first_failed_at,
        dead_at: OffsetDateTime::now_utc(),
    };
    if let Err(refused) = shared.broker.dead_letter(&letter).await {
        tracing::error!(
            %consumer, stream = %delivered.origin.stream, sequence = delivered.origin.sequence, %reason,
            error = %Chain(&refused), "a dead letter could not be stored; the message stays and is tried again"
        );
        let deliveries = u32::try_from(delivered.deliveries).unwrap_or(u32::MAX);
        return delivered
            .handle
            .nak(DEAD_LETTER_RETRY.delay(deliveries))
            .await;
    }
    telemetry::dead_lettered(consumer, reason.as_str());
    tracing::error!(
        %consumer, stream = %delivered.origin.stream, sequence = delivered.origin.sequence,
        message_id = id.map(tracing::field::display), %reason, attempts = letter.attempts, error = letter.error, "dead-lettered"
    );
    delivered.handle.terminate(reason.as_str()).await?;
    if let Some(id) = id
        && let Err(error) = shared.store.clear(consumer, id).await
    {
        tracing::debug!(message_id = %id, error = %Chain(&error), "a ledger row stays until it is pruned");
    }
    Ok(())
}
