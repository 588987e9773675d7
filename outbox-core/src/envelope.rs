//! A message with everything that travels beside its payload.

use std::fmt;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::headers::Headers;

/// A message: its identity, its origin, and its payload.
///
/// `Envelope<E>` holds a decoded event, `Envelope<Bytes>` the payload's bytes. On the wire it is a
/// CloudEvent in binary mode; the mapping is the table in [`wire`](crate::wire).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope<T> {
    /// The message's id: UUIDv7 unless the publisher set one; UUIDv5 of source and id for a foreign id
    /// that is no UUID.
    pub id: Uuid,
    /// The event's stable name.
    pub event_type: String,
    /// The version of the payload's shape.
    pub version: u16,
    /// The subject that it was published on.
    pub subject: String,
    /// Who published it (the CloudEvents `source`).
    pub source: String,
    /// The ordering key.
    pub key: Option<String>,
    /// When its row was written (that of a delayed event: when it was due), by the database's clock.
    /// Of a foreign message, its `ce-time`, or when it was stored.
    pub occurred_at: OffsetDateTime,
    /// The id shared by all messages that one cause led to; the message's own id at the root.
    pub correlation_id: String,
    /// The id of the message whose handler published this one.
    pub causation_id: Option<String>,
    /// The W3C trace context of the publisher.
    pub trace: TraceContext,
    /// The payload's media type.
    pub content_type: String,
    /// The headers that the publisher added.
    pub headers: Headers,
    /// The event.
    pub payload: T,
}

impl<T> Envelope<T> {
    /// Replaces the payload.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Envelope<U> {
        let Self {
            id,
            event_type,
            version,
            subject,
            source,
            key,
            occurred_at,
            correlation_id,
            causation_id,
            trace,
            content_type,
            headers,
            payload,
        } = self;
        Envelope {
            id,
            event_type,
            version,
            subject,
            source,
            key,
            occurred_at,
            correlation_id,
            causation_id,
            trace,
            content_type,
            headers,
            payload: f(payload),
        }
    }
}

impl<T> fmt::Debug for Envelope<T> {
    /// Shows neither header values nor the payload: both can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("version", &self.version)
            .field("subject", &self.subject)
            .field("source", &self.source)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

/// W3C trace context (<https://www.w3.org/TR/trace-context/>) as text, carried and never read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceContext {
    /// The `traceparent` header.
    pub traceparent: Option<String>,
    /// The `tracestate` header.
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// A context from the two header values.
    #[must_use]
    pub const fn new(traceparent: Option<String>, tracestate: Option<String>) -> Self {
        Self {
            traceparent,
            tracestate,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.traceparent.is_none() && self.tracestate.is_none()
    }
}
