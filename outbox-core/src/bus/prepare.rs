//! From an event to a row: serialised once, and checked inside the user's transaction.

use std::io;

use bytes::Bytes;
use serde_json::ser::{CompactFormatter, Formatter};
use uuid::Uuid;

use super::{finite::not_finite, publish::Publish, settings::TraceSource};
use crate::{
    envelope::TraceContext,
    error::{PublishError, PublishErrorKind},
    event::{self, IntegrationEvent},
    headers,
    store::OutboxRecord,
    subject, wire,
};

/// The longest ordering key in bytes: the narrowest column of the databases.
const MAX_KEY: usize = 255;
/// The longest event type in bytes.
const MAX_TYPE: usize = 255;
/// The deepest payload. `serde_json` refuses to read more than 127 levels.
const MAX_DEPTH: usize = 127;
/// What the `ce-` headers and `Nats-Msg-Id` that the relay adds take beside the values, at most.
const ADDED_HEADERS: usize = 320;

/// What every event of a bus has in common.
pub(crate) struct Prepare {
    source_line: String,
    source: String,
    limit: usize,
    verify: bool,
    trace: Option<TraceSource>,
}

/// Where an event comes from: the handled message, if it is published by a handler.
#[derive(Debug, Clone, Default)]
pub(crate) struct Provenance {
    pub(crate) correlation_id: Option<String>,
    pub(crate) causation_id: Option<Uuid>,
    pub(crate) trace: TraceContext,
}

impl Provenance {
    pub(crate) const fn none() -> Self {
        Self {
            correlation_id: None,
            causation_id: None,
            trace: TraceContext::new(None, None),
        }
    }
}

impl Prepare {
    pub(super) fn new(
        source: &str,
        limit: usize,
        verify: bool,
        trace: Option<TraceSource>,
    ) -> Self {
        let source = if source.is_empty() { "outbox" } else { source };
        let mut source_line = String::new();
        headers::push_line(&mut source_line, wire::SOURCE, &wire::encode(source));
        Self {
            source_line,
            source: source.to_owned(),
            limit,
            verify,
            trace,
        }
    }

    /// For handlers that are called by unit tests.
    pub(crate) fn for_tests() -> Self {
        Self::new("test", super::DEFAULT_ENVELOPE_LIMIT, true, None)
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Serialises and checks `event`.
    pub(crate) fn record<E: IntegrationEvent>(
        &self,
        event: &E,
        options: Publish,
        provenance: &Provenance,
    ) -> Result<OutboxRecord, PublishError> {
        subject::check_subject(E::SUBJECT)?;
        if E::TYPE.is_empty() || E::TYPE.len() > MAX_TYPE {
            return Err(PublishError::new(
                PublishErrorKind::Payload,
                format!(
                    "the type name of an event must have 1 to {MAX_TYPE} bytes, that of subject `{}` has {}",
                    E::SUBJECT,
                    E::TYPE.len()
                ),
            ));
        }
        let key = event.key().map(|key| key.into_owned());
        if let Some(key) = &key {
            check_key(E::TYPE, key)?;
        }
        let id = options.id.unwrap_or_else(Uuid::now_v7);
        let headers = self.header_lines(
            options.headers,
            options.correlation_id.as_deref(),
            options.trace,
            provenance,
        )?;
        let payload = serialise(event)?;
        if self.verify {
            if let Some(place) = not_finite(event) {
                return Err(PublishError::new(
                    PublishErrorKind::Payload,
                    format!(
                        "event `{}` has a float at `{place}` that is NaN or infinite, which JSON cannot express; \
                         leave it out, or publish it as text",
                        E::TYPE
                    ),
                ));
            }
            event::decode::<E>(E::VERSION, &payload).map_err(|error| {
                PublishError::new(
                    PublishErrorKind::Payload,
                    format!("event `{}` would not read back from its own payload, so no consumer could handle it: {error}", E::TYPE),
                )
            })?;
        }
        let size = payload.len()
            + headers.len()
            + E::SUBJECT.len()
            + E::TYPE.len()
            + 3 * key.as_ref().map_or(0, String::len)
            + ADDED_HEADERS;
        if size > self.limit {
            return Err(PublishError::new(
                PublishErrorKind::TooLarge,
                format!(
                    "event `{}` takes {size} bytes with its headers, over the limit of {} bytes; store the body \
                     elsewhere and publish a reference to it",
                    E::TYPE,
                    self.limit
                ),
            ));
        }
        Ok(OutboxRecord {
            id,
            event_type: E::TYPE.to_owned(),
            version: E::VERSION,
            subject: E::SUBJECT.to_owned(),
            key,
            headers,
            payload,
            delay: options.delay.filter(|delay| !delay.is_zero()),
        })
    }

    fn header_lines(
        &self,
        own: Vec<(String, String)>,
        correlation_id: Option<&str>,
        trace: Option<TraceContext>,
        provenance: &Provenance,
    ) -> Result<String, PublishError> {
        let mut lines = String::with_capacity(self.source_line.len() + 32 * own.len());
        lines.push_str(&self.source_line);
        if let Some(correlation) = correlation_id.or(provenance.correlation_id.as_deref()) {
            headers::push_line(&mut lines, wire::CORRELATION_ID, &wire::encode(correlation));
        }
        if let Some(cause) = provenance.causation_id {
            headers::push_line(&mut lines, wire::CAUSATION_ID, &cause.to_string());
        }
        let trace = trace
            .or_else(|| {
                self.trace
                    .as_ref()
                    .map(|source| source())
                    .filter(|trace| !trace.is_empty())
            })
            .unwrap_or_else(|| provenance.trace.clone());
        if let Some(parent) = &trace.traceparent {
            headers::push_line(&mut lines, wire::TRACEPARENT, &wire::encode(parent));
        }
        if let Some(state) = &trace.tracestate {
            headers::push_line(&mut lines, wire::TRACESTATE, &wire::encode(state));
        }
        for (name, value) in own {
            headers::check(&name, &value)?;
            headers::push_line(&mut lines, &name, &value);
        }
        Ok(lines)
    }
}

fn check_key(event_type: &str, key: &str) -> Result<(), PublishError> {
    if key.is_empty() || key.len() > MAX_KEY || key.chars().any(char::is_control) {
        return Err(PublishError::new(
            PublishErrorKind::Key,
            format!(
                "the ordering key of event `{event_type}` is not allowed: it must have 1 to {MAX_KEY} bytes and no \
                 control characters, and has {} bytes; return `None` for no key",
                key.len()
            ),
        ));
    }
    Ok(())
}

fn serialise<E: IntegrationEvent>(event: &E) -> Result<Bytes, PublishError> {
    let mut payload = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::with_formatter(&mut payload, Shallow { depth: 0 });
    event.serialize(&mut serializer).map_err(|error| {
        // Only a `Serialize` implementation's own text could quote a value; ours names the limit.
        let why = if error.is_io() {
            format!("it is nested deeper than {MAX_DEPTH} levels, which no consumer could read")
        } else {
            "its `Serialize` implementation failed".to_owned()
        };
        PublishError::new(
            PublishErrorKind::Payload,
            format!("event `{}` cannot be serialised: {why}", E::TYPE),
        )
    })?;
    Ok(Bytes::from(payload))
}

/// Writes compact JSON and refuses to nest deeper than a reader accepts.
struct Shallow {
    depth: usize,
}

impl Shallow {
    fn deeper(&mut self) -> io::Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(io::Error::other("nested too deeply"))
        } else {
            Ok(())
        }
    }
}

impl Formatter for Shallow {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.deeper()?;
        CompactFormatter.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_array(writer)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.deeper()?;
        CompactFormatter.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_object(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, fmt};

    use serde::{Deserialize, Serialize, de::DeserializeOwned};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Event {
        key: Option<String>,
        ratio: f64,
        nested: Option<Box<Self>>,
    }

    impl IntegrationEvent for Event {
        const TYPE: &'static str = "test.event";
        const VERSION: u16 = 1;
        const SUBJECT: &'static str = "test.event";

        fn key(&self) -> Option<Cow<'_, str>> {
            self.key.as_deref().map(Cow::Borrowed)
        }
    }

    fn event() -> Event {
        Event {
            key: None,
            ratio: 1.0,
            nested: None,
        }
    }

    fn prepare() -> Prepare {
        Prepare::new("svc", 10_000, true, None)
    }

    fn kind_of(event: &Event, options: Publish) -> PublishErrorKind {
        prepare()
            .record(event, options, &Provenance::none())
            .unwrap_err()
            .kind()
    }

    #[test]
    fn what_cannot_travel_is_refused() {
        assert_eq!(
            kind_of(
                &Event {
                    ratio: f64::NAN,
                    ..event()
                },
                Publish::new()
            ),
            PublishErrorKind::Payload
        );
        assert_eq!(
            kind_of(
                &Event {
                    key: Some(String::new()),
                    ..event()
                },
                Publish::new()
            ),
            PublishErrorKind::Key
        );
        assert_eq!(
            kind_of(
                &Event {
                    key: Some("k".repeat(256)),
                    ..event()
                },
                Publish::new()
            ),
            PublishErrorKind::Key
        );
        assert_eq!(
            kind_of(&event(), Publish::new().header("Nats-TTL", "1")),
            PublishErrorKind::Header
        );
        assert_eq!(
            kind_of(&event(), Publish::new().header("a", "x".repeat(20_000))),
            PublishErrorKind::TooLarge
        );
    }

    /// A consumer would read it as `None`.
    #[test]
    fn a_float_that_an_option_would_swallow_is_refused_by_name() {
        #[derive(Serialize, Deserialize)]
        struct Reading {
            celsius: Option<f64>,
        }
        let refuse = |celsius| {
            let event = Of(Reading { celsius });
            prepare().record(&event, Publish::new(), &Provenance::none())
        };
        for celsius in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = refuse(Some(celsius)).unwrap_err();
            assert_eq!(error.kind(), PublishErrorKind::Payload);
            assert!(error.to_string().contains("`celsius`"), "{error}");
        }
        assert!(refuse(Some(21.5)).is_ok() && refuse(None).is_ok());
    }

    /// An event of any shape.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Of<T>(T);

    impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> IntegrationEvent for Of<T> {
        const TYPE: &'static str = "test.shape";
        const VERSION: u16 = 1;
        const SUBJECT: &'static str = "test.shape";
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Numbers {
        signed: i64,
        unsigned: u64,
        float: f64,
        huge: Option<u128>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Flattened {
        #[serde(flatten)]
        numbers: Numbers,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Numbers(Numbers),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Numbers(Numbers),
    }

    /// Some shapes cannot carry all numbers: serde buffers them, and its buffer has no 128 bits.
    #[test]
    fn numbers_arrive_exactly_or_are_refused() {
        fn exact<T>(event: T) -> bool
        where
            T: Serialize + DeserializeOwned + fmt::Debug + PartialEq + Send + Sync + 'static,
        {
            let event = Of(event);
            match prepare().record(&event, Publish::new(), &Provenance::none()) {
                Ok(record) => {
                    let read: Of<T> = event::decode(1, &record.payload).unwrap();
                    assert_eq!(read, event);
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), PublishErrorKind::Payload, "{event:?}");
                    false
                }
            }
        }
        for (signed, unsigned, float) in [
            (i64::MIN, u64::MAX, f64::MIN_POSITIVE),
            (i64::MAX, (1 << 53) + 1, f64::MAX),
            (-(1 << 53) - 1, 0, 0.1 + 0.2),
        ] {
            let mut numbers = Numbers {
                signed,
                unsigned,
                float,
                huge: None,
            };
            assert!(exact(numbers.clone()));
            assert!(exact(Flattened {
                numbers: numbers.clone()
            }));
            assert!(exact(Tagged::Numbers(numbers.clone())));
            assert!(exact(Untagged::Numbers(numbers.clone())));
            numbers.huge = Some(u128::MAX);
            assert!(exact(numbers.clone()));
            exact(Flattened {
                numbers: numbers.clone(),
            });
            exact(Tagged::Numbers(numbers.clone()));
            exact(Untagged::Numbers(numbers));
        }
    }

    #[test]
    fn depth_is_limited_before_the_stack_is() {
        let deep = |levels: usize| {
            (1..levels).fold(event(), |inner, _| Event {
                nested: Some(Box::new(inner)),
                ..event()
            })
        };
        assert!(
            prepare()
                .record(&deep(MAX_DEPTH), Publish::new(), &Provenance::none())
                .is_ok()
        );
        assert_eq!(
            kind_of(&deep(MAX_DEPTH + 1), Publish::new()),
            PublishErrorKind::Payload
        );
    }

    #[test]
    fn provenance_is_carried_over_and_can_be_overridden() {
        let cause = Uuid::now_v7();
        let provenance = Provenance {
            correlation_id: Some("root".into()),
            causation_id: Some(cause),
            trace: TraceContext::new(Some("00-a-b-01".into()), None),
        };
        let record = prepare()
            .record(&event(), Publish::new(), &provenance)
            .unwrap();
        assert_eq!(
            record.headers,
            format!(
                "ce-source: svc\nce-correlationid: root\nce-causationid: {cause}\nce-traceparent: 00-a-b-01\n"
            )
        );
        let record = prepare()
            .record(&event(), Publish::new().correlation_id("mine"), &provenance)
            .unwrap();
        assert!(record.headers.contains("ce-correlationid: mine\n"));
    }
}
