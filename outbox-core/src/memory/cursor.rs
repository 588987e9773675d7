//! Where a durable consumer stands in a log.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    broker::{Origin, Pending, WireMessage},
    subject::subject_matches,
};

/// A stored message.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) message: WireMessage,
    pub(super) origin: Origin,
    pub(super) replay: Option<u32>,
}

/// A message that is delivered and not settled.
#[derive(Debug)]
struct Unsettled {
    deliveries: u64,
    /// When it is delivered again.
    due: Instant,
}

#[derive(Debug)]
pub(super) struct Cursor {
    filters: Vec<String>,
    ack_wait: Duration,
    next: usize,
    unsettled: BTreeMap<usize, Unsettled>,
}

impl Cursor {
    pub(super) const fn new(start: usize) -> Self {
        Self {
            filters: Vec::new(),
            ack_wait: Duration::from_secs(30),
            next: start,
            unsettled: BTreeMap::new(),
        }
    }

    pub(super) fn configure(&mut self, ack_wait: Duration, filters: Vec<String>) {
        self.ack_wait = ack_wait;
        self.filters = filters;
    }

    fn wants(&self, entry: &Entry) -> bool {
        self.filters.is_empty()
            || self
                .filters
                .iter()
                .any(|filter| subject_matches(filter, &entry.message.subject))
    }

    /// Delivers up to `max` messages: those that are due again first. Returns their places and
    /// delivery counts.
    pub(super) fn take(
        &mut self,
        log: &[Arc<Entry>],
        max: usize,
        now: Instant,
    ) -> Vec<(usize, u64)> {
        let mut taken = Vec::new();
        let due = now + self.ack_wait;
        for (place, unsettled) in self
            .unsettled
            .iter_mut()
            .filter(|(_, unsettled)| unsettled.due <= now)
            .take(max)
        {
            unsettled.deliveries += 1;
            unsettled.due = due;
            taken.push((*place, unsettled.deliveries));
        }
        while taken.len() < max
            && let Some(entry) = log.get(self.next)
        {
            let place = self.next;
            self.next += 1;
            if self.wants(entry) {
                self.unsettled
                    .insert(place, Unsettled { deliveries: 1, due });
                taken.push((place, 1));
            }
        }
        taken
    }

    /// When the next unsettled message is due again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.unsettled.values().map(|unsettled| unsettled.due).min()
    }

    pub(super) fn settle(&mut self, place: usize) {
        self.unsettled.remove(&place);
    }

    /// Delivers a message again after `delay`; `None` waits a whole ack wait.
    pub(super) fn postpone(&mut self, place: usize, delay: Option<Duration>, now: Instant) {
        let delay = delay.unwrap_or(self.ack_wait);
        if let Some(unsettled) = self.unsettled.get_mut(&place) {
            unsettled.due = now + delay;
        }
    }

    pub(super) fn pending(&self, log: &[Arc<Entry>]) -> Pending {
        let waiting = log
            .get(self.next..)
            .unwrap_or_default()
            .iter()
            .filter(|entry| self.wants(entry))
            .count();
        Pending {
            waiting: waiting as u64,
            unsettled: self.unsettled.len() as u64,
        }
    }
}
