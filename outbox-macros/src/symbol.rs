//! The names that the macros read and write.

/// The crate whose items the expansions name, as an identifier and as a package.
pub(crate) const CORE: &str = "outbox_core";
pub(crate) const CORE_PACKAGE: &str = "outbox-core";

/// The attribute of the derive.
pub(crate) const EVENT: &str = "event";

pub(crate) const SUBJECT: &str = "subject";
pub(crate) const TYPE: &str = "type";
pub(crate) const VERSION: &str = "version";
pub(crate) const KEY: &str = "key";
pub(crate) const UPCAST_FROM: &str = "upcast_from";
pub(crate) const CRATE: &str = "crate";

/// All options of `#[event(..)]`.
pub(crate) const EVENT_OPTIONS: &[&str] = &[SUBJECT, TYPE, VERSION, KEY, UPCAST_FROM, CRATE];

/// The attribute of a handler.
pub(crate) const HANDLER: &str = "handler";

pub(crate) const CONSUMER: &str = "consumer";
pub(crate) const MAX_ATTEMPTS: &str = "max_attempts";
pub(crate) const MAX_CRASHES: &str = "max_crashes";
pub(crate) const BACKOFF: &str = "backoff";
pub(crate) const CONCURRENCY: &str = "concurrency";
pub(crate) const TIMEOUT: &str = "timeout";
pub(crate) const BATCH: &str = "batch";
pub(crate) const LINGER: &str = "linger";
pub(crate) const STATE: &str = "state";

/// All options of `#[handler(..)]`.
pub(crate) const HANDLER_OPTIONS: &[&str] = &[
    CONSUMER,
    MAX_ATTEMPTS,
    MAX_CRASHES,
    BACKOFF,
    CONCURRENCY,
    TIMEOUT,
    BATCH,
    LINGER,
    STATE,
    CRATE,
];

/// The two shapes of `backoff = ..`, and the option of the first.
pub(crate) const EXPONENTIAL: &str = "exponential";
pub(crate) const FIXED: &str = "fixed";
pub(crate) const MAX: &str = "max";

/// Arguments of a handler that are known by the last segment of their type.
pub(crate) const ENVELOPE_ARGUMENT: &str = "Envelope";
pub(crate) const BATCH_ARGUMENT: &str = "Vec";
pub(crate) const CONTEXT_ARGUMENT: &str = "Context";
pub(crate) const STATE_ARGUMENT: &str = "State";

/// SeaORM's names of a connection, which is no transaction.
pub(crate) const CONNECTION_ARGUMENTS: &[&str] = &["DatabaseConnection", "DbConn"];
