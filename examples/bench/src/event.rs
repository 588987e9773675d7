//! The event that everything is measured with.

use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

/// The different keys of keyed events.
pub(crate) const KEYS: usize = 1000;

/// A payload of about `size` bytes of JSON, with or without an ordering key.
#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "bench.placed", key = key)]
pub(crate) struct Placed {
    pub(crate) number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    body: String,
}

/// How the rows of a drain look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Bytes of a payload.
    pub(crate) size: usize,
    pub(crate) keyed: bool,
}

impl Placed {
    pub(crate) fn new(number: u64, shape: Shape) -> Self {
        const FRAME: usize = 30;
        Self {
            number,
            key: shape
                .keyed
                .then(|| format!("key-{}", fastrand::usize(..KEYS))),
            body: "x".repeat(shape.size.saturating_sub(FRAME)),
        }
    }
}

/// 256 bytes without a key.
pub(crate) const PLAIN: Shape = Shape {
    size: 256,
    keyed: false,
};
