//! Random histories of the relay's hands against a model of the tables.
//!
//! Reads, answers, deletions and moves happen in any order and with any outcome. At all times: of
//! one key, the first publication of each row is in the order of the rows. At the end, with a broker
//! that accepts everything: nothing is left but what is dead.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    DeadHead, RelayOptions,
    hands::{AckedHeld, Change, DrainRead, Hands, Move},
    slab::Token,
};
use crate::{
    broker::{FailureKind, PublishFailure, Receipt},
    policy::Backoff,
    store::{HeldReason, HeldRow, OutboxRow, Settled},
};

struct World {
    rng: Rng,
    policy: DeadHead,
    hands: Hands,
    now: Instant,
    outbox: BTreeMap<i64, OutboxRow>,
    held: BTreeMap<i64, (HeldRow, Instant)>,
    next_seq: i64,
    next_held: i64,
    window: Vec<Token>,
    settles: Vec<Vec<Settled>>,
    settles_held: Vec<Vec<AckedHeld>>,
    moves: Option<Vec<Move>>,
    changes: Option<Vec<Change>>,
    drains: Vec<DrainRead>,
    /// The numbers of each key's rows in the order of their first publication.
    published: HashMap<String, Vec<i64>>,
    seen: HashSet<i64>,
    dead: HashSet<i64>,
    broken: HashSet<String>,
    healthy: bool,
}

const KEYS: usize = 5;

impl World {
    fn new(seed: u64, policy: DeadHead) -> Self {
        let options = RelayOptions::default()
            .dead_head(policy)
            .max_attempts(3)
            .backoff(Backoff::fixed(Duration::from_secs(2)));
        Self {
            rng: Rng::with_seed(seed),
            policy,
            hands: Hands::new(&options),
            now: Instant::now(),
            outbox: BTreeMap::new(),
            held: BTreeMap::new(),
            next_seq: 1,
            next_held: 1,
            window: Vec::new(),
            settles: Vec::new(),
            settles_held: Vec::new(),
            moves: None,
            changes: None,
            drains: Vec::new(),
            published: HashMap::new(),
            seen: HashSet::new(),
            dead: HashSet::new(),
            broken: HashSet::new(),
            healthy: false,
        }
    }

    fn write(&mut self) {
        let seq = self.next_seq;
        self.next_seq += 1;
        let key = (self.rng.usize(..4) > 0).then(|| format!("k{}", self.rng.usize(..KEYS)));
        let subject = format!("s{}", self.rng.usize(..3));
        let row = OutboxRow {
            seq,
            id: Uuid::new_v4(),
            event_type: "t".into(),
            version: 1,
            subject,
            key,
            headers: String::new(),
            payload: Bytes::new(),
            occurred_at: OffsetDateTime::UNIX_EPOCH,
        };
        self.outbox.insert(seq, row);
    }

    fn read(&mut self) {
        let excluded = self.hands.in_hand();
        let limit = self.rng.usize(1..8);
        let rows = self
            .outbox
            .values()
            .filter(|row| {
                !excluded
                    .as_slice()
                    .iter()
                    .any(|(from, to)| (*from..=*to).contains(&row.seq))
            })
            .take(limit)
            .cloned()
            .collect();
        self.hands.admit(rows);
    }

    fn send(&mut self) {
        while self.window.len() < 6
            && let Some(token) = self.hands.next(self.now)
        {
            if self.hands.sent(token).is_some() {
                self.window.push(token);
            }
        }
    }

    fn answer(&mut self) {
        if self.window.is_empty() {
            return;
        }
        let token = self.window.swap_remove(self.rng.usize(..self.window.len()));
        let Some(row) = self.hands.row(token).cloned() else {
            panic!("a row in flight left the hands")
        };
        let fails =
            !self.healthy && (self.broken.contains(&row.subject) || self.rng.usize(..5) == 0);
        if !fails {
            self.publish(&row);
            let receipt = Receipt {
                stream: Arc::from("S"),
                sequence: 1,
                duplicate: false,
            };
            self.hands.acked(token, &receipt, self.now);
            return;
        }
        let kind = match self.rng.usize(..5) {
            0 => FailureKind::Disconnected,
            1 => FailureKind::Unavailable,
            2 => FailureKind::TimedOut,
            3 => FailureKind::NoStream,
            _ => FailureKind::Rejected,
        };
        // A message whose confirmation is lost may have been stored.
        if kind == FailureKind::TimedOut && self.rng.bool() {
            self.publish(&row);
        }
        if self
            .hands
            .failed(token, &PublishFailure::new(kind, "no"), self.now)
        {
            for (lane, _) in self.hands.probes() {
                let answer = if self.rng.bool() {
                    Ok(())
                } else {
                    Err(PublishFailure::new(FailureKind::TimedOut, "no answer"))
                };
                self.hands.probed(lane, &answer, self.now);
            }
        }
    }

    fn publish(&mut self, row: &OutboxRow) {
        if let Some(key) = &row.key
            && self.seen.insert(row.seq)
        {
            self.published.entry(key.clone()).or_default().push(row.seq);
        }
    }

    fn begin_statements(&mut self) {
        let acked = self.hands.take_acked();
        if !acked.is_empty() {
            self.settles.push(acked);
        }
        let acked = self.hands.take_acked_held();
        if !acked.is_empty() {
            self.settles_held.push(acked);
        }
        if self.moves.is_none() && self.changes.is_none() {
            let moves = self.hands.take_moves(3);
            if moves.is_empty() {
                let changes = self.hands.take_changes();
                self.changes = (!changes.is_empty()).then_some(changes);
            } else {
                self.moves = Some(moves);
            }
        }
        self.drains.extend(self.hands.take_drain_reads());
    }

    fn finish_a_statement(&mut self) {
        match self.rng.usize(..5) {
            0 if !self.settles.is_empty() => {
                let rows = self.settles.remove(0);
                for row in &rows {
                    assert!(
                        self.outbox.remove(&row.seq).is_some(),
                        "row {} was settled twice",
                        row.seq
                    );
                }
                self.hands.settled(&rows);
            }
            1 if !self.settles_held.is_empty() => {
                let rows = self.settles_held.remove(0);
                for row in &rows {
                    assert!(
                        self.held.remove(&row.row.id).is_some(),
                        "held row {} was settled twice",
                        row.row.id
                    );
                }
                self.hands.settled_held(&rows);
            }
            2 => {
                if let Some(moves) = self.moves.take() {
                    for one in &moves {
                        let Some(row) = self.outbox.remove(&one.hold.seq) else {
                            panic!("row {} was moved twice", one.hold.seq)
                        };
                        self.put_held(row, one.hold.reason, one.hold.due_in, one.hold.attempts);
                    }
                    self.hands.moved(&moves);
                } else if let Some(changes) = self.changes.take() {
                    for one in &changes {
                        let Some((row, due)) = self.held.get_mut(&one.change.id) else {
                            panic!("a held row vanished")
                        };
                        row.reason = one.change.reason;
                        row.attempts = one.change.attempts;
                        *due = self.now + one.change.due_in;
                        if one.change.reason == HeldReason::Dead {
                            self.dead.insert(row.row.seq);
                        }
                    }
                    self.hands.changed(&changes);
                }
            }
            _ if !self.drains.is_empty() => {
                let read = self.drains.swap_remove(self.rng.usize(..self.drains.len()));
                let limit = self.rng.usize(1..4);
                let mut rows: Vec<HeldRow> = self
                    .held
                    .values()
                    .filter(|(held, _)| held.row.key.as_deref() == Some(&*read.key))
                    .filter(|(held, _)| {
                        held.reason != HeldReason::Dead || self.policy == DeadHead::Park
                    })
                    .filter(|(held, _)| !read.exclude_ids.contains(&held.id))
                    .map(|(held, due)| HeldRow {
                        due_in: due.saturating_duration_since(self.now),
                        ..held.clone()
                    })
                    .collect();
                rows.sort_by_key(|held| held.row.seq);
                rows.truncate(limit);
                self.hands.drained(&read, rows, self.now);
            }
            _ => {}
        }
    }

    fn put_held(&mut self, row: OutboxRow, reason: HeldReason, due_in: Duration, attempts: u32) {
        let id = self.next_held;
        self.next_held += 1;
        if reason == HeldReason::Dead {
            self.dead.insert(row.seq);
        }
        let held = HeldRow {
            id,
            row,
            reason,
            attempts,
            due_in,
            first_error: None,
            last_error: None,
            held_at: OffsetDateTime::UNIX_EPOCH,
            changed_at: OffsetDateTime::UNIX_EPOCH,
        };
        self.held.insert(id, (held, self.now + due_in));
    }

    fn scan(&mut self) {
        let in_hand = self.hands.held_in_hand();
        let paused = self.hands.lanes.paused_subjects();
        let rows: Vec<HeldRow> = self
            .held
            .values()
            .filter(|(held, due)| match held.reason {
                HeldReason::Failing => *due <= self.now,
                HeldReason::Waiting => !paused.contains(&held.row.subject),
                _ => false,
            })
            .filter(|(held, _)| !in_hand.contains(&held.id))
            .map(|(held, _)| HeldRow {
                due_in: Duration::ZERO,
                ..held.clone()
            })
            .collect();
        self.hands.admit_held(rows);
    }

    /// Parked keys without a head get their lowest row as head.
    fn repair(&mut self) {
        let mut lowest: HashMap<String, (i64, i64)> = HashMap::new();
        let mut has_head: HashSet<String> = HashSet::new();
        for (held, _) in self.held.values() {
            let Some(key) = held.row.key.clone() else {
                continue;
            };
            match held.reason {
                HeldReason::Parked => {
                    let entry = lowest.entry(key).or_insert((held.row.seq, held.id));
                    *entry = (*entry).min((held.row.seq, held.id));
                }
                HeldReason::Failing | HeldReason::Waiting => drop(has_head.insert(key)),
                HeldReason::Dead if self.policy == DeadHead::Park => drop(has_head.insert(key)),
                _ => {}
            }
        }
        for (key, (_, id)) in lowest {
            if !has_head.contains(&key)
                && let Some((held, due)) = self.held.get_mut(&id)
            {
                held.reason = HeldReason::Failing;
                *due = self.now;
            }
        }
    }

    fn step(&mut self) {
        match self.rng.usize(..10) {
            0 if !self.healthy && self.next_seq < 60 => self.write(),
            1 => self.read(),
            2 | 3 => self.answer(),
            4 | 5 => self.finish_a_statement(),
            6 => self.scan(),
            7 if self.rng.usize(..10) == 0 => {
                self.now += Duration::from_millis(self.rng.u64(1..4000));
                let subject = format!("s{}", self.rng.usize(..3));
                if !self.broken.remove(&subject) && self.rng.bool() {
                    self.broken.insert(subject);
                }
            }
            8 if self.rng.usize(..5) == 0 => self.hands.shed_waiting(),
            9 if self.rng.usize(..20) == 0 => self.repair(),
            _ => {}
        }
        self.send();
        self.begin_statements();
        self.check_order();
    }

    fn check_order(&self) {
        for (key, seqs) in &self.published {
            assert!(
                seqs.is_sorted(),
                "key {key} was published out of order: {seqs:?}"
            );
        }
    }

    fn check_end(&self) {
        assert!(
            self.outbox.is_empty(),
            "left in the outbox: {:?}",
            self.outbox.keys()
        );
        let left: Vec<_> = self
            .held
            .values()
            .filter(|(held, _)| held.reason != HeldReason::Dead)
            .filter(|(held, _)| {
                let dead_head = self.held.values().any(|(other, _)| {
                    other.reason == HeldReason::Dead
                        && other.row.key == held.row.key
                        && other.row.seq < held.row.seq
                });
                !(self.policy == DeadHead::Park && held.row.key.is_some() && dead_head)
            })
            .map(|(held, _)| (held.row.seq, held.reason, held.row.key.clone()))
            .collect();
        assert!(left.is_empty(), "left in the held table: {left:?}");
        assert_eq!(self.hands.len(), 0, "left in hand");
    }
}

fn run(seed: u64, policy: DeadHead) {
    fastrand::seed(seed); // the jitter of pauses and backoff
    let mut world = World::new(seed, policy);
    for _ in 0..3000 {
        world.step();
    }
    world.healthy = true;
    world.broken.clear();
    for round in 0..6000 {
        if round % 20 == 0 {
            world.now += Duration::from_millis(500);
        }
        if round % 100 == 0 {
            world.repair();
        }
        world.step();
    }
    world.check_end();
}

#[test]
fn any_history_keeps_order_and_loses_nothing() {
    let from: u64 = std::env::var("OUTBOX_SIMULATION_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0);
    for seed in from..from + 150 {
        for policy in [DeadHead::Continue, DeadHead::Park] {
            let result = std::panic::catch_unwind(|| run(seed, policy));
            assert!(
                result.is_ok(),
                "OUTBOX_SIMULATION_SEED={seed} reproduces it, with {policy:?}"
            );
        }
    }
}
