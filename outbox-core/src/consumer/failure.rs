//! Why a delivery did not end in a committed effect.

use std::{error::Error, fmt, time::Duration};

use super::error::{HandlerError, HandlerErrorKind};
use crate::error::{BoxError, StoreError, StoreErrorKind};

/// A delivery failed: the error that outer layers see.
#[derive(Debug)]
pub struct DeliveryError {
    kind: DeliveryErrorKind,
    source: BoxError,
}

/// Why a delivery failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryErrorKind {
    /// The handler returned an error.
    Handler(HandlerErrorKind),
    /// The handler panicked.
    Panicked,
    /// The handler took longer than its time-out.
    TimedOut(Duration),
    /// The framework's own statement failed: begin, inbox, flush, or commit.
    Store(StoreErrorKind),
    /// The handler ended the transaction itself (COMMIT, or a statement that commits implicitly),
    /// so its effect is committed and its events are not.
    TransactionEnded,
}

impl DeliveryError {
    pub(crate) fn new(kind: DeliveryErrorKind, source: impl Into<BoxError>) -> Self {
        Self {
            kind,
            source: source.into(),
        }
    }

    pub(crate) fn handler(error: HandlerError) -> Self {
        if let Some(panic) = error.source().downcast_ref::<Panicked>() {
            return Self::new(DeliveryErrorKind::Panicked, panic.clone());
        }
        Self {
            kind: DeliveryErrorKind::Handler(error.kind()),
            source: error.into_source(),
        }
    }

    /// Why it failed.
    #[must_use]
    pub const fn kind(&self) -> DeliveryErrorKind {
        self.kind
    }
}

impl From<StoreError> for DeliveryError {
    fn from(error: StoreError) -> Self {
        Self {
            kind: DeliveryErrorKind::Store(error.kind()),
            source: error.into(),
        }
    }
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeliveryErrorKind::Handler(HandlerErrorKind::Reject) => {
                f.write_str("the handler rejected the message")
            }
            DeliveryErrorKind::Handler(
                HandlerErrorKind::Undecodable | HandlerErrorKind::NewerVersion,
            ) => f.write_str("the payload cannot be decoded"),
            DeliveryErrorKind::Handler(_) => f.write_str("the handler failed"),
            DeliveryErrorKind::Panicked => f.write_str("the handler panicked"),
            DeliveryErrorKind::TimedOut(after) => {
                write!(f, "the handler took longer than {after:?}")
            }
            DeliveryErrorKind::Store(_) => f.write_str("the inbox could not do its work"),
            DeliveryErrorKind::TransactionEnded => {
                f.write_str("the handler ended its transaction itself")
            }
        }
    }
}

impl Error for DeliveryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref())
    }
}

/// The text of a panic.
#[derive(Debug, Clone)]
pub(crate) struct Panicked(String);

impl Panicked {
    pub(crate) fn from_payload(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&'static str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "with a value that is no text".to_owned());
        Self(text)
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Panicked {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_tells_its_text_if_it_has_one() {
        let text = |payload: Box<dyn std::any::Any + Send>| {
            Panicked::from_payload(payload.as_ref()).to_string()
        };
        assert_eq!(text(Box::new("a literal")), "a literal");
        assert_eq!(text(Box::new("a string".to_owned())), "a string");
        assert_eq!(text(Box::new(17)), "with a value that is no text");
    }
}
