//! What the relay has in its hands: rows that were read and are not settled.
//!
//! A state machine without I/O. The engine tells it what was read, answered and settled, and asks
//! it what to send, settle and move. One task owns it, so that one place decides what becomes of a
//! key:
//!
//! * of one key, one row is on its way at a time, the next at its acknowledgement;
//! * a row that fails for the first time leaves for the held table, and so do the later rows of its
//!   key when they are handed over;
//! * held rows of a key leave in the order of their numbers;
//! * a key is free again only when no move of it is unsettled and a read that was made after the
//!   last move finds none of its rows held.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    DeadHead,
    keys::{Drain, HeldKey, Keys},
    lanes::{LaneId, Lanes},
    options::RelayOptions,
    slab::{Slab, Token},
};
use crate::{
    broker::{FailureKind, PublishFailure, Receipt},
    store::{HeldChange, HeldReason, HeldRow, HoldMove, OutboxRow, SeqRuns, Settled, SettledHeld},
};

/// Rows of a recovering key that wait in memory before they are parked.
const KEY_QUEUE: usize = 64;
/// Rows of a paused lane that stay in memory to try it with, at most.
const LANE_KEEP: usize = 64;
/// Held rows of a paused lane that stay in memory to try it with.
const HELD_KEEP: usize = 8;
/// The share of the hands that rows of paused lanes may keep when the hands are full.
const PAUSED_SHARE: usize = 4;
/// Keys whose held rows are taken up at the same time.
pub(super) const DRAINS: usize = 64;

/// Where a row in hand is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Outbox,
    Held(i64),
}

/// A row in hand.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) data: OutboxRow,
    place: Place,
    key: Option<Arc<str>>,
    attempts: u32,
    lane: LaneId,
    /// The send order of its latest attempt.
    order: u64,
    trial: bool,
    alone: bool,
}

/// A move to the held table and the key that it belongs to.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) hold: HoldMove,
    pub(super) key: Option<Arc<str>>,
}

/// A change of a held row and the key that it belongs to.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) change: HeldChange,
    pub(super) key: Option<Arc<str>>,
}

/// A held row that was acknowledged and is to be deleted, and the key that it belongs to.
#[derive(Debug)]
pub(super) struct AckedHeld {
    pub(super) row: SettledHeld,
    pub(super) key: Option<Arc<str>>,
}

/// A read of a key's held rows that the engine is to make.
#[derive(Debug)]
pub(super) struct DrainRead {
    pub(super) key: Arc<str>,
    pub(super) exclude_ids: Vec<i64>,
    /// Moves of the key that were unsettled when the read was asked for.
    pub(super) moves: usize,
    /// Moves of the key that had begun.
    pub(super) begun: u64,
}

/// What became of the rows so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) published: u64,
    pub(super) failed: u64,
    pub(super) dead: u64,
}

#[derive(Debug)]
pub(super) struct Hands {
    max_attempts: u32,
    backoff: crate::policy::Backoff,
    dead_head: DeadHead,
    capacity: usize,
    capacity_bytes: usize,
    rows: Slab<Row>,
    /// Numbers of outbox rows that are not settled or moved.
    seqs: BTreeSet<i64>,
    /// Ids of held rows that are not settled or changed.
    held_ids: HashSet<i64>,
    bytes: usize,
    ready: VecDeque<Token>,
    keys: Keys,
    pub(super) lanes: Lanes,
    order: u64,
    drains: usize,
    /// A key with due rows was refused, since as many as are allowed were being taken up.
    refused_key: bool,
    /// Such a key may be taken up now.
    room_for_key: bool,
    acked: Vec<Settled>,
    acked_held: Vec<AckedHeld>,
    moves: VecDeque<Move>,
    changes: Vec<Change>,
    drain_reads: Vec<DrainRead>,
    /// Rows that timed out while nothing after them was acknowledged: the probe decides.
    verdicts: Vec<Token>,
    /// When the next row that failed here is due, from when it was recorded.
    next_due: Option<Instant>,
    pub(super) tally: Tally,
    reopened: bool,
}

impl Hands {
    pub(super) fn new(options: &RelayOptions) -> Self {
        Self {
            max_attempts: options.max_attempts,
            backoff: options.backoff,
            dead_head: options.dead_head,
            capacity: options.in_hand.max(2 * options.batch as usize),
            capacity_bytes: options.in_hand_bytes,
            rows: Slab::new(),
            seqs: BTreeSet::new(),
            held_ids: HashSet::new(),
            bytes: 0,
            ready: VecDeque::new(),
            keys: Keys::default(),
            lanes: Lanes::default(),
            order: 0,
            drains: 0,
            refused_key: false,
            room_for_key: false,
            acked: Vec::new(),
            acked_held: Vec::new(),
            moves: VecDeque::new(),
            changes: Vec::new(),
            drain_reads: Vec::new(),
            verdicts: Vec::new(),
            next_due: None,
            tally: Tally::default(),
            reopened: false,
        }
    }

    // ===== what is in hand =====

    /// Rows that are not settled.
    pub(super) fn len(&self) -> usize {
        self.seqs.len() + self.held_ids.len()
    }

    /// Whether `more` rows fit in.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        self.len() + more <= self.capacity && self.bytes < self.capacity_bytes
    }

    /// The numbers that a read is to leave out.
    pub(super) fn in_hand(&self) -> SeqRuns {
        SeqRuns::of(self.seqs.iter().copied())
    }

    /// The held ids that a scan is to leave out.
    pub(super) fn held_in_hand(&self) -> Vec<i64> {
        self.held_ids.iter().copied().collect()
    }

    /// The keys that a scan is to leave out: they are being taken up, each by itself.
    pub(super) fn keys_in_hand(&self) -> Vec<String> {
        self.keys.recovering().map(ToString::to_string).collect()
    }

    /// Nothing is waiting to be settled, moved or changed.
    pub(super) fn settled_all(&self) -> bool {
        self.acked.is_empty()
            && self.acked_held.is_empty()
            && self.moves.is_empty()
            && self.changes.is_empty()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn any_held_keys(&self) -> bool {
        self.keys.any_held()
    }

    pub(super) const fn take_next_due(&mut self) -> Option<Instant> {
        self.next_due.take()
    }

    // ===== rows come in =====

    /// Keys whose rows are held, as found at takeover.
    pub(super) fn load_held_keys(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            let key = self.keys.entry(&Arc::from(name));
            key.held.get_or_insert_with(HeldKey::default);
        }
    }

    /// Takes rows that were read from the outbox, in the order of their numbers.
    pub(super) fn admit(&mut self, rows: Vec<OutboxRow>) {
        for data in rows {
            if !self.seqs.insert(data.seq) {
                continue;
            }
            let Some(name) = data.key.as_deref().map(|name| self.keys.shared(name)) else {
                let token = self.take_in(data, Place::Outbox, None, 0);
                self.ready.push_back(token);
                continue;
            };
            let token = self.take_in(data, Place::Outbox, Some(Arc::clone(&name)), 0);
            let key = self.keys.entry(&name);
            match &key.held {
                None if key.active => key.queue.push_back(token),
                None => {
                    key.active = true;
                    self.ready.push_back(token);
                }
                Some(held) => {
                    let park = !held.drain.recovering() && !key.active;
                    key.queue.push_back(token);
                    if park || key.queue.len() > KEY_QUEUE {
                        self.park_queue(&name);
                    }
                }
            }
        }
    }

    /// Takes held rows that are due or wait: rows without a key are sent, keys are taken up again.
    /// Returns how many rows and keys that were.
    pub(super) fn admit_held(&mut self, rows: Vec<HeldRow>) -> usize {
        let mut taken = 0;
        for held in rows {
            match &held.row.key {
                None => {
                    if self.held_ids.insert(held.id) {
                        taken += 1;
                        let token =
                            self.take_in(held.row, Place::Held(held.id), None, held.attempts);
                        self.ready.push_back(token);
                    }
                }
                Some(name) => {
                    let name = self.keys.shared(name);
                    let key = self.keys.entry(&name);
                    let active = key.active;
                    let known = key.held.get_or_insert_with(HeldKey::default);
                    if !matches!(known.drain, Drain::Idle) || active {
                        continue;
                    }
                    if self.drains < DRAINS {
                        taken += 1;
                        self.set_drain(&name, Drain::Wanted);
                        self.read_if_wanted(&name);
                    } else {
                        self.refused_key = true;
                    }
                }
            }
        }
        taken
    }

    /// Whether a key that was refused for lack of room may be taken up now.
    pub(super) const fn take_room_for_key(&mut self) -> bool {
        mem::replace(&mut self.room_for_key, false)
    }

    fn take_in(
        &mut self,
        data: OutboxRow,
        place: Place,
        key: Option<Arc<str>>,
        attempts: u32,
    ) -> Token {
        self.bytes += data.size();
        let lane = self.lanes.of_subject(&data.subject);
        self.rows.insert(Row {
            data,
            place,
            key,
            attempts,
            lane,
            order: 0,
            trial: false,
            alone: false,
        })
    }

    fn drop_row(&mut self, token: Token) -> Option<Row> {
        let row = self.rows.remove(token)?;
        self.bytes = self.bytes.saturating_sub(row.data.size());
        Some(row)
    }

    // ===== held rows of a key =====

    /// Changes how far a key's held rows are taken up, and counts the keys that are at it.
    fn set_drain(&mut self, name: &Arc<str>, drain: Drain) -> Drain {
        let Some(held) = self.keys.get_mut(name).and_then(|key| key.held.as_mut()) else {
            return Drain::Idle;
        };
        let now = drain.recovering();
        let old = mem::replace(&mut held.drain, drain);
        match (old.recovering(), now) {
            (false, true) => self.drains += 1,
            (true, false) => {
                self.drains = self.drains.saturating_sub(1);
                self.room_for_key |= mem::take(&mut self.refused_key);
            }
            _ => {}
        }
        old
    }

    fn read_if_wanted(&mut self, name: &Arc<str>) {
        let Some(held) = self.keys.get_mut(name).and_then(|key| key.held.as_mut()) else {
            return;
        };
        if matches!(held.drain, Drain::Wanted) && held.heads == 0 {
            held.drain = Drain::Reading;
            self.drain_reads.push(DrainRead {
                key: Arc::clone(name),
                exclude_ids: held.unsettled.clone(),
                moves: held.moves,
                begun: held.begun,
            });
        }
    }

    pub(super) fn take_drain_reads(&mut self) -> Vec<DrainRead> {
        mem::take(&mut self.drain_reads)
    }

    /// The read failed and is to be made again.
    pub(super) fn retry_drain(&mut self, read: DrainRead) {
        self.drain_reads.push(read);
    }

    /// Takes the held rows of a key, lowest first, as `read` asked for.
    pub(super) fn drained(&mut self, read: &DrainRead, rows: Vec<HeldRow>, now: Instant) {
        let name = &read.key;
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let Some(held) = key.held.as_mut() else {
            return;
        };
        if rows.is_empty() {
            if held.moves > 0 {
                held.drain = Drain::Wanted; // read again when the moves are settled
            } else if read.moves > 0 || read.begun != held.begun {
                held.drain = Drain::Wanted;
                self.read_if_wanted(name);
            } else {
                self.free(name);
            }
            return;
        }
        let ready: Vec<HeldRow> = {
            let blocked = |row: &HeldRow| {
                row.reason == HeldReason::Dead
                    || (row.reason == HeldReason::Failing && !row.due_in.is_zero())
            };
            if rows
                .first()
                .is_some_and(|row| row.reason == HeldReason::Failing)
            {
                let due = rows.first().map_or(Duration::ZERO, |row| row.due_in);
                if !due.is_zero() {
                    self.due_at(now + due);
                }
            }
            rows.into_iter().take_while(|row| !blocked(row)).collect()
        };
        if ready.is_empty() {
            self.stop_drain(name);
            return;
        }
        let mut tokens = VecDeque::with_capacity(ready.len());
        for row in ready {
            if self.held_ids.insert(row.id) {
                tokens.push_back(self.take_in(
                    row.row,
                    Place::Held(row.id),
                    Some(Arc::clone(name)),
                    row.attempts,
                ));
            }
        }
        let first = tokens.pop_front();
        self.set_drain(name, Drain::Sending(tokens));
        if let Some(key) = self.keys.get_mut(name) {
            key.active = first.is_some();
        }
        match first {
            Some(token) => self.ready.push_back(token),
            None => self.stop_drain(name),
        }
    }

    /// The head is not to go now: the key's rows wait in the table.
    fn stop_drain(&mut self, name: &Arc<str>) {
        if let Drain::Sending(rest) = self.set_drain(name, Drain::Idle) {
            for token in rest {
                if let Some(row) = self.drop_row(token)
                    && let Place::Held(id) = row.place
                {
                    self.held_ids.remove(&id);
                }
            }
        }
        self.park_queue(name);
    }

    /// None of the key's rows is held any more.
    fn free(&mut self, name: &Arc<str>) {
        self.set_drain(name, Drain::Idle);
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        key.held = None;
        match key.queue.pop_front() {
            Some(token) => {
                key.active = true;
                self.ready.push_back(token);
            }
            None => {
                key.active = false;
                self.keys.remove(name);
            }
        }
    }

    /// Moves the rows of a held key that wait in memory to the held table.
    fn park_queue(&mut self, name: &Arc<str>) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let queue = mem::take(&mut key.queue);
        for token in queue {
            self.move_row(token, HeldReason::Parked, Duration::ZERO, None);
        }
    }

    /// Moves an outbox row to the held table.
    fn move_row(
        &mut self,
        token: Token,
        reason: HeldReason,
        due_in: Duration,
        error: Option<String>,
    ) {
        let Some(row) = self.drop_row(token) else {
            return;
        };
        if let Some(name) = &row.key
            && let Some(held) = self.keys.get_mut(name).and_then(|key| key.held.as_mut())
        {
            held.moves += 1;
            held.begun += 1;
            held.heads += usize::from(reason != HeldReason::Parked);
        }
        let hold = HoldMove {
            seq: row.data.seq,
            id: row.data.id,
            reason,
            due_in,
            attempts: row.attempts,
            error,
        };
        self.moves.push_back(Move { hold, key: row.key });
    }

    // ===== rows go out =====

    /// The next row to send, if any may go now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Token> {
        if let Some(token) = self.next_suspect() {
            return Some(token);
        }
        if let Some(token) = self.next_trial(now) {
            return Some(token);
        }
        while let Some(token) = self.ready.pop_front() {
            let Some(row) = self.rows.get(token) else {
                continue;
            };
            let lane = self.lanes.get_mut(row.lane);
            if lane.pause.is_some() && lane.queue.len() >= HELD_KEEP && row.place != Place::Outbox {
                self.shed(token);
                continue;
            }
            if lane.pause.is_some() || lane.alone || !lane.suspects.is_empty() {
                lane.queue.push_back(token);
                continue;
            }
            return Some(token);
        }
        None
    }

    /// A row that timed out goes again when nothing else of its lane is in flight.
    fn next_suspect(&mut self) -> Option<Token> {
        let (id, _) = self.lanes.iter().find(|(_, lane)| {
            lane.pause.is_none() && !lane.alone && lane.in_flight == 0 && !lane.suspects.is_empty()
        })?;
        let lane = self.lanes.get_mut(id);
        let token = lane.suspects.pop_front()?;
        lane.alone = true;
        if let Some(row) = self.rows.get_mut(token) {
            row.alone = true;
        }
        Some(token)
    }

    /// Rows of different places in a paused lane's queue try whether it works again.
    fn next_trial(&mut self, now: Instant) -> Option<Token> {
        let (id, _) = self.lanes.iter().find(|(_, lane)| lane.wants_trial(now))?;
        let lane = self.lanes.get_mut(id);
        let at = match lane.pause.as_mut()?.start_trial() {
            0 => 0,
            1 => lane.queue.len() - 1,
            _ => fastrand::usize(..lane.queue.len()),
        };
        let token = lane.queue.remove(at)?;
        if let Some(row) = self.rows.get_mut(token) {
            row.trial = true;
        }
        Some(token)
    }

    /// Notes that a row is on its way and returns it.
    pub(super) fn sent(&mut self, token: Token) -> Option<&OutboxRow> {
        self.order += 1;
        let row = self.rows.get_mut(token)?;
        row.order = self.order;
        self.lanes.get_mut(row.lane).in_flight += 1;
        Some(&row.data)
    }

    /// The row, before it is sent.
    pub(super) fn row(&self, token: Token) -> Option<&OutboxRow> {
        self.rows.get(token).map(|row| &row.data)
    }

    // ===== answers =====

    /// The broker confirmed a row.
    pub(super) fn acked(&mut self, token: Token, receipt: &Receipt, now: Instant) {
        self.landed(token);
        let Some(row) = self.drop_row(token) else {
            return;
        };
        self.tally.published += 1;
        for lane in [
            row.lane,
            self.lanes.learn(&row.data.subject, &receipt.stream),
        ] {
            let order = row.order.max(self.lanes.get(lane).last_acked);
            self.lanes.get_mut(lane).last_acked = order;
            if self.lanes.get(lane).pause.is_some() {
                let waiting = self.lanes.reopen(lane, now);
                self.ready_again(waiting, lane);
            }
        }
        match row.place {
            Place::Outbox => self.acked.push(Settled {
                seq: row.data.seq,
                id: row.data.id,
                stream: Arc::clone(&receipt.stream),
                stream_seq: receipt.sequence,
            }),
            Place::Held(id) => {
                self.acked_held.push(AckedHeld {
                    row: SettledHeld {
                        id,
                        message_id: row.data.id,
                        stream: Arc::clone(&receipt.stream),
                        stream_seq: receipt.sequence,
                    },
                    key: row.key.clone(),
                });
            }
        }
        if let Some(name) = row.key {
            self.advance(&name, row.place);
        }
    }

    /// Whether a lane has come back since the last call: rows that wait in the table may go.
    pub(super) fn take_reopened(&mut self) -> bool {
        mem::take(&mut self.reopened)
    }

    fn ready_again(&mut self, waiting: VecDeque<Token>, lane: LaneId) {
        self.reopened = true;
        // Rows that were queued before their subject's stream was known move to its lane.
        for token in waiting.into_iter().rev() {
            let Some(row) = self.rows.get_mut(token) else {
                continue;
            };
            row.lane = lane;
            row.trial = false;
            self.ready.push_front(token);
        }
    }

    /// The next row of a key may go.
    fn advance(&mut self, name: &Arc<str>, place: Place) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let next = match &mut key.held {
            None => key.queue.pop_front(),
            Some(held) => {
                if let Place::Held(id) = place {
                    held.unsettled.push(id);
                }
                match &mut held.drain {
                    Drain::Sending(queue) => queue.pop_front(),
                    _ => None,
                }
            }
        };
        key.active = next.is_some();
        let held = key.held.is_some();
        match next {
            Some(next) => self.ready.push_back(next),
            None if held => {
                self.set_drain(name, Drain::Wanted);
                self.read_if_wanted(name);
            }
            None => self.keys.remove(name),
        }
    }

    /// The broker did not confirm a row. Returns whether its stream is to be probed.
    pub(super) fn failed(&mut self, token: Token, failure: &PublishFailure, now: Instant) -> bool {
        self.landed(token);
        let Some(row) = self.rows.get(token) else {
            return false;
        };
        let lane = row.lane;
        let overtaken = self.lanes.get(lane).last_acked > row.order;
        let known_suspect = row.alone || row.attempts > 0;
        match failure.kind() {
            FailureKind::Disconnected => {
                self.back(token);
                self.ready.push_front(token);
                false
            }
            FailureKind::Unavailable | FailureKind::NoStream => {
                self.wait(token, lane, overtaken, failure, now);
                false
            }
            FailureKind::TimedOut if overtaken && known_suspect => {
                self.count_failure(token, failure.to_string(), false, now);
                false
            }
            FailureKind::TimedOut if overtaken => {
                self.back(token);
                let lane = self.lanes.get_mut(lane);
                let waits = if lane.pause.is_some() {
                    &mut lane.queue
                } else {
                    &mut lane.suspects
                };
                waits.push_back(token);
                false
            }
            FailureKind::TimedOut => {
                self.verdicts.push(token);
                true
            }
            FailureKind::Rejected => {
                self.count_failure(token, failure.to_string(), false, now);
                false
            }
        }
    }

    /// The probe of a row's stream has answered, or has not.
    pub(super) fn probed(
        &mut self,
        lane: LaneId,
        answered: &Result<(), PublishFailure>,
        now: Instant,
    ) {
        let (mine, others): (Vec<Token>, Vec<Token>) = mem::take(&mut self.verdicts)
            .into_iter()
            .partition(|token| self.rows.get(*token).is_some_and(|row| row.lane == lane));
        self.verdicts = others;
        if answered.is_ok() && self.lanes.get(lane).pause.is_some() {
            let waiting = self.lanes.reopen(lane, now);
            self.ready_again(waiting, lane);
        }
        for token in mine {
            let Some(row) = self.rows.get(token) else {
                continue;
            };
            let known_suspect = row.alone || row.attempts > 0;
            match answered {
                Ok(()) if known_suspect => {
                    let text =
                        "the broker did not confirm it in time, twice, while its stream answered"
                            .to_owned();
                    self.count_failure(token, text, false, now);
                }
                Ok(()) => {
                    self.back(token);
                    self.lanes.get_mut(lane).suspects.push_back(token);
                }
                Err(failure) => self.wait(token, lane, false, failure, now),
            }
        }
    }

    /// The lanes that have rows waiting for a probe, each with a subject to probe.
    pub(super) fn probes(&self) -> Vec<(LaneId, String)> {
        let mut lanes: Vec<(LaneId, String)> = Vec::new();
        for row in self
            .verdicts
            .iter()
            .filter_map(|token| self.rows.get(*token))
        {
            if !lanes.iter().any(|(lane, _)| *lane == row.lane) {
                lanes.push((row.lane, row.data.subject.clone()));
            }
        }
        lanes
    }

    /// A row cannot be sent at all, whatever the broker does.
    pub(super) fn unsendable(&mut self, token: Token, error: String, now: Instant) {
        if let Some(row) = self.rows.get(token) {
            self.lanes.get_mut(row.lane).in_flight += 1;
            self.landed(token);
        }
        self.count_failure(token, error, true, now);
    }

    /// A row is no longer in flight.
    fn landed(&mut self, token: Token) {
        let Some(row) = self.rows.get_mut(token) else {
            return;
        };
        let lane = self.lanes.get_mut(row.lane);
        lane.in_flight = lane.in_flight.saturating_sub(1);
        if mem::take(&mut row.trial)
            && let Some(pause) = lane.pause.as_mut()
        {
            pause.end_trial();
        }
        if row.alone {
            lane.alone = false;
            if lane.suspects.is_empty() && lane.pause.is_none() {
                for token in mem::take(&mut lane.queue).into_iter().rev() {
                    self.ready.push_front(token);
                }
            }
        }
    }

    fn back(&mut self, token: Token) {
        if let Some(row) = self.rows.get_mut(token) {
            row.alone = false;
        }
    }

    /// An uncounted failure: the row waits with its lane.
    fn wait(
        &mut self,
        token: Token,
        lane: LaneId,
        overtaken: bool,
        failure: &PublishFailure,
        now: Instant,
    ) {
        self.back(token);
        let Some(row) = self.rows.get(token) else {
            return;
        };
        let lane = if overtaken {
            self.lanes.split(&row.data.subject)
        } else {
            lane
        };
        if let Some(row) = self.rows.get_mut(token) {
            row.lane = lane;
        }
        self.lanes.pause(lane, &failure.to_string(), now);
        let suspects = mem::take(&mut self.lanes.get_mut(lane).suspects);
        let queue = &mut self.lanes.get_mut(lane).queue;
        queue.extend(suspects);
        let held = self
            .rows
            .get(token)
            .is_some_and(|row| row.place != Place::Outbox);
        if held && queue.len() >= HELD_KEEP {
            // It is in the table: nothing has to remember it here.
            self.shed(token);
        } else {
            queue.push_back(token);
        }
    }

    /// A failure that concerns this row.
    fn count_failure(&mut self, token: Token, error: String, fatal: bool, now: Instant) {
        let Some(row) = self.rows.get_mut(token) else {
            return;
        };
        row.attempts = row.attempts.saturating_add(1);
        let dead = fatal || row.attempts >= self.max_attempts;
        let due_in = if dead {
            Duration::ZERO
        } else {
            self.backoff.delay(row.attempts)
        };
        let reason = if dead {
            HeldReason::Dead
        } else {
            HeldReason::Failing
        };
        let (seq, id, attempts) = (row.data.seq, row.data.id, row.attempts);
        let (place, name) = (row.place, row.key.clone());
        tracing::warn!(%seq, message_id = %id, subject = %row.data.subject, attempts, %reason, error, "a row could not be published");
        self.tally.failed += 1;
        self.tally.dead += u64::from(dead);
        if !dead {
            self.due_at(now + due_in);
        }
        let holds = !dead || self.dead_head == DeadHead::Park;
        match place {
            Place::Outbox => {
                if let Some(key) = name.as_ref().and_then(|name| self.keys.get_mut(name)) {
                    key.active = false;
                    if holds {
                        key.held.get_or_insert_with(HeldKey::default);
                    }
                }
                self.move_row(token, reason, due_in, Some(error));
                if let Some(name) = name {
                    if holds {
                        self.park_queue(&name)
                    } else {
                        self.advance(&name, place)
                    }
                }
            }
            Place::Held(id) => {
                let Some(row) = self.drop_row(token) else {
                    return;
                };
                let change = HeldChange {
                    id,
                    message_id: row.data.id,
                    reason,
                    due_in,
                    attempts,
                    error: Some(error),
                };
                self.changes.push(Change {
                    change,
                    key: name.clone(),
                });
                if let Some(name) = name {
                    self.stop_drain(&name);
                    if let Some(key) = self.keys.get_mut(&name) {
                        key.active = false;
                        if let Some(held) = key.held.as_mut() {
                            held.heads += 1;
                        }
                    }
                    if !holds {
                        self.set_drain(&name, Drain::Wanted);
                    }
                }
            }
        }
    }

    fn due_at(&mut self, at: Instant) {
        self.next_due = Some(self.next_due.map_or(at, |next| next.min(at)));
    }

    /// Makes room: called when the hands are full while the broker is connected, so that rows of
    /// working lanes find a place. Rows of paused lanes move to the held table, but for a few to try
    /// the lane with; rows that are held already just leave memory.
    pub(super) fn shed_waiting(&mut self) {
        let paused: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.pause.is_some())
            .map(|(id, _)| id)
            .collect();
        if paused.is_empty() {
            return;
        }
        let keep = (self.capacity / PAUSED_SHARE / paused.len()).min(LANE_KEEP);
        let bytes = self.capacity_bytes / PAUSED_SHARE / paused.len();
        for id in paused {
            let keep = self.kept(id, keep, bytes);
            let queue = &mut self.lanes.get_mut(id).queue;
            let shed = queue.split_off(keep);
            // The followers of the rows that stay need no room meanwhile.
            // Of one key, the held table always has the lowest rows: a head goes before its followers.
            let (stay, followed): (VecDeque<Token>, VecDeque<Token>) =
                mem::take(queue).into_iter().partition(|token| {
                    !self.rows.get(*token).is_some_and(|row| {
                        row.key.as_ref().is_some_and(|name| {
                            self.keys.get(name).is_some_and(|key| !key.queue.is_empty())
                        })
                    })
                });
            let keep = stay.len();
            self.lanes.get_mut(id).queue = stay;
            for token in followed.into_iter().chain(shed) {
                self.shed(token);
            }
            if keep == 0 {
                self.reopened = true;
                // Nothing is left to try the lane with: its waiting rows are read again as if it
                // worked, and pause it again if it does not.
                self.lanes.get_mut(id).pause = None;
            }
        }
    }

    /// How many rows at the head of a lane's queue are within these limits.
    fn kept(&self, lane: LaneId, rows: usize, bytes: usize) -> usize {
        let mut left = bytes;
        let fits = |token: &&Token| {
            let size = self.rows.get(**token).map_or(0, |row| row.data.size());
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        self.lanes
            .get(lane)
            .queue
            .iter()
            .take(rows)
            .take_while(fits)
            .count()
    }

    fn shed(&mut self, token: Token) {
        let Some(row) = self.rows.get(token) else {
            return;
        };
        let (place, name) = (row.place, row.key.clone());
        match place {
            Place::Outbox => {
                if let Some(key) = name.as_ref().and_then(|name| self.keys.get_mut(name)) {
                    key.active = false;
                    key.held.get_or_insert_with(HeldKey::default);
                }
                self.move_row(token, HeldReason::Waiting, Duration::ZERO, None);
                if let Some(name) = name {
                    self.park_queue(&name);
                }
            }
            Place::Held(id) => {
                self.drop_row(token);
                self.held_ids.remove(&id);
                if let Some(name) = name {
                    self.stop_drain(&name);
                    if let Some(key) = self.keys.get_mut(&name) {
                        key.active = false;
                    }
                }
            }
        }
    }

    // ===== what is to be settled =====

    /// How many acknowledged rows are to be deleted.
    pub(super) fn acked_len(&self) -> usize {
        self.acked.len()
    }

    pub(super) fn take_acked(&mut self) -> Vec<Settled> {
        mem::take(&mut self.acked)
    }

    /// Gives acknowledged rows back whose deletion failed.
    pub(super) fn return_acked(&mut self, mut rows: Vec<Settled>) {
        rows.append(&mut self.acked);
        self.acked = rows;
    }

    pub(super) fn settled(&mut self, rows: &[Settled]) {
        for row in rows {
            self.seqs.remove(&row.seq);
        }
    }

    pub(super) fn take_acked_held(&mut self) -> Vec<AckedHeld> {
        mem::take(&mut self.acked_held)
    }

    pub(super) fn return_acked_held(&mut self, mut rows: Vec<AckedHeld>) {
        rows.append(&mut self.acked_held);
        self.acked_held = rows;
    }

    pub(super) fn settled_held(&mut self, rows: &[AckedHeld]) {
        for AckedHeld { row, key } in rows {
            self.held_ids.remove(&row.id);
            if let Some(held) = key
                .as_ref()
                .and_then(|name| self.keys.get_mut(name))
                .and_then(|key| key.held.as_mut())
            {
                held.unsettled.retain(|id| *id != row.id);
            }
        }
    }

    /// Up to `limit` moves.
    pub(super) fn take_moves(&mut self, limit: usize) -> Vec<Move> {
        let count = self.moves.len().min(limit);
        self.moves.drain(..count).collect()
    }

    pub(super) fn moved(&mut self, moves: &[Move]) {
        for done in moves {
            self.seqs.remove(&done.hold.seq);
            let Some(name) = &done.key else { continue };
            if let Some(held) = self.keys.get_mut(name).and_then(|key| key.held.as_mut()) {
                held.moves = held.moves.saturating_sub(1);
                if done.hold.reason != HeldReason::Parked {
                    held.heads = held.heads.saturating_sub(1);
                }
                self.read_if_wanted(name);
            }
        }
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        mem::take(&mut self.changes)
    }

    pub(super) fn changed(&mut self, changes: &[Change]) {
        for done in changes {
            self.held_ids.remove(&done.change.id);
            let Some(name) = &done.key else { continue };
            if let Some(held) = self.keys.get_mut(name).and_then(|key| key.held.as_mut()) {
                held.heads = held.heads.saturating_sub(1);
                self.read_if_wanted(name);
            }
        }
    }
}
