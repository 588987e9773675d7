//! How a handler says that it could not do its work.

use std::{error::Error, fmt, time::Duration};

use crate::error::{BoxError, DecodeError};

/// Why a handler failed, and what should become of the message.
///
/// Any [`std::error::Error`] turns into "retry" with `?`; the constructors say otherwise:
///
/// ```
/// use std::time::Duration;
/// use outbox_core::HandlerError;
///
/// fn parse(text: &str) -> Result<u32, HandlerError> {
///     let number: u32 = text.parse()?; // retried with the consumer's backoff
///     if number == 0 {
///         return Err(HandlerError::reject("zero can never be handled")); // dead-lettered now
///     }
///     if number > 100 {
///         return Err(HandlerError::retry_after("too many", Duration::from_secs(30)));
///     }
///     Ok(number)
/// }
/// # assert!(parse("1").is_ok());
/// ```
///
/// It does not implement [`std::error::Error`] itself, so that every type that does can be
/// converted into it.
pub struct HandlerError {
    kind: HandlerErrorKind,
    source: BoxError,
}

/// What should become of a message whose handler failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerErrorKind {
    /// Try again with the consumer's backoff; counts as an attempt.
    Retry,
    /// Try again after this delay; counts as an attempt.
    RetryAfter(Duration),
    /// Never try again: dead-letter it now.
    Reject,
    /// The payload does not decode: dead-letter it now.
    Undecodable,
    /// A newer version than this build knows: retried slowly, then dead-lettered.
    NewerVersion,
}

impl HandlerError {
    /// The work failed and should be tried again with the consumer's backoff.
    pub fn retry(source: impl Into<BoxError>) -> Self {
        Self {
            kind: HandlerErrorKind::Retry,
            source: source.into(),
        }
    }

    /// The work failed and should be tried again after `delay`.
    pub fn retry_after(source: impl Into<BoxError>, delay: Duration) -> Self {
        Self {
            kind: HandlerErrorKind::RetryAfter(delay),
            source: source.into(),
        }
    }

    /// The message can never be handled: dead-letter it without another try.
    pub fn reject(source: impl Into<BoxError>) -> Self {
        Self {
            kind: HandlerErrorKind::Reject,
            source: source.into(),
        }
    }

    pub(crate) fn undecodable(error: DecodeError) -> Self {
        let kind = if error.is_newer_version() {
            HandlerErrorKind::NewerVersion
        } else {
            HandlerErrorKind::Undecodable
        };
        Self {
            kind,
            source: error.into(),
        }
    }

    pub(crate) fn no_transaction() -> Self {
        Self::reject(
            "the handler takes a transaction, but its consumer was mounted without an inbox",
        )
    }

    /// What should become of the message.
    #[must_use]
    pub const fn kind(&self) -> HandlerErrorKind {
        self.kind
    }

    /// The cause.
    #[must_use]
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        self.source.as_ref()
    }

    pub(crate) fn into_source(self) -> BoxError {
        self.source
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

// So that a test that calls a handler may use `?`.
impl From<HandlerError> for BoxError {
    fn from(error: HandlerError) -> Self {
        error.source
    }
}

impl From<HandlerError> for Box<dyn Error> {
    fn from(error: HandlerError) -> Self {
        error.source
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError")
            .field("kind", &self.kind)
            .field("source", &self.source)
            .finish()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// What a handler may return: `Result<(), E>` where `E` is an error or a [`HandlerError`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "a handler must say whether it failed",
    note = "return `Result<(), E>`, where `E` is `HandlerError` or implements `std::error::Error`"
)]
pub trait HandlerReturn {
    /// The result in the runtime's terms.
    ///
    /// # Errors
    ///
    /// The handler's error.
    fn into_handler_result(self) -> Result<(), HandlerError>;
}

#[diagnostic::do_not_recommend]
impl<E: Into<HandlerError>> HandlerReturn for Result<(), E> {
    fn into_handler_result(self) -> Result<(), HandlerError> {
        self.map_err(Into::into)
    }
}
