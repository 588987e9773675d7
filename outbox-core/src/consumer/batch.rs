//! Several deliveries in one transaction.
//!
//! A batch that fails counts against nobody: it is halved until a message is alone, which is then handled
//! and judged as any other. So only the message that cannot be handled spends its attempts.

use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    attempt::{self, AFTER_OUTAGE, ERROR_TEXT, Settlement, Shared},
    delivery::{Delivery, DeliveryService, Message, Outcome, Started},
    failure::{DeliveryError, DeliveryErrorKind},
    signs::SignsOfLife,
    slots::Room,
    verdict::{self, Verdict},
};
use crate::{
    broker::{Broker, DeadReason, Delivered, DeliveryHandle},
    envelope::Envelope,
    error::BoxError,
    store::{InboxStore, Ledger},
    telemetry::{self, Chain, one_line},
    wire,
};

/// How many messages of a batch that could not be handled together are handled at once.
const SINGLES: usize = 4;

/// A delivery whose envelope has been read.
struct Read<H> {
    delivered: Delivered<H>,
    envelope: Envelope<Bytes>,
}

/// What becomes of a group that was handled together.
enum Verdicts {
    /// All are settled in this way.
    Settled(Settled),
    /// It is tried again in halves.
    Halve,
    /// Each is tried alone: one of them takes its time, and each half would take it as well.
    Scatter,
}

/// How all messages of a group are settled.
enum Settled {
    Ack,
    Back(Duration),
    Dead(DeadReason, String),
}

/// Handles deliveries together where that is possible, one by one where it is not, and settles them.
pub(super) async fn run<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: Arc<Shared<S, B>>,
    deliveries: Vec<Delivered<H>>,
    service: DeliveryService,
) {
    let mut signs = SignsOfLife::new(&shared.settings);
    let (mut groups, mut singles) = sort(&shared, deliveries);
    while let Some(mut group) = groups.pop() {
        if group.len() == 1 {
            singles.extend(group.into_iter().map(|read| read.delivered));
            continue;
        }
        let verdict = {
            // Those that wait for their turn are kept as well.
            let mut handles: Vec<&H> = Vec::new();
            handles.extend(group.iter().map(|read| &read.delivered.handle));
            handles.extend(groups.iter().flatten().map(|read| &read.delivered.handle));
            handles.extend(singles.iter().map(|delivered| &delivered.handle));
            let work = AssertUnwindSafe(together(&shared, &group, service.clone())).catch_unwind();
            signs.during(&handles, work).await
        };
        match verdict {
            Ok(Verdicts::Settled(settled)) => settle(&shared, group, &settled).await,
            Ok(Verdicts::Halve) => {
                let second = group.split_off(group.len() / 2);
                groups.extend([second, group]);
            }
            // A panic here is a mistake of our own: each message meets it alone, where it is logged.
            Ok(Verdicts::Scatter) | Err(_) => {
                singles.extend(group.into_iter().map(|read| read.delivered));
            }
        }
    }
    let mut waiting = VecDeque::from(singles);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < SINGLES
            && let Some(delivered) = waiting.pop_front()
        {
            let (shared, service) = (Arc::clone(&shared), service.clone());
            running.push(attempt::run(shared, delivered, service, None));
        }
        // Those that run send their own.
        let handles: Vec<&H> = waiting.iter().map(|delivered| &delivered.handle).collect();
        if signs.during(&handles, running.next()).await.is_none() {
            break;
        }
    }
}

/// Groups by type what can be handled together: messages that are delivered for the first time, of types
/// that are known. All others have a history that is theirs alone.
fn sort<S: InboxStore, B: Broker, H>(
    shared: &Shared<S, B>,
    deliveries: Vec<Delivered<H>>,
) -> (Vec<Vec<Read<H>>>, Vec<Delivered<H>>) {
    let mut groups: Vec<Vec<Read<H>>> = Vec::new();
    let mut singles = Vec::new();
    for delivered in deliveries {
        let first = delivered.deliveries == 1 && delivered.replay.is_none();
        let envelope = wire::incoming(&delivered.message, delivered.origin.stored_at);
        let (true, Ok(envelope)) = (first, envelope) else {
            singles.push(delivered);
            continue;
        };
        if !shared.settings.takes(&envelope.event_type) {
            singles.push(delivered);
            continue;
        }
        let read = Read {
            delivered,
            envelope,
        };
        let of_type = |group: &&mut Vec<Read<H>>| {
            group
                .first()
                .is_some_and(|first| first.envelope.event_type == read.envelope.event_type)
        };
        match groups.iter_mut().find(of_type) {
            Some(group) => group.push(read),
            None => groups.push(vec![read]),
        }
    }
    (groups, singles)
}

/// Handles a group in one transaction.
async fn together<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: &Shared<S, B>,
    group: &[Read<H>],
    service: DeliveryService,
) -> Verdicts {
    let settings = &shared.settings;
    let (consumer, size) = (&settings.name, group.len());
    let permit = tokio::select! {
        permit = shared.alone.enter(false) => permit,
        () = shared.abandon.cancelled() => return Verdicts::Settled(Settled::Back(Duration::ZERO)),
    };
    let mut messages = group.iter().map(|read| Message {
        envelope: read.envelope.clone(),
        origin: read.delivered.origin.clone(),
    });
    let Some(message) = messages.next() else {
        return Verdicts::Scatter;
    };
    let event_type = message.envelope.event_type.clone();
    let delivery = Delivery {
        message,
        others: messages.collect(),
        consumer: Arc::clone(consumer),
        attempt: 1,
        deliveries: 1,
        deadline: Instant::now() + settings.timeout,
        in_ledger: false,
        started: Started::default(),
        room: Room::default(),
    };
    let (began, epoch) = (Instant::now(), shared.store.epoch());
    let span = tracing::info_span!("handle", %consumer, event_type, messages = size);
    let result = attempt::call(shared, delivery, service)
        .instrument(span)
        .await;
    drop(permit);
    telemetry::handler_duration(consumer, &event_type, began.elapsed());
    match result {
        Some(Ok(outcome)) => {
            report(shared, group, &event_type, outcome);
            Verdicts::Settled(Settled::Ack)
        }
        // Stopping: no attempt has ended.
        None => Verdicts::Settled(Settled::Back(Duration::ZERO)),
        Some(Err(error)) => judge(shared, epoch, &error, &event_type, size).await,
    }
}

/// Tells metrics and log of a success.
fn report<S: InboxStore, B: Broker, H>(
    shared: &Shared<S, B>,
    group: &[Read<H>],
    event_type: &str,
    outcome: Outcome,
) {
    let consumer = &shared.settings.name;
    for (result, messages) in [
        ("ok", outcome.handled()),
        ("duplicate", outcome.duplicates()),
    ] {
        if messages > 0 {
            telemetry::handled(consumer, event_type, result, messages);
        }
    }
    let now = OffsetDateTime::now_utc();
    for read in group {
        if let Ok(age) = (now - read.envelope.occurred_at).try_into() {
            telemetry::critical_time(consumer, age);
        }
    }
    tracing::debug!(
        %consumer, event_type, handled = outcome.handled(), duplicates = outcome.duplicates(), "handled a batch"
    );
}

async fn judge<S: InboxStore, B: Broker>(
    shared: &Shared<S, B>,
    epoch: u64,
    error: &BoxError,
    event_type: &str,
    size: usize,
) -> Verdicts {
    let consumer = &shared.settings.name;
    let text = one_line(&Chain(error.as_ref()).to_string(), ERROR_TEXT);
    let timed_out = verdict::find::<DeliveryError>(error.as_ref())
        .is_some_and(|error| matches!(error.kind(), DeliveryErrorKind::TimedOut(_)));
    let (verdicts, what) = match verdict::judge(&shared.store, epoch, error).await {
        Verdict::Outage => {
            shared.database.down();
            let back = Settled::Back(AFTER_OUTAGE.delay(1));
            (Verdicts::Settled(back), "the database is away")
        }
        // The effect of all is committed, and the events of all are lost.
        Verdict::Dead(reason @ DeadReason::TransactionEnded) => {
            let dead = Settled::Dead(reason, text.clone());
            (Verdicts::Settled(dead), "it is dead-lettered")
        }
        _ if timed_out => (Verdicts::Scatter, "its messages are handled one by one"),
        _ => (Verdicts::Halve, "its halves are tried"),
    };
    tracing::warn!(%consumer, event_type, messages = size, error = text, "handling a batch failed: {what}");
    verdicts
}

async fn settle<S: InboxStore, B: Broker, H: DeliveryHandle>(
    shared: &Shared<S, B>,
    group: Vec<Read<H>>,
    settled: &Settled,
) {
    let settling = group.iter().map(|read| {
        let settlement = match settled {
            Settled::Ack => Settlement::Ack,
            Settled::Back(delay) => Settlement::Back(*delay),
            Settled::Dead(reason, error) => Settlement::Dead {
                reason: *reason,
                error: error.clone(),
                ledger: Ledger::default(),
            },
        };
        attempt::settle(shared, &read.delivered, settlement)
    });
    join_all(settling).await;
}
