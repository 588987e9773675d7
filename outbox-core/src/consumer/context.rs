//! What a handler may know about its delivery, and do besides its own work.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    broker::Origin,
    bus::{EventBuffer, Prepare, Provenance, Publish, nested},
    envelope::{Envelope, TraceContext},
    error::{PublishError, PublishErrorKind},
    event::IntegrationEvent,
    headers::Headers,
};

/// The context of one delivery. Cheap to clone.
///
/// ```
/// use outbox_core::Context;
///
/// let cx = Context::test();
/// assert_eq!(cx.attempt(), 1);
/// ```
///
/// In a handler that takes a batch it is that of the batch's first message; [`of`](Self::of) gives that
/// of another.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) message: About,
    pub(crate) consumer: Arc<str>,
    pub(crate) origin: Option<Origin>,
    pub(crate) attempt: u32,
    pub(crate) deliveries: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) prepare: Arc<Prepare>,
    pub(crate) events: Option<EventBuffer>,
}

/// What an envelope says of its message.
#[derive(Clone)]
pub(crate) struct About {
    id: Uuid,
    event_type: String,
    version: u16,
    subject: String,
    key: Option<String>,
    correlation_id: String,
    causation_id: Option<String>,
    trace: TraceContext,
    headers: Headers,
}

impl About {
    pub(crate) fn of<T>(envelope: &Envelope<T>) -> Self {
        Self {
            id: envelope.id,
            event_type: envelope.event_type.clone(),
            version: envelope.version,
            subject: envelope.subject.clone(),
            key: envelope.key.clone(),
            correlation_id: envelope.correlation_id.clone(),
            causation_id: envelope.causation_id.clone(),
            trace: envelope.trace.clone(),
            headers: envelope.headers.clone(),
        }
    }
}

impl Context {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// A context for unit tests that call a handler directly: a new message id, first attempt, no
    /// deadline. Published events are checked and then kept in [`test_events`](Self::test_events).
    #[must_use]
    pub fn test() -> Self {
        let id = Uuid::now_v7();
        Self::new(Inner {
            message: About {
                id,
                event_type: "test".to_owned(),
                version: 1,
                subject: "test".to_owned(),
                key: None,
                correlation_id: id.to_string(),
                causation_id: None,
                trace: TraceContext::default(),
                headers: Headers::new(),
            },
            consumer: Arc::from("test"),
            origin: None,
            attempt: 1,
            deliveries: 1,
            deadline: None,
            prepare: Arc::new(Prepare::for_tests()),
            events: Some(EventBuffer::default()),
        })
    }

    /// The context of one message of a batch: what is published with it has that message as its cause,
    /// and its correlation and trace.
    ///
    /// ```
    /// # use outbox_core::{Context, Envelope, HandlerError, IntegrationEvent, handler};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, IntegrationEvent)]
    /// # #[event(subject = "shop.orders.placed")]
    /// # struct OrderPlaced { order_id: u64 }
    /// # #[derive(Serialize, Deserialize, IntegrationEvent)]
    /// # #[event(subject = "shop.orders.booked")]
    /// # struct OrderBooked { order_id: u64 }
    /// #[handler(consumer = "ledger")]
    /// async fn book(orders: Vec<Envelope<OrderPlaced>>, cx: Context) -> Result<(), HandlerError> {
    ///     for order in orders {
    ///         let booked = OrderBooked { order_id: order.payload.order_id };
    ///         cx.of(&order).publish(&booked)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn of<T>(&self, message: &Envelope<T>) -> Self {
        let origin = self
            .0
            .origin
            .clone()
            .filter(|_| message.id == self.0.message.id);
        Self::new(Inner {
            message: About::of(message),
            origin,
            ..(*self.0).clone()
        })
    }

    /// The types of the events published so far with this context, for assertions in unit tests.
    #[must_use]
    pub fn test_events(&self) -> Vec<String> {
        self.0
            .events
            .as_ref()
            .map(EventBuffer::event_types)
            .unwrap_or_default()
    }

    /// The message's id.
    #[must_use]
    pub fn message_id(&self) -> Uuid {
        self.0.message.id
    }

    /// The consumer that handles it.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.0.consumer
    }

    /// The event's stable name.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.0.message.event_type
    }

    /// The version of the payload as it was published.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.0.message.version
    }

    /// The subject that it was published on.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.message.subject
    }

    /// The ordering key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.message.key.as_deref()
    }

    /// The id shared by all messages that one cause led to.
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        &self.0.message.correlation_id
    }

    /// The id of the message whose handler published this one.
    #[must_use]
    pub fn causation_id(&self) -> Option<&str> {
        self.0.message.causation_id.as_deref()
    }

    /// The publisher's trace context.
    #[must_use]
    pub fn trace(&self) -> &TraceContext {
        &self.0.message.trace
    }

    /// The headers that the publisher added.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.0.message.headers
    }

    /// Where the message is stored; `None` in unit tests, and for other than the first message of a
    /// batch.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.0.origin.as_ref()
    }

    /// Which attempt this is, from 1: the recorded failures plus one. Deploys, outages and other
    /// messages' crashes do not raise it.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// How often the broker has delivered the message, this time included.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.0.deliveries
    }

    /// How much time the handler has left; `None` if it has no limit.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.0
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// A key for effects outside the database: the same for every delivery of this message to this
    /// consumer, replays included. Pass it to a payment provider, for example.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}:{}", self.0.consumer, self.0.message.id)
    }

    /// Publishes an event with the handler's own commit. Returns its message id.
    ///
    /// Correlation and trace are those of the handled message, which becomes the cause.
    ///
    /// # Errors
    ///
    /// [`PublishError`]: the event cannot travel, the handler has already returned, or the consumer
    /// was mounted without an inbox.
    pub fn publish<E: IntegrationEvent>(&self, event: &E) -> Result<Uuid, PublishError> {
        self.publish_with(event, Publish::new())
    }

    /// Publishes an event with options of its own.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    pub fn publish_with<E: IntegrationEvent>(
        &self,
        event: &E,
        options: Publish,
    ) -> Result<Uuid, PublishError> {
        let Some(events) = &self.0.events else {
            return Err(PublishError::new(
                PublishErrorKind::Closed,
                format!(
                    "consumer `{}` was mounted without an inbox, so it has no commit to publish event `{}` with; mount \
                     it with `Consumer::of`",
                    self.0.consumer,
                    E::TYPE
                ),
            ));
        };
        let provenance = Provenance {
            correlation_id: Some(self.0.message.correlation_id.clone()),
            causation_id: Some(self.0.message.id),
            trace: self.0.message.trace.clone(),
        };
        let record = self.0.prepare.record(event, options, &provenance)?;
        let id = record.id;
        events.push(record)?;
        Ok(id)
    }

    /// Runs `work`, usually with a savepoint of its own; the events that were published meanwhile are
    /// forgotten if it fails, as what the transaction did since the savepoint. Nothing else of the
    /// handler should run beside it.
    ///
    /// # Errors
    ///
    /// The work's own.
    pub async fn nested<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match &self.0.events {
            Some(events) => nested(events, work).await,
            None => work.await,
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("message_id", &self.0.message.id)
            .field("consumer", &self.0.consumer)
            .field("event_type", &self.0.message.event_type)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}
