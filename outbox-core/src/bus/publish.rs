//! What a publisher may say about one event.

use std::time::Duration;

use uuid::Uuid;

use crate::envelope::TraceContext;

/// Options of one published event.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::Publish;
///
/// let options = Publish::new()
///     .header("tenant", "acme")
///     .delay(Duration::from_secs(60));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until they are passed to `publish_with`"]
pub struct Publish {
    pub(crate) id: Option<Uuid>,
    pub(crate) delay: Option<Duration>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) trace: Option<TraceContext>,
}

impl Publish {
    /// No options.
    pub const fn new() -> Self {
        Self {
            id: None,
            delay: None,
            headers: Vec::new(),
            correlation_id: None,
            trace: None,
        }
    }

    /// The message's id. Default: a new UUIDv7.
    pub const fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// Holds the event back for this long after its row is written, by the database's clock.
    ///
    /// A delayed event takes its place in its key's order when it is due.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Adds a header. Names that begin with `Nats-`, `ce-` or `outbox-` are reserved.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The correlation id. Default: that of the handled message, or the event's own id.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The trace context. Default: see [`BusBuilder::trace_context`](crate::BusBuilder::trace_context).
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }
}
