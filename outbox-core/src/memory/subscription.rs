//! Consuming from the in-process broker.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::{Kind, Shared};
use crate::broker::{BrokerError, Delivered, DeliveryHandle, Pending, Subscription};

/// The delivering side of a [`MemoryBroker`](crate::MemoryBroker) for one consumer.
#[derive(Debug)]
pub struct MemorySubscription {
    shared: Arc<Shared>,
    consumer: String,
    kind: Kind,
}

impl MemorySubscription {
    pub(super) const fn new(shared: Arc<Shared>, consumer: String, kind: Kind) -> Self {
        Self {
            shared,
            consumer,
            kind,
        }
    }

    /// What can be delivered now, and when there may be more.
    fn take(&self, demand: usize) -> (Vec<Delivered<MemoryHandle>>, Option<Instant>) {
        if self.shared.offline.load(Ordering::Acquire) {
            return (Vec::new(), None);
        }
        let mut state = self.shared.lock();
        let state = &mut *state;
        let log = match self.kind {
            Kind::Messages => state.log.as_slice(),
            Kind::Replays => state
                .replays
                .get(&self.consumer)
                .map(Vec::as_slice)
                .unwrap_or_default(),
        };
        let Some(cursor) = state.cursors.get_mut(&(self.consumer.clone(), self.kind)) else {
            return (Vec::new(), None);
        };
        let taken = cursor
            .take(log, demand, Instant::now())
            .into_iter()
            .filter_map(|(place, deliveries)| {
                let entry = log.get(place)?;
                Some(Delivered {
                    message: entry.message.clone(),
                    origin: entry.origin.clone(),
                    deliveries,
                    replay: entry.replay,
                    handle: MemoryHandle {
                        shared: Arc::clone(&self.shared),
                        consumer: self.consumer.clone(),
                        kind: self.kind,
                        place,
                    },
                })
            })
            .collect();
        (taken, cursor.next_due())
    }
}

impl Subscription for MemorySubscription {
    type Handle = MemoryHandle;

    async fn pull(&mut self, demand: usize) -> Result<Vec<Delivered<MemoryHandle>>, BrokerError> {
        loop {
            // Listen first, look second: a change in between is not missed.
            let shared = Arc::clone(&self.shared);
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (taken, next_due) = self.take(demand);
            if !taken.is_empty() {
                return Ok(taken);
            }
            match next_due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }

    async fn close(self) -> Vec<Delivered<MemoryHandle>> {
        Vec::new()
    }

    async fn pending(&self) -> Result<Pending, BrokerError> {
        self.shared.online()?;
        let state = self.shared.lock();
        let log = match self.kind {
            Kind::Messages => state.log.as_slice(),
            Kind::Replays => state
                .replays
                .get(&self.consumer)
                .map(Vec::as_slice)
                .unwrap_or_default(),
        };
        let cursor = state.cursors.get(&(self.consumer.clone(), self.kind));
        Ok(cursor.map(|cursor| cursor.pending(log)).unwrap_or_default())
    }
}

/// Settles a delivery of the in-process broker.
#[derive(Debug)]
pub struct MemoryHandle {
    shared: Arc<Shared>,
    consumer: String,
    kind: Kind,
    place: usize,
}

impl MemoryHandle {
    fn postpone(&self, delay: Option<Duration>) -> Result<(), BrokerError> {
        self.shared.online()?;
        let mut state = self.shared.lock();
        if let Some(cursor) = state.cursors.get_mut(&(self.consumer.clone(), self.kind)) {
            cursor.postpone(self.place, delay, Instant::now());
        }
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(())
    }
}

impl DeliveryHandle for MemoryHandle {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.shared.online()?;
        let mut state = self.shared.lock();
        if let Some(cursor) = state.cursors.get_mut(&(self.consumer.clone(), self.kind)) {
            cursor.settle(self.place);
        }
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.postpone(Some(delay))
    }

    async fn in_progress(&self) -> Result<(), BrokerError> {
        self.postpone(None)
    }

    async fn terminate(&self, _: &str) -> Result<(), BrokerError> {
        self.ack().await
    }
}
