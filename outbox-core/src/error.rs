//! Errors of events, publishing and storage.

use std::{error::Error, fmt};

/// Any error, boxed.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// A payload could not be read as the event that its headers name.
///
/// The message never contains the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    kind: DecodeErrorKind,
    message: String,
}

/// Why a payload could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes are not a payload of this event and version.
    Payload,
    /// The version is older than any that this build knows.
    UnknownVersion,
    /// The version is newer than this build knows.
    NewerVersion,
    /// The headers lack what an event needs, or contradict each other.
    Headers,
}

impl DecodeError {
    /// The payload does not decode. The cause's text is reduced to category and position, since
    /// serde's own messages can quote values.
    #[must_use]
    pub fn payload(event: &str, version: u16, error: &serde_json::Error) -> Self {
        let category = match error.classify() {
            serde_json::error::Category::Io => "unreadable bytes",
            serde_json::error::Category::Syntax => "not well-formed JSON",
            serde_json::error::Category::Data => "JSON of another shape",
            serde_json::error::Category::Eof => "JSON that ends too early",
        };
        Self {
            kind: DecodeErrorKind::Payload,
            message: format!(
                "the payload of event `{event}` version {version} is {category} (line {}, column {})",
                error.line(),
                error.column()
            ),
        }
    }

    /// The version is older than any known one.
    #[must_use]
    pub fn unknown_version(event: &str, version: u16, known: u16) -> Self {
        Self {
            kind: DecodeErrorKind::UnknownVersion,
            message: format!(
                "version {version} of event `{event}` is unknown to this build, which knows version {known}; \
                 add `upcast_from` to the event's attribute"
            ),
        }
    }

    /// The version is newer than the known one.
    #[must_use]
    pub fn newer_version(event: &str, version: u16, known: u16) -> Self {
        Self {
            kind: DecodeErrorKind::NewerVersion,
            message: format!(
                "version {version} of event `{event}` is newer than version {known} that this build knows; deploy \
                 the consumer's newer release"
            ),
        }
    }

    pub(crate) fn headers(message: impl Into<String>) -> Self {
        Self {
            kind: DecodeErrorKind::Headers,
            message: message.into(),
        }
    }

    /// Why it could not be read.
    #[must_use]
    pub const fn kind(&self) -> DecodeErrorKind {
        self.kind
    }

    /// Whether the payload has a newer version than this build knows.
    #[must_use]
    pub const fn is_newer_version(&self) -> bool {
        matches!(self.kind, DecodeErrorKind::NewerVersion)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for DecodeError {}

/// An error of the database that a store works on.
///
/// Its text names the operation; the cause is its [`source`](Error::source).
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    operation: &'static str,
    source: BoxError,
}

/// What kind of database error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database cannot be reached, refuses connections, or the pool gave none in time.
    Unavailable,
    /// Deadlock, serialisation failure, lock time-out, busy: the same statement may succeed soon.
    Busy,
    /// The transaction was already over when it was to be committed: nothing was committed.
    TransactionLost,
    /// The connection was lost during COMMIT: nobody knows whether it was committed.
    CommitUnknown,
    /// The tables are missing, or of another version than this build needs.
    Schema,
    /// The lease was lost: the statement was fenced off and changed nothing.
    Fenced,
    /// Anything else.
    Other,
}

impl StoreError {
    /// An error of `operation`, for example `"read the outbox"`.
    pub fn new(kind: StoreErrorKind, operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self {
            kind,
            operation,
            source: source.into(),
        }
    }

    /// What kind of error it is.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// What was being done.
    #[must_use]
    pub const fn operation(&self) -> &'static str {
        self.operation
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            StoreErrorKind::Unavailable => "the database cannot be reached",
            StoreErrorKind::Busy => "the database is busy or found a deadlock",
            StoreErrorKind::TransactionLost => {
                "the transaction was already over and nothing was committed"
            }
            StoreErrorKind::CommitUnknown => {
                "the connection was lost during COMMIT, so its outcome is unknown"
            }
            StoreErrorKind::Schema => {
                "the tables are missing or of another version; run the migration"
            }
            StoreErrorKind::Fenced => "the relay's lease was lost to another process",
            StoreErrorKind::Other => "the database reported an error",
        };
        write!(f, "could not {}: {what}", self.operation)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref())
    }
}

/// An event could not be published. Nothing was written.
#[derive(Debug)]
pub struct PublishError {
    kind: PublishErrorKind,
    message: String,
    source: Option<BoxError>,
}

/// Why an event could not be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// The payload cannot be serialised, or would not read back.
    Payload,
    /// A header's name or value is not allowed.
    Header,
    /// The subject is not allowed.
    Subject,
    /// The ordering key is not allowed.
    Key,
    /// The envelope is over the configured limit.
    TooLarge,
    /// The unit of work or handler has already been flushed, so the event would be lost.
    Closed,
    /// The insert failed.
    Store,
}

impl PublishError {
    pub(crate) fn new(kind: PublishErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn store(event_type: &str, source: StoreError) -> Self {
        Self {
            kind: PublishErrorKind::Store,
            message: format!("could not write event `{event_type}` to the outbox"),
            source: Some(source.into()),
        }
    }

    /// Why it could not be published.
    #[must_use]
    pub const fn kind(&self) -> PublishErrorKind {
        self.kind
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
