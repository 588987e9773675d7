//! Settings of a stream that endanger events.

use outbox_core::broker::{BrokerError, BrokerErrorKind};
use serde_json::Value;

use crate::api::Settings;

/// Warns of settings by which a stream can lose events that nobody has handled.
///
/// # Errors
///
/// A setting with which it does not work at all.
pub(crate) fn warn_of_losses(
    name: &str,
    settings: &Settings,
    news: bool,
) -> Result<(), BrokerError> {
    let text = |field: &str| {
        settings
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let number = |field: &str| {
        settings
            .get(field)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    let set = |field: &str| settings.get(field).and_then(Value::as_bool) == Some(true);
    if set("no_ack") {
        return Err(configuration(format!(
            "stream `{name}` has `no_ack` set, so it never confirms what is published to it; switch that off"
        )));
    }
    if !news {
        return Ok(());
    }
    let limited = ["max_msgs", "max_bytes"]
        .into_iter()
        .find(|field| number(field) > 0);
    if let (Some(limit), "old") = (limited, text("discard")) {
        tracing::warn!(
            "stream `{name}` drops its oldest messages, handled or not, when `{limit}` is reached; with `discard: new` \
             further events would wait in the outbox instead"
        );
    }
    // For this limit alone `discard: new` is not enough.
    let refuses = text("discard") == "new" && set("discard_new_per_subject");
    if number("max_msgs_per_subject") > 0 && !refuses {
        tracing::warn!(
            "stream `{name}` drops the oldest message of a subject, handled or not, when `max_msgs_per_subject` is \
             reached; with `discard: new` and `discard_new_per_subject` further events would wait in the outbox instead"
        );
    }
    if text("storage") == "memory" {
        tracing::warn!(
            "stream `{name}` is kept in memory: a restart of the server loses what was confirmed"
        );
    }
    if text("retention") == "interest" {
        tracing::warn!(
            "stream `{name}` keeps a message only for consumers that exist when it is published"
        );
    }
    Ok(())
}

fn configuration(message: String) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Configuration, message)
}
