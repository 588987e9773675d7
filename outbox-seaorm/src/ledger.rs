//! What an end means for the ledger.

use outbox_core::store::AttemptEnd;

use crate::text::clip;

/// An end as numbers.
#[derive(Debug)]
pub(crate) struct Change {
    /// 1 if the end counts as an attempt.
    pub(crate) counted: i32,
    /// 1 if an open start ends with it.
    pub(crate) opened: i32,
    /// 1 if that start had been alone.
    pub(crate) lone: i32,
    /// The failure's text.
    pub(crate) error: Option<String>,
}

impl Change {
    pub(crate) fn of(end: &AttemptEnd) -> Self {
        Self {
            counted: i32::from(end.counted),
            opened: i32::from(end.opened),
            lone: i32::from(end.opened && end.lone),
            error: clip(end.error.as_deref()),
        }
    }
}
