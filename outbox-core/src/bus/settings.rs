//! Settings of a bus.

use std::{fmt, sync::Arc};

use super::{Bus, prepare::Prepare};
use crate::{envelope::TraceContext, store::Store};

/// The target that a bus writes to unless told otherwise.
pub const DEFAULT_TARGET: &str = "default";

/// The largest envelope by default, in bytes: NATS' own default limit of 1 MiB for headers and
/// payload (`max_payload`), less 16 KiB for what relay and dead letters add.
pub const DEFAULT_ENVELOPE_LIMIT: usize = 1024 * 1024 - 16 * 1024;

pub(super) type TraceSource = Arc<dyn Fn() -> TraceContext + Send + Sync>;

/// Builds a [`Bus`].
#[must_use = "a builder does nothing until it is built"]
pub struct BusBuilder<S: Store> {
    store: S,
    target: Arc<str>,
    source: String,
    limit: usize,
    verify: bool,
    trace: Option<TraceSource>,
}

impl<S: Store> BusBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            target: Arc::from(DEFAULT_TARGET),
            source: program_name(),
            limit: DEFAULT_ENVELOPE_LIMIT,
            verify: true,
            trace: None,
        }
    }

    /// The CloudEvents `source` of published events. Default: the program's name.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// The target whose outbox is written. Default: [`DEFAULT_TARGET`].
    pub fn target(mut self, target: &str) -> Self {
        self.target = Arc::from(target);
        self
    }

    /// The largest envelope (headers and payload) in bytes. Default: [`DEFAULT_ENVELOPE_LIMIT`].
    pub const fn envelope_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Whether each payload is read back before it is written, so that an event that no consumer
    /// could decode (a float that is not a number, asymmetric serde attributes) is refused inside
    /// the transaction. Default: yes. It costs about as much as serialising.
    pub const fn verify_payloads(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Where the trace context of a published event comes from, for example the current
    /// OpenTelemetry span. Default: none, and in handlers that of the handled message.
    pub fn trace_context(
        mut self,
        source: impl Fn() -> TraceContext + Send + Sync + 'static,
    ) -> Self {
        self.trace = Some(Arc::new(source));
        self
    }

    /// Builds the bus.
    pub fn build(self) -> Bus<S> {
        let prepare = Prepare::new(&self.source, self.limit, self.verify, self.trace);
        Bus::from_parts(self.store, prepare, self.target)
    }
}

impl<S: Store> fmt::Debug for BusBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusBuilder")
            .field("target", &self.target)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

fn program_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| {
            path.file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
        })
        .unwrap_or_else(|| "outbox".to_owned())
}
