//! What the JetStream API answers when it does not do what it was asked.

use std::fmt;

use outbox_core::broker::{BrokerError, BrokerErrorKind};
use serde::Deserialize;

use crate::link::CallError;

/// Codes of the JetStream API that are told apart.
pub(crate) mod code {
    pub(crate) const CONSUMER_NOT_FOUND: u32 = 10014;
    pub(crate) const CONSUMER_NAME_EXISTS: u32 = 10013;
    pub(crate) const CONSUMER_EXISTS: u32 = 10148;
    pub(crate) const NO_MESSAGE: u32 = 10037;
    pub(crate) const NOT_ENABLED_FOR_ACCOUNT: u32 = 10039;
    pub(crate) const NOT_ENABLED: u32 = 10076;
    pub(crate) const STREAM_NOT_FOUND: u32 = 10059;
    pub(crate) const STREAM_NAME_IN_USE: u32 = 10058;
    pub(crate) const STREAM_OVERLAP: u32 = 10065;
    pub(crate) const STORE_FAILED: u32 = 10077;
    pub(crate) const SEQUENCE_NOT_FOUND: u32 = 10043;
}

/// An answer of JetStream that is an error.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    #[serde(default)]
    pub(crate) err_code: u32,
    #[serde(default)]
    pub(crate) description: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (JetStream error {})",
            self.description, self.err_code
        )
    }
}

#[derive(Debug, Clone)]
pub(crate) enum ApiError {
    Call {
        error: CallError,
        subject: String,
        jetstream: bool,
    },
    Refused(Refusal),
    Unreadable(String),
}

impl ApiError {
    pub(crate) fn is(&self, code: u32) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.err_code == code)
    }

    /// The right to ask is missing, as far as the server says so.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(
            self,
            Self::Call {
                error: CallError::Denied(_),
                ..
            }
        )
    }

    /// The stream or the consumer does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        self.is(code::CONSUMER_NOT_FOUND) || self.is(code::STREAM_NOT_FOUND)
    }

    pub(crate) fn kind(&self) -> BrokerErrorKind {
        match self {
            Self::Call {
                error: CallError::Denied(_),
                ..
            }
            | Self::Call {
                error: CallError::NoResponders,
                jetstream: false,
                ..
            } => BrokerErrorKind::Configuration,
            Self::Call {
                error: CallError::Invalid(_),
                ..
            } => BrokerErrorKind::Refused,
            Self::Call { .. } => BrokerErrorKind::Unavailable,
            Self::Refused(refusal) => match refusal.err_code {
                code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT => BrokerErrorKind::Configuration,
                _ if refusal.code >= 500 => BrokerErrorKind::Unavailable,
                _ => BrokerErrorKind::Configuration,
            },
            Self::Unreadable(_) => BrokerErrorKind::Other,
        }
    }

    /// Says what was being done.
    pub(crate) fn while_doing(&self, what: impl fmt::Display) -> BrokerError {
        BrokerError::new(self.kind(), format!("could not {what}: {self}"))
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { error: CallError::Denied(text), subject, .. } => {
                write!(f, "the right to publish on `{subject}` or to read the reply is missing: {text}")
            }
            Self::Call { error: CallError::NoResponders, jetstream: false, .. } => f.write_str(
                "JetStream is not available: the server runs without it (start it with `jetstream` enabled)",
            ),
            Self::Call { error: CallError::NoResponders, subject, .. } => {
                write!(f, "nobody answers on `{subject}`: JetStream is not ready, or not enabled for this account")
            }
            Self::Call { error: CallError::TimedOut, subject, .. } => {
                write!(f, "no answer to `{subject}` in time")
            }
            Self::Call { error: CallError::Disconnected, .. } => f.write_str("the connection to NATS is down"),
            Self::Call { error: CallError::Invalid(why), .. } => f.write_str(why),
            Self::Refused(refusal) => {
                refusal.fmt(f)?;
                if matches!(refusal.err_code, code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT) {
                    f.write_str(": JetStream is not available; enable it on the server and for this account")?;
                }
                Ok(())
            }
            Self::Unreadable(why) => write!(f, "the answer of JetStream cannot be read: {why}"),
        }
    }
}
