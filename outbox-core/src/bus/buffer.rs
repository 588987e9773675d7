//! Events that wait for the commit of their transaction.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    error::{PublishError, PublishErrorKind},
    store::OutboxRecord,
};

/// A buffer of events, shared by clones and closed by the flush.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventBuffer(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    records: Vec<OutboxRecord>,
    closed: bool,
}

impl EventBuffer {
    /// Adds an event.
    pub(crate) fn push(&self, record: OutboxRecord) -> Result<(), PublishError> {
        let mut state = self.lock();
        if state.closed {
            return Err(PublishError::new(
                PublishErrorKind::Closed,
                format!(
                    "event `{}` was published after its transaction had been flushed, so it would be lost; publish \
                     before the handler returns or the unit of work commits",
                    record.event_type
                ),
            ));
        }
        state.records.push(record);
        Ok(())
    }

    /// The types of the events.
    pub(crate) fn event_types(&self) -> Vec<String> {
        self.lock()
            .records
            .iter()
            .map(|record| record.event_type.clone())
            .collect()
    }

    /// How many events there are: a mark to return to.
    pub(crate) fn mark(&self) -> usize {
        self.lock().records.len()
    }

    /// Forgets the events added since `mark`.
    pub(crate) fn truncate(&self, mark: usize) {
        self.lock().records.truncate(mark);
    }

    /// Closes the buffer and takes what it holds.
    pub(crate) fn close(&self) -> Vec<OutboxRecord> {
        let mut state = self.lock();
        state.closed = true;
        mem::take(&mut state.records)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the events of a nested scope unless it is kept: on an error, and when it is dropped.
#[derive(Debug)]
pub(crate) struct NestedScope<'b> {
    buffer: &'b EventBuffer,
    mark: Option<usize>,
}

impl<'b> NestedScope<'b> {
    pub(crate) fn open(buffer: &'b EventBuffer) -> Self {
        Self {
            mark: Some(buffer.mark()),
            buffer,
        }
    }

    pub(crate) const fn keep(&mut self) {
        self.mark = None;
    }
}

impl Drop for NestedScope<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            self.buffer.truncate(mark);
        }
    }
}

/// Runs `work`; the events that it published are forgotten if it fails or is dropped.
pub(crate) async fn nested<T, E>(
    buffer: &EventBuffer,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut scope = NestedScope::open(buffer);
    let result = work.await;
    if result.is_ok() {
        scope.keep();
    }
    result
}
