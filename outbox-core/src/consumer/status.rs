//! What a consumer tells about itself.

use std::sync::{Arc, Mutex, PoisonError};

use crate::broker::Pending;

/// The state of one consumer in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: ConsumerState,
    /// It has stopped pulling because its database is away.
    pub paused: bool,
    /// Why its database does not take what it has to record of its messages, which wait meanwhile: it only
    /// reads, for example, or is full. `None` if it does.
    pub store_error: Option<String>,
    /// Why replayed dead letters cannot be taken; `None` if they can.
    pub replay_error: Option<String>,
    /// What lies between the stream and it, as of a few seconds ago.
    pub pending: Option<Pending>,
}

/// What a consumer is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerState {
    /// Not started, or ended.
    Stopped,
    /// It takes messages.
    Running,
    /// Its subscription cannot be opened; the latest error.
    Failing(String),
}

/// Shared between a consumer and those who ask about it.
#[derive(Debug, Clone)]
pub(crate) struct SharedConsumerStatus(Arc<Mutex<ConsumerStatus>>);

impl SharedConsumerStatus {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(ConsumerStatus {
            name: name.to_owned(),
            state: ConsumerState::Stopped,
            paused: false,
            store_error: None,
            replay_error: None,
            pending: None,
        })))
    }

    pub(crate) fn get(&self) -> ConsumerStatus {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut ConsumerStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
