//! What a relay tells about itself.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// The state of one relay in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// What it is doing.
    pub state: RelayState,
    /// Whether its broker connection is up; `false` while it is not active.
    pub broker_connected: bool,
    /// When it last read the outbox.
    pub last_read: Option<Instant>,
    /// When the broker last confirmed a row.
    pub last_published: Option<Instant>,
    /// Streams (or subjects, where the stream is not known) that are unavailable, with the reason.
    pub unavailable: Vec<(String, String)>,
    /// Why it cannot work although nobody else does; `None` if nothing is wrong.
    pub problem: Option<String>,
    /// The latest database error, while it lasts.
    pub store_error: Option<String>,
}

/// What a relay is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayState {
    /// Not started, or ended.
    Stopped,
    /// Another process holds the lease, or this one has stood back, or cannot ask its database.
    Standby,
    /// It holds the lease and publishes.
    Active,
}

/// Shared between a relay and those who ask about it.
#[derive(Debug, Clone)]
pub(crate) struct SharedStatus(Arc<Mutex<RelayStatus>>);

impl Default for SharedStatus {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(RelayStatus {
            state: RelayState::Stopped,
            broker_connected: false,
            last_read: None,
            last_published: None,
            unavailable: Vec::new(),
            problem: None,
            store_error: None,
        })))
    }
}

impl SharedStatus {
    pub(crate) fn get(&self) -> RelayStatus {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut RelayStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
