//! How a message looks on the wire: CloudEvents 1.0 in binary mode over NATS headers.
//!
//! | header | value | written |
//! |---|---|---|
//! | `ce-specversion` | `1.0` | always |
//! | `ce-id` | the message's id, a UUID | always |
//! | `ce-source` | who published it | always |
//! | `ce-type` | the event's stable name | always |
//! | `ce-time` | when its row was written or, if delayed, due; RFC 3339 in UTC | always |
//! | `ce-datacontenttype` | the payload's media type | always |
//! | `ce-eventversion` | the version of the payload's shape | above 1 |
//! | `ce-partitionkey` | the ordering key | if it has one |
//! | `ce-correlationid` | the id shared by all that one cause led to | unless it is the message's own id |
//! | `ce-causationid` | the id of the message whose handler published it | in handlers |
//! | `ce-traceparent`, `ce-tracestate` | the W3C trace context of the publisher | if known |
//! | `Nats-Msg-Id` | as `ce-id`, for JetStream's duplicate window | on JetStream |
//! | any other | the publisher's own headers, untouched | if added |
//!
//! As the [binding](https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/nats-protocol-binding.md)
//! says, the values of `ce-` headers are percent-encoded: the blank, `"`, `%` and everything outside
//! printable ASCII. `ce-` names are written in lower case and read in any case. The payload is the
//! body, byte for byte.

use std::borrow::Cow;

use bytes::Bytes;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    broker::WireMessage,
    envelope::{Envelope, TraceContext},
    error::DecodeError,
    headers::{self, Headers},
    store::OutboxRow,
};

pub(crate) const JSON: &str = "application/json";

pub(crate) const CORRELATION_ID: &str = "ce-correlationid";
pub(crate) const CAUSATION_ID: &str = "ce-causationid";
pub(crate) const TRACEPARENT: &str = "ce-traceparent";
pub(crate) const TRACESTATE: &str = "ce-tracestate";
pub(crate) const SOURCE: &str = "ce-source";

/// Makes the message of an outbox row.
///
/// # Errors
///
/// What is wrong with the row: a subject or header that must not reach the broker. Rows that were
/// written by [`Bus`](crate::Bus) are always right; rows edited by hand may not be.
pub fn outgoing(row: &OutboxRow, default_source: &str) -> Result<WireMessage, DecodeError> {
    crate::subject::check_subject(&row.subject)
        .map_err(|error| DecodeError::headers(error.to_string()))?;
    if row.event_type.is_empty() {
        return Err(DecodeError::headers("the row has no event type"));
    }
    if row.version < 1 || row.version > i32::from(u16::MAX) {
        return Err(DecodeError::headers(format!(
            "the row's event version {} is not allowed",
            row.version
        )));
    }
    let mut out = Headers::with_capacity(12);
    out.append("ce-specversion", "1.0");
    out.append("ce-id", row.id.to_string());
    out.append("ce-type", encode(&row.event_type).into_owned());
    let time = row
        .occurred_at
        .format(&Rfc3339)
        .map_err(|_| DecodeError::headers("the row's time is out of range"))?;
    out.append("ce-time", time);
    out.append("ce-datacontenttype", JSON);
    if row.version != 1 {
        out.append("ce-eventversion", row.version.to_string());
    }
    if let Some(key) = &row.key {
        out.append("ce-partitionkey", encode(key).into_owned());
    }
    let mut has_source = false;
    for line in headers::parse_lines(&row.headers) {
        let (name, value) = line.map_err(|number| {
            DecodeError::headers(format!("line {number} of the row's headers has no name"))
        })?;
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b':')
            || value.chars().any(char::is_control)
            || name
                .get(..5)
                .is_some_and(|prefix| prefix.eq_ignore_ascii_case("nats-"))
        {
            return Err(DecodeError::headers(
                "a line of the row's headers has a name or value that is not allowed",
            ));
        }
        has_source |= name == SOURCE;
        out.append(name.to_owned(), value.to_owned());
    }
    if !has_source {
        out.append(SOURCE, encode(default_source).into_owned());
    }
    Ok(WireMessage {
        id: Some(row.id),
        subject: row.subject.clone(),
        headers: out,
        payload: row.payload.clone(),
    })
}

/// Reads the envelope of a delivered message.
///
/// # Errors
///
/// [`DecodeErrorKind::Headers`](crate::error::DecodeErrorKind::Headers), naming the header that is
/// missing, doubled or unreadable.
pub fn incoming(
    message: &WireMessage,
    stored_at: OffsetDateTime,
) -> Result<Envelope<Bytes>, DecodeError> {
    if find(message, "content-type")?.is_some_and(|value| {
        value
            .to_ascii_lowercase()
            .starts_with("application/cloudevents")
    }) {
        return Err(DecodeError::headers(
            "the message is a CloudEvent in structured mode; only binary mode (`ce-` headers) is read",
        ));
    }
    let required = |name: &str| {
        attribute(message, name)?.ok_or_else(|| {
            DecodeError::headers(format!(
                "the message has no `{name}` header, so it is no CloudEvent in binary mode"
            ))
        })
    };
    let spec = required("ce-specversion")?;
    if !spec.starts_with("1.") {
        return Err(DecodeError::headers(
            "the message's `ce-specversion` is not 1.x",
        ));
    }
    let foreign_id = required("ce-id")?;
    if foreign_id.is_empty() {
        return Err(DecodeError::headers("the message's `ce-id` is empty"));
    }
    let source = required(SOURCE)?;
    let event_type = required("ce-type")?;
    let id = message_id(&source, &foreign_id);
    let version = match attribute(message, "ce-eventversion")? {
        None => 1,
        Some(text) => text
            .parse::<u16>()
            .ok()
            .filter(|version| *version > 0)
            .ok_or_else(|| {
                DecodeError::headers(
                    "the message's `ce-eventversion` is not a number from 1 to 65535",
                )
            })?,
    };
    let occurred_at = match attribute(message, "ce-time")? {
        None => stored_at,
        Some(text) => OffsetDateTime::parse(&text, &Rfc3339)
            .map_err(|_| DecodeError::headers("the message's `ce-time` is not an RFC 3339 time"))?,
    };
    let own = |name: &str| {
        let lower = name.to_ascii_lowercase();
        !(lower.starts_with("ce-") || lower.starts_with("nats-"))
    };
    Ok(Envelope {
        id,
        event_type,
        version,
        subject: message.subject.clone(),
        key: attribute(message, "ce-partitionkey")?,
        occurred_at,
        correlation_id: attribute(message, CORRELATION_ID)?.unwrap_or_else(|| id.to_string()),
        causation_id: attribute(message, CAUSATION_ID)?,
        trace: TraceContext::new(
            attribute(message, TRACEPARENT)?,
            attribute(message, TRACESTATE)?,
        ),
        content_type: attribute(message, "ce-datacontenttype")?.unwrap_or_else(|| JSON.to_owned()),
        headers: message
            .headers
            .iter()
            .filter(|(name, _)| own(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        source,
        payload: message.payload.clone(),
    })
}

/// Our id of a CloudEvent: its own if that is a UUID, otherwise UUIDv5 of source and id, since only
/// the two together identify it.
#[must_use]
pub fn message_id(source: &str, id: &str) -> Uuid {
    Uuid::try_parse(id).unwrap_or_else(|_| {
        let namespace = Uuid::new_v5(&Uuid::NAMESPACE_URL, source.as_bytes());
        Uuid::new_v5(&namespace, id.as_bytes())
    })
}

/// The raw value of a header whose name is compared without case; an error if two values differ.
fn find<'a>(message: &'a WireMessage, name: &str) -> Result<Option<&'a str>, DecodeError> {
    let mut found = None;
    for (key, value) in message.headers.iter() {
        if key.eq_ignore_ascii_case(name) {
            match found {
                Some(other) if other != value => {
                    return Err(DecodeError::headers(format!(
                        "the message has two different `{name}` headers"
                    )));
                }
                _ => found = Some(value),
            }
        }
    }
    Ok(found)
}

fn attribute(message: &WireMessage, name: &str) -> Result<Option<String>, DecodeError> {
    find(message, name)?
        .map(|value| decode(name, value))
        .transpose()
}

/// Percent-encodes the value of a `ce-` header.
pub(crate) fn encode(value: &str) -> Cow<'_, str> {
    let plain = |byte: u8| (0x21..=0x7e).contains(&byte) && byte != b'"' && byte != b'%';
    if value.bytes().all(plain) {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len() + 16);
    for byte in value.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    Cow::Owned(out)
}

/// Decodes the value of a `ce-` header: one round of percent-decoding, quotes around it removed.
fn decode(name: &str, value: &str) -> Result<String, DecodeError> {
    let value = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(value);
    if !value.contains('%') {
        return Ok(value.to_owned());
    }
    let bytes = value.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out)
        .map_err(|_| DecodeError::headers(format!("the message's `{name}` is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> OutboxRow {
        OutboxRow {
            seq: 1,
            id: Uuid::now_v7(),
            event_type: "a.b".into(),
            version: 1,
            subject: "a.b".into(),
            key: Some("k 🦀\u{2028}".into()),
            headers: "tenant: acme\nce-correlationid: c%20d\n".into(),
            payload: Bytes::from_static(b"{}"),
            occurred_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_goes_out_comes_in() {
        let row = row();
        let message = outgoing(&row, "svc").unwrap();
        assert!(
            message
                .headers
                .iter()
                .all(|(name, value)| !name.starts_with("ce-") || value.is_ascii())
        );
        let envelope = incoming(&message, OffsetDateTime::now_utc()).unwrap();
        assert_eq!(envelope.id, row.id);
        assert_eq!(envelope.key, row.key);
        assert_eq!(envelope.version, 1);
        assert_eq!(envelope.source, "svc");
        assert_eq!(envelope.correlation_id, "c d");
        assert_eq!(envelope.headers.get("tenant"), Some("acme"));
        assert_eq!(envelope.headers.len(), 1);
        assert_eq!(envelope.occurred_at, OffsetDateTime::UNIX_EPOCH);
    }

    #[test]
    fn a_row_edited_by_hand_is_refused_by_name() {
        for edit in [
            |row: &mut OutboxRow| row.subject = "a b".into(),
            |row: &mut OutboxRow| row.subject = String::new(),
            |row: &mut OutboxRow| row.event_type = String::new(),
            |row: &mut OutboxRow| row.version = -1,
            |row: &mut OutboxRow| row.headers = "nothing".into(),
            |row: &mut OutboxRow| row.headers = "Nats-TTL: 1\n".into(),
            |row: &mut OutboxRow| row.headers = "a: b\r\n".into(),
        ] {
            let mut row = row();
            edit(&mut row);
            // `lines()` strips a carriage return, so that case is harmless.
            let carriage_return = row.headers.contains('\r');
            assert_eq!(outgoing(&row, "svc").is_err(), !carriage_return, "{row:?}");
        }
    }

    #[test]
    fn foreign_ids_depend_on_source_and_id() {
        assert_ne!(message_id("a", "1"), message_id("b", "1"));
        assert_eq!(message_id("a", "1"), message_id("a", "1"));
        let uuid = Uuid::now_v7();
        assert_eq!(message_id("a", &uuid.to_string()), uuid);
    }

    /// An empty id would make every later message without one a copy.
    #[test]
    fn a_message_without_an_id_is_refused() {
        let complete = outgoing(&row(), "svc").unwrap();
        for id in [None, Some("")] {
            let mut message = complete.clone();
            message.headers = Headers::new();
            for (name, value) in complete.headers.iter().filter(|(name, _)| *name != "ce-id") {
                message.headers.append(name.to_owned(), value.to_owned());
            }
            if let Some(id) = id {
                message.headers.append("ce-id", id);
            }
            let error = incoming(&message, OffsetDateTime::now_utc()).unwrap_err();
            assert!(error.to_string().contains("ce-id"), "{error}");
        }
    }

    #[test]
    fn contradicting_headers_are_refused() {
        let mut message = outgoing(&row(), "svc").unwrap();
        message.headers.append("Ce-Id", "other");
        let error = incoming(&message, OffsetDateTime::now_utc()).unwrap_err();
        assert!(
            error.to_string().contains("two different `ce-id`"),
            "{error}"
        );
    }
}
