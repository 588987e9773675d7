//! A dead letter as a message: the original with a few headers more.

use async_nats::HeaderMap;
use outbox_core::{
    Headers,
    broker::{DeadLetter, DeadReason, WireMessage},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::place::Place;
use crate::{subscription::RAW_HEADERS, text::one_line, wire};

pub(super) const CONSUMER: &str = "outbox-consumer";
pub(super) const STREAM: &str = "outbox-stream";
pub(super) const SEQUENCE: &str = "outbox-sequence";
pub(super) const STORED_AT: &str = "outbox-stored-at";
pub(super) const SUBJECT: &str = "outbox-subject";
pub(super) const MESSAGE_ID: &str = "outbox-message-id";
pub(super) const REASON: &str = "outbox-reason";
pub(super) const ERROR: &str = "outbox-error";
pub(super) const FIRST_ERROR: &str = "outbox-first-error";
pub(super) const ATTEMPTS: &str = "outbox-attempts";
pub(super) const DELIVERIES: &str = "outbox-deliveries";
pub(super) const REPLAYS: &str = "outbox-replays";
pub(super) const FIRST_FAILED_AT: &str = "outbox-first-failed-at";
pub(super) const DEAD_AT: &str = "outbox-dead-at";
/// The sequence of the message that holds headers and body, if they are apart.
pub(super) const BODY: &str = "outbox-body";

/// The longest error text, in bytes.
const MAX_ERROR: usize = 1024;
/// No server takes a longer subject by default.
const MAX_SUBJECT: usize = 4096;

/// The original's headers, without those that mean something to NATS or to us.
pub(super) fn originals(headers: &Headers) -> Headers {
    headers
        .iter()
        .filter(|(name, _)| !wire::is_reserved(name) || *name == RAW_HEADERS)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// What identifies the original, for a letter and for its replay.
pub(super) fn identity(place: &Place, message: &WireMessage) -> Headers {
    let mut headers = Headers::new();
    headers.append(CONSUMER, place.consumer.clone());
    headers.append(STREAM, place.stream.clone());
    headers.append(SEQUENCE, place.sequence.to_string());
    headers.append(STORED_AT, time(place.stored_at));
    headers.append(SUBJECT, one_line(&message.subject, MAX_SUBJECT));
    if let Some(id) = message.id {
        headers.append(MESSAGE_ID, id.to_string());
    }
    headers
}

/// What happened to it.
pub(super) fn history(letter: &DeadLetter) -> Headers {
    let mut headers = Headers::new();
    headers.append(REASON, letter.reason.as_str());
    headers.append(ERROR, one_line(&letter.error, MAX_ERROR));
    if let Some(error) = &letter.first_error {
        headers.append(FIRST_ERROR, one_line(error, MAX_ERROR));
    }
    headers.append(ATTEMPTS, letter.attempts.to_string());
    headers.append(DELIVERIES, letter.deliveries.to_string());
    headers.append(REPLAYS, letter.replays.to_string());
    if let Some(at) = letter.first_failed_at {
        headers.append(FIRST_FAILED_AT, time(at));
    }
    headers.append(DEAD_AT, time(letter.dead_at));
    headers
}

/// Reads a letter; `body` holds headers and body, if they are apart.
pub(super) fn read(place: Place, headers: &Headers, message: WireMessage) -> DeadLetter {
    let text = |name| headers.get(name).map(str::to_owned);
    let at = |name| {
        headers
            .get(name)
            .and_then(|time| OffsetDateTime::parse(time, &Rfc3339).ok())
    };
    DeadLetter {
        origin: place.origin(),
        consumer: place.consumer,
        message,
        reason: headers
            .get(REASON)
            .and_then(DeadReason::from_name)
            .unwrap_or(DeadReason::Rejected),
        error: text(ERROR).unwrap_or_default(),
        first_error: text(FIRST_ERROR),
        attempts: number(headers, ATTEMPTS),
        deliveries: headers
            .get(DELIVERIES)
            .and_then(|number| number.parse().ok())
            .unwrap_or_default(),
        replays: number(headers, REPLAYS),
        first_failed_at: at(FIRST_FAILED_AT),
        dead_at: at(DEAD_AT).unwrap_or(OffsetDateTime::UNIX_EPOCH),
    }
}

/// The original message: identified by `headers`, with the headers and body of `content`.
pub(super) fn original(headers: &Headers, content: &Headers, payload: bytes::Bytes) -> WireMessage {
    WireMessage {
        id: headers
            .get(MESSAGE_ID)
            .and_then(|id| Uuid::try_parse(id).ok()),
        subject: headers.get(SUBJECT).unwrap_or_default().to_owned(),
        headers: originals(content),
        payload,
    }
}

/// The place that a replay's headers name.
pub(super) fn place(headers: &Headers) -> Option<Place> {
    Some(Place {
        consumer: headers.get(CONSUMER)?.to_owned(),
        stream: headers.get(STREAM)?.to_owned(),
        sequence: headers.get(SEQUENCE)?.parse().ok()?,
        stored_at: OffsetDateTime::parse(headers.get(STORED_AT)?, &Rfc3339).ok()?,
    })
}

pub(super) fn number(headers: &Headers, name: &str) -> u32 {
    headers
        .get(name)
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

pub(super) fn body(headers: &Headers) -> Option<u64> {
    headers.get(BODY)?.parse().ok()
}

/// Headers for sending, from several sets; what cannot be sent is left out with a warning.
pub(super) fn map<'a>(sets: impl IntoIterator<Item = &'a Headers>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in sets.into_iter().flat_map(Headers::iter) {
        if let Err(why) = wire::append(&mut map, name.to_owned().into(), value.to_owned().into()) {
            tracing::warn!("a dead letter is stored without a header of its message: {why}");
        }
    }
    map
}

fn time(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
