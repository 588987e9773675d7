//! The id of a dead letter, of either side.

use std::{fmt, str::FromStr};

/// Names one dead letter. Its text is `outbox:17` or `consumer:42`.
///
/// ```
/// use outbox_core::DeadLetterId;
///
/// let id: DeadLetterId = "consumer:42".parse().unwrap();
/// assert_eq!(id, DeadLetterId::Consumer(42));
/// assert_eq!(id.to_string(), "consumer:42");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeadLetterId {
    /// A row that the relay gave up: its id in the held table.
    Outbox(i64),
    /// A message that a consumer gave up: its number in the dead-letter stream.
    Consumer(u64),
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outbox(id) => write!(f, "outbox:{id}"),
            Self::Consumer(number) => write!(f, "consumer:{number}"),
        }
    }
}

/// A text that is no id of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no dead letter's id; ids look like `outbox:17` or `consumer:42`")]
pub struct InvalidDeadLetterId(String);

impl FromStr for DeadLetterId {
    type Err = InvalidDeadLetterId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.split_once(':') {
            Some(("outbox", id)) => id.parse().ok().map(Self::Outbox),
            Some(("consumer", number)) => number.parse().ok().map(Self::Consumer),
            _ => None,
        };
        parsed.ok_or_else(|| InvalidDeadLetterId(text.chars().take(60).collect()))
    }
}
