//! Metrics. Without the feature `metrics` these functions do nothing.
//!
//! Names and labels are listed in the documentation of operating the framework. Labels are of low
//! cardinality: never a message id, key or tenant.

#![cfg_attr(
    not(feature = "metrics"),
    allow(unused_variables, clippy::missing_const_for_fn)
)]

use std::time::Duration;

/// Rows that the broker confirmed.
pub(crate) fn published(target: &str, count: u64) {
    #[cfg(feature = "metrics")]
    metrics::counter!("outbox_publish_total", "target" => target.to_owned(), "result" => "ok")
        .increment(count);
}

/// Rows whose publishing failed and was counted.
pub(crate) fn publish_failed(target: &str, count: u64) {
    #[cfg(feature = "metrics")]
    metrics::counter!("outbox_publish_total", "target" => target.to_owned(), "result" => "failed")
        .increment(count);
}

/// The time from the row to the broker's confirmation.
pub(crate) fn publish_lag(target: &str, lag: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("outbox_publish_lag_seconds", "target" => target.to_owned())
        .record(lag.as_secs_f64());
}

/// Whether this process has the relay's lease.
pub(crate) fn relay_leader(target: &str, active: bool) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("outbox_relay_leader", "target" => target.to_owned()).set(if active {
        1.0
    } else {
        0.0
    });
}

/// What waits.
pub(crate) fn backlog(target: &str, backlog: &crate::store::Backlog) {
    #[cfg(feature = "metrics")]
    {
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("outbox_pending", "target" => target.to_owned())
            .set(backlog.waiting as f64);
        metrics::gauge!("outbox_oldest_pending_age_seconds", "target" => target.to_owned())
            .set(backlog.oldest_age.unwrap_or_default().as_secs_f64());
        for reason in crate::store::HeldReason::ALL {
            let count = backlog
                .held
                .iter()
                .find(|(held, _)| *held == reason)
                .map_or(0, |(_, count)| *count);
            #[allow(clippy::cast_precision_loss, reason = "a gauge")]
            metrics::gauge!("outbox_held", "target" => target.to_owned(), "reason" => reason.as_str()).set(count as f64);
        }
    }
}

/// A delivery that came to an end.
pub(crate) fn handled(consumer: &str, event_type: &str, result: &'static str, messages: usize) {
    #[cfg(feature = "metrics")]
    metrics::counter!(
        "inbox_handled_total",
        "consumer" => consumer.to_owned(), "type" => event_type.to_owned(), "result" => result
    )
    .increment(u64::try_from(messages).unwrap_or(u64::MAX));
}

/// The handling of a message or a batch took so long, layers, inbox and commit included.
pub(crate) fn handler_duration(consumer: &str, event_type: &str, took: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(
        "inbox_handler_duration_seconds",
        "consumer" => consumer.to_owned(), "type" => event_type.to_owned()
    )
    .record(took.as_secs_f64());
}

/// The time from the row's writing to the handler's commit.
pub(crate) fn critical_time(consumer: &str, time: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("message_critical_time_seconds", "consumer" => consumer.to_owned())
        .record(time.as_secs_f64());
}

/// A message was dead-lettered.
pub(crate) fn dead_lettered(consumer: &str, reason: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("inbox_dead_letters_total", "consumer" => consumer.to_owned(), "reason" => reason).increment(1);
}

/// What lies between the stream and its consumer.
pub(crate) fn consumer_pending(consumer: &str, pending: crate::broker::Pending) {
    #[cfg(feature = "metrics")]
    {
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("consumer_pending", "consumer" => consumer.to_owned())
            .set(pending.waiting as f64);
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("consumer_ack_pending", "consumer" => consumer.to_owned())
            .set(pending.unsettled as f64);
    }
}

/// How many dead letters the broker holds.
pub(crate) fn dead_letter_count(count: u64) {
    #[cfg(feature = "metrics")]
    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    metrics::gauge!("dead_letters").set(count as f64);
}

/// Whether a consumer has stopped pulling because its database is away.
pub(crate) fn consumer_paused(consumer: &str, paused: bool) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("consumer_paused", "consumer" => consumer.to_owned()).set(if paused {
        1.0
    } else {
        0.0
    });
}
