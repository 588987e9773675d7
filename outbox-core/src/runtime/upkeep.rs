//! What a runtime does beside its work: observing and pruning.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Health;
use crate::{
    broker::{Broker, ConsumerSpec},
    bus::Bus,
    relay::Retention,
    store::{InboxStore, OutboxStore},
    telemetry::{self, Chain},
};

const OBSERVE_EVERY: Duration = Duration::from_secs(5);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Rows deleted with one statement, and the pause between two: small steps that leave the table to
/// others.
const PRUNE_ROWS: u32 = 1000;
const PRUNE_PAUSE: Duration = Duration::from_millis(100);

/// Measures what waits and what is dead.
pub(super) async fn observe<S: OutboxStore, B: Broker>(bus: Bus<S>, broker: B, health: Health) {
    let mut ticks = interval(OBSERVE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let backlog = timeout(OBSERVE_EVERY, bus.store().backlog(bus.target_name()))
            .await
            .ok()
            .and_then(Result::ok);
        let dead_letters = timeout(OBSERVE_EVERY, broker.dead_letter_count())
            .await
            .ok()
            .and_then(Result::ok);
        if let Some(backlog) = &backlog {
            telemetry::backlog(bus.target_name(), backlog);
        }
        if let Some(count) = dead_letters {
            telemetry::dead_letter_count(count);
        }
        health.observed(backlog, dead_letters);
    }
}

/// Deletes inbox and ledger rows beyond their retention, in small steps.
pub(super) async fn prune<S: InboxStore>(store: S, retention: Duration) {
    let mut ticks = interval(PRUNE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        loop {
            match store.prune(retention, PRUNE_ROWS).await {
                Ok(deleted) if deleted >= u64::from(PRUNE_ROWS) => sleep(PRUNE_PAUSE).await,
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "pruning failed; it is tried again in a minute");
                    break;
                }
            }
        }
    }
}

/// Warns of each consumer whose inbox forgets a message before its stream does. A broker that is away
/// is asked again, since the warning must not depend on the moment of the start.
pub(super) async fn check_retention<B: Broker>(
    broker: B,
    mut specs: Vec<ConsumerSpec>,
    retention: Duration,
) {
    while !specs.is_empty() {
        let mut unknown = Vec::new();
        for spec in specs {
            match timeout(OBSERVE_EVERY, broker.redelivery_horizon(&spec)).await {
                Ok(Ok(horizon)) => compare_retention(&spec.name, retention, horizon),
                Ok(Err(error)) => {
                    tracing::debug!(consumer = spec.name, error = %Chain(&error), "the stream's age limit is not known");
                    unknown.push(spec);
                }
                Err(_) => unknown.push(spec),
            }
        }
        specs = unknown;
        sleep(OBSERVE_EVERY).await;
    }
}

/// Warns of an archive that remembers longer than the inbox: what is republished from it then has its
/// effect again.
pub(super) fn compare_archive(archive: Retention, inbox: Duration) {
    if let Retention::Keep(archive) = archive
        && archive > inbox
    {
        tracing::warn!(
            ?archive,
            ?inbox,
            "published events are kept for longer than the inbox remembers them: republishing old ones would repeat \
             their effects; set `inbox_retention` above the `Retention::Keep` of the relay"
        );
    }
}

fn compare_retention(consumer: &str, retention: Duration, horizon: Option<Duration>) {
    match horizon {
        Some(horizon) if horizon > retention => tracing::warn!(
            consumer,
            ?retention,
            ?horizon,
            "the stream can redeliver messages that the inbox has forgotten; set `inbox_retention` above the stream's max age"
        ),
        Some(_) => {}
        None => tracing::info!(
            consumer,
            ?retention,
            "the stream keeps messages without an age limit; harmless while its durable lives, but one that is created anew \
             would redeliver what the inbox has forgotten: set the stream's max age below `inbox_retention`, or give a new \
             durable a later `Consumer::start`"
        ),
    }
}
