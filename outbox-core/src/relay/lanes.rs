//! Lanes: what fails together.
//!
//! A stream can be full or without a leader while others work, so failures are judged by lane. A
//! lane is a stream once an acknowledgement has told which stream carries a subject, and the
//! subject itself until then. A subject that fails while others of its stream are acknowledged gets
//! a lane of its own.

use std::{collections::HashMap, collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::slab::Token;
use crate::policy::Backoff;

/// How long a lane pauses after a failure that concerns all of it.
const PAUSE: Backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));
/// How many rows try a paused lane at once.
const TRIALS: usize = 3;

pub(super) type LaneId = usize;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: Arc<str>,
    /// Set while the lane is unavailable.
    pub(super) pause: Option<Pause>,
    /// Rows of a paused lane, in order.
    pub(super) queue: VecDeque<Token>,
    /// Rows that timed out and are to be tried alone.
    pub(super) suspects: VecDeque<Token>,
    /// Rows sent and not yet answered.
    pub(super) in_flight: usize,
    /// The send order of the latest row that was acknowledged.
    pub(super) last_acked: u64,
    /// A suspect is in flight: nothing else of the lane is sent.
    pub(super) alone: bool,
}

#[derive(Debug)]
pub(super) struct Pause {
    pub(super) until: Instant,
    pub(super) since: Instant,
    pub(super) reason: String,
    pub(super) rounds: u32,
    /// Trial rows that are in flight.
    trials: usize,
    /// Trial rows that this round has started.
    started: usize,
}

impl Pause {
    /// Starts a trial; returns how many the round had started before.
    pub(super) const fn start_trial(&mut self) -> usize {
        let before = self.started;
        self.started += 1;
        self.trials += 1;
        before
    }

    /// A trial has been answered; with the last one its round is over.
    pub(super) const fn end_trial(&mut self) {
        self.trials = self.trials.saturating_sub(1);
        if self.trials == 0 {
            self.started = 0;
        }
    }
}

impl Lane {
    /// Whether the next round of trials is due, or the current one has room.
    pub(super) fn wants_trial(&self, now: Instant) -> bool {
        !self.queue.is_empty()
            && self
                .pause
                .as_ref()
                .is_some_and(|pause| pause.until <= now && pause.started < TRIALS)
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// The lane that each subject is in.
    by_subject: HashMap<Arc<str>, LaneId>,
    /// The lanes of single subjects, also of those that are in their stream's lane now.
    own: HashMap<Arc<str>, LaneId>,
    by_stream: HashMap<Arc<str>, LaneId>,
}

impl Lanes {
    /// The lane of `subject`.
    pub(super) fn of_subject(&mut self, subject: &str) -> LaneId {
        if let Some(id) = self.by_subject.get(subject) {
            return *id;
        }
        self.split(subject)
    }

    fn add(&mut self, name: Arc<str>) -> LaneId {
        self.lanes.push(Lane {
            name,
            pause: None,
            queue: VecDeque::new(),
            suspects: VecDeque::new(),
            in_flight: 0,
            last_acked: 0,
            alone: false,
        });
        self.lanes.len() - 1
    }

    pub(super) fn get(&self, id: LaneId) -> &Lane {
        // Proof: ids are made by `add` alone, and lanes are never removed.
        &self.lanes[id]
    }

    pub(super) fn get_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.lanes[id]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        self.lanes.iter().enumerate()
    }

    /// Learns that `stream` carries `subject` and returns the lane of the stream.
    pub(super) fn learn(&mut self, subject: &str, stream: &Arc<str>) -> LaneId {
        let id = match self.by_stream.get(stream) {
            Some(id) => *id,
            None => {
                let id = self.add(Arc::clone(stream));
                self.by_stream.insert(Arc::clone(stream), id);
                id
            }
        };
        match self.by_subject.get_mut(subject) {
            Some(known) => *known = id,
            None => {
                self.by_subject.insert(Arc::from(subject), id);
            }
        }
        id
    }

    /// Gives `subject` a lane of its own, since its failure does not concern its stream.
    pub(super) fn split(&mut self, subject: &str) -> LaneId {
        let name: Arc<str> = Arc::from(subject);
        let id = match self.own.get(subject) {
            Some(id) => *id,
            None => {
                let id = self.add(Arc::clone(&name));
                self.own.insert(Arc::clone(&name), id);
                id
            }
        };
        self.by_subject.insert(name, id);
        id
    }

    /// Pauses a lane, or pauses it longer.
    pub(super) fn pause(&mut self, id: LaneId, reason: &str, now: Instant) {
        let lane = &mut self.lanes[id];
        match &mut lane.pause {
            None => {
                tracing::warn!(lane = %lane.name, reason, "the stream is unavailable; its rows wait");
                lane.pause = Some(Pause {
                    until: now + PAUSE.delay(1),
                    since: now,
                    reason: reason.to_owned(),
                    rounds: 1,
                    trials: 0,
                    started: 0,
                });
            }
            // Failures of rows that were sent together are one round.
            Some(pause) if pause.until <= now && pause.trials == 0 => {
                pause.rounds = pause.rounds.saturating_add(1);
                pause.until = now + PAUSE.delay(pause.rounds);
                pause.reason.clear();
                pause.reason.push_str(reason);
            }
            Some(_) => {}
        }
    }

    /// Ends a lane's pause. Returns the rows that waited.
    pub(super) fn reopen(&mut self, id: LaneId, now: Instant) -> VecDeque<Token> {
        let lane = &mut self.lanes[id];
        if let Some(pause) = lane.pause.take() {
            tracing::info!(lane = %lane.name, paused_for = ?(now - pause.since), "the stream is available again");
        }
        std::mem::take(&mut lane.queue)
    }

    /// The subjects of paused lanes.
    pub(super) fn paused_subjects(&self) -> Vec<String> {
        self.by_subject
            .iter()
            .filter(|(_, id)| self.lanes[**id].pause.is_some())
            .map(|(subject, _)| subject.to_string())
            .collect()
    }

    /// When the next paused lane that has rows may be tried again.
    pub(super) fn next_trial(&self) -> Option<Instant> {
        self.lanes
            .iter()
            .filter(|lane| !lane.queue.is_empty())
            .filter_map(|lane| lane.pause.as_ref())
            .filter(|pause| pause.started < TRIALS)
            .map(|pause| pause.until)
            .min()
    }
}
