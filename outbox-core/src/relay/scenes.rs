//! Scenes in which an earlier version broke a promise, with the hands alone and with an engine over a
//! store in memory.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    RelayOptions,
    engine::{End, Engine, Mode, Parts},
    hands::Hands,
    status::SharedStatus,
};
use crate::{
    Bus, MemoryBroker, Relay,
    broker::{FailureKind, PublishFailure, Publisher, Receipt, WireMessage},
    bus::Signal,
    error::{StoreError, StoreErrorKind},
    store::{
        Backlog, FloorProbe, HeldChange, HeldFilter, HeldReason, HeldRow, HoldMove, Lease,
        OutboxRecord, OutboxRow, OutboxStore, Pool, ReadQuery, Settled, Store,
    },
};
use bytes::Bytes;
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

fn row(seq: i64, key: Option<&str>, subject: &str, size: usize) -> OutboxRow {
    OutboxRow {
        seq,
        id: Uuid::from_u128(seq as u128),
        event_type: "t".into(),
        version: 1,
        subject: subject.into(),
        key: key.map(Into::into),
        headers: String::new(),
        payload: Bytes::from(vec![0; size]),
        occurred_at: OffsetDateTime::UNIX_EPOCH,
    }
}
fn held(id: i64, r: OutboxRow, reason: HeldReason) -> HeldRow {
    HeldRow {
        id,
        row: r,
        reason,
        attempts: 0,
        due_in: Duration::ZERO,
        first_error: None,
        last_error: None,
        held_at: OffsetDateTime::UNIX_EPOCH,
        changed_at: OffsetDateTime::UNIX_EPOCH,
    }
}
fn unavailable() -> PublishFailure {
    PublishFailure::new(FailureKind::Unavailable, "full")
}
fn receipt(s: &str) -> Receipt {
    Receipt {
        stream: Arc::from(s),
        sequence: 1,
        duplicate: false,
    }
}

/// A drain read whose snapshot is older than a move that is over when it answers.
#[test]
fn a_stale_read_does_not_free_a_key_with_parked_rows() {
    let now = Instant::now();
    let mut h = Hands::new(&RelayOptions::default());
    h.load_held_keys(["k".to_owned()]);
    h.admit_held(vec![held(
        1,
        row(1, Some("k"), "s", 0),
        HeldReason::Waiting,
    )]);
    let read = h.take_drain_reads().remove(0); // snapshot taken: held row 1
    h.drained(
        &read,
        vec![held(1, row(1, Some("k"), "s", 0), HeldReason::Waiting)],
        now,
    );
    let t = h.next(now).unwrap();
    h.sent(t);
    h.acked(t, &receipt("S"), now);
    let read = h.take_drain_reads().remove(0); // snapshot taken now: nothing held
    let acked = h.take_acked_held();
    h.settled_held(&acked);
    // meanwhile an outbox read brings 70 rows of the key: over KEY_QUEUE, so they are parked, and the move settles
    h.admit((2..=66).map(|s| row(s, Some("k"), "s", 0)).collect());
    let moves = h.take_moves(1000);
    assert!(!moves.is_empty());
    h.moved(&moves);
    h.drained(&read, vec![], now); // the old snapshot's answer arrives
    h.admit(vec![row(67, Some("k"), "s", 0)]);
    let t = h.next(now);
    assert!(
        t.is_none(),
        "row {:?} goes out before the parked 2..=66",
        t.map(|t| h.row(t).unwrap().seq)
    );
}

/// Of one key, the held table always has the lowest rows: shedding moves a head before its followers,
/// so that a relay that starts anew does not find the followers alone.
#[test]
fn shedding_moves_a_head_before_its_followers() {
    let now = Instant::now();
    let mut hands = Hands::new(&RelayOptions::default().batch(10).in_hand(40));
    hands.admit((1..=40).map(|seq| row(seq, Some("k"), "s", 0)).collect());
    let token = hands.next(now).unwrap();
    hands.sent(token);
    hands.failed(token, &unavailable(), now);
    hands.shed_waiting();
    let moved: Vec<i64> = hands
        .take_moves(1000)
        .iter()
        .map(|one| one.hold.seq)
        .collect();
    assert_eq!(moved, (1..=40).collect::<Vec<_>>());
}

/// 64 keys of an unavailable stream take all the drains.
#[test]
fn keys_of_an_unavailable_stream_do_not_starve_those_of_others() {
    let now = Instant::now();
    let mut h = Hands::new(&RelayOptions::default());
    let a: Vec<_> = (0..64)
        .map(|i| {
            held(
                i,
                row(i, Some(&format!("a{i}")), "a", 0),
                HeldReason::Waiting,
            )
        })
        .collect();
    h.admit_held(a.clone());
    for read in h.take_drain_reads() {
        let i: i64 = read.key[1..].parse().unwrap();
        h.drained(&read, vec![a[i as usize].clone()], now);
    }
    while let Some(t) = h.next(now) {
        h.sent(t);
        h.failed(t, &unavailable(), now);
    }
    assert!(h.has_room_for(1000));
    h.admit_held(vec![held(
        100,
        row(100, Some("b"), "b", 0),
        HeldReason::Failing,
    )]);
    assert_eq!(
        h.take_drain_reads().len(),
        1,
        "key b of a healthy stream is never taken up"
    );
}

/// A row that cannot be encoded, picked as the trial of a paused lane.
#[test]
fn an_unsendable_trial_does_not_pause_its_lane_for_ever() {
    let mut now = Instant::now();
    let mut h = Hands::new(&RelayOptions::default());
    h.admit((1..=10).map(|s| row(s, None, "s", 0)).collect());
    let t = h.next(now).unwrap();
    h.sent(t);
    h.failed(t, &unavailable(), now);
    assert!(h.next(now).is_none());
    now += Duration::from_secs(1);
    let bad = h.next(now).unwrap(); // trial 1
    h.unsendable(bad, "bad header".into(), now);
    for _ in 0..100 {
        now += Duration::from_secs(10);
        while let Some(t) = h.next(now) {
            h.sent(t);
            h.failed(t, &unavailable(), now);
        }
    }
    now += Duration::from_secs(10);
    assert!(h.next(now).is_some(), "the lane is never tried again");
}

// ===== engine =====
#[derive(Clone, Default)]
struct Fake(Arc<Inner>);
#[derive(Default)]
struct Inner {
    outbox: Mutex<BTreeMap<i64, OutboxRow>>,
    held: Mutex<BTreeMap<i64, HeldRow>>,
    /// Every statement fails.
    away: AtomicBool,
    /// Taking the lease is not answered.
    frozen: AtomicBool,
    /// An operator deletes the first row before the next move.
    rival: AtomicBool,
    /// Statements so far.
    asked: AtomicUsize,
    /// Bytes of all rows that were read from the outbox.
    read: AtomicUsize,
    /// The highest floor of a read that left rows beyond it.
    floor: AtomicI64,
    /// When failing rows are due.
    due: Mutex<BTreeMap<i64, Instant>>,
    on_waiting_scan: Mutex<Option<Arc<AtomicBool>>>,
    /// Scans for held rows that are due.
    scans: AtomicUsize,
    /// Bytes of held rows that were read by key and are still there, and the most that there ever were.
    lent: Mutex<BTreeMap<i64, usize>>,
    most_lent: AtomicUsize,
}
impl Fake {
    fn insert(&self, row: OutboxRow) {
        self.0.outbox.lock().unwrap().insert(row.seq, row);
    }

    fn insert_held(&self, row: OutboxRow, reason: HeldReason) {
        if reason == HeldReason::Failing {
            self.0.due.lock().unwrap().insert(row.seq, Instant::now());
        }
        let row = held(row.seq, row, reason);
        self.0.held.lock().unwrap().insert(row.id, row);
    }

    fn ask(&self) -> Result<(), StoreError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        if self.0.away.load(Ordering::SeqCst) {
            let cause = "connection refused";
            return Err(StoreError::new(StoreErrorKind::Unavailable, "ask", cause));
        }
        Ok(())
    }

    fn due_in(&self, id: i64) -> Duration {
        let due = self.0.due.lock().unwrap().get(&id).copied();
        due.map_or(Duration::ZERO, |due| {
            due.saturating_duration_since(Instant::now())
        })
    }
}
impl Store for Fake {
    type Tx = ();
    async fn insert(&self, _: &(), _: &str, _: &[OutboxRecord]) -> Result<(), StoreError> {
        Ok(())
    }
    async fn begin(&self, _: Pool) -> Result<(), StoreError> {
        Ok(())
    }
    async fn commit(&self, _: ()) -> Result<(), StoreError> {
        Ok(())
    }
    async fn commit_with(&self, _: (), _: &str, _: Vec<OutboxRecord>) -> Result<(), StoreError> {
        Ok(())
    }
    async fn rollback(&self, _: ()) -> Result<(), StoreError> {
        Ok(())
    }
    async fn ping(&self) -> Result<u64, StoreError> {
        Ok(0)
    }
    fn classify(&self, _: &(dyn std::error::Error + 'static)) -> Option<StoreErrorKind> {
        None
    }
    async fn check_schema(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
impl OutboxStore for Fake {
    async fn acquire(&self, _: &str, _: Uuid, _: Duration) -> Result<Option<i64>, StoreError> {
        self.ask()?;
        while self.0.frozen.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Some(1))
    }
    async fn renew(&self, _: &Lease) -> Result<(), StoreError> {
        self.ask()?;
        Ok(())
    }
    async fn release(&self, _: &Lease) -> Result<(), StoreError> {
        self.ask()?;
        Ok(())
    }
    async fn read(&self, _: &str, q: &ReadQuery) -> Result<Vec<OutboxRow>, StoreError> {
        self.ask()?;
        let mut bytes = 0;
        let rows = self
            .0
            .outbox
            .lock()
            .unwrap()
            .values()
            .filter(|r| r.seq > q.floor)
            .filter(|r| {
                !q.exclude
                    .as_slice()
                    .iter()
                    .any(|(a, b)| (*a..=*b).contains(&r.seq))
            })
            .take(q.limit as usize)
            .enumerate()
            .take_while(|(i, r)| {
                bytes += r.payload.len();
                *i == 0 || bytes <= q.max_bytes
            })
            .map(|(_, r)| r.clone())
            .collect::<Vec<_>>();
        let size = rows.iter().map(|r| r.payload.len()).sum();
        self.0.read.fetch_add(size, Ordering::SeqCst);
        let end = self.0.outbox.lock().unwrap().keys().next_back().copied();
        if rows.last().is_some_and(|last| Some(last.seq) < end) {
            self.0.floor.fetch_max(q.floor, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(rows)
    }
    async fn settle(&self, _: &str, rows: &[Settled]) -> Result<u64, StoreError> {
        self.ask()?;
        let mut o = self.0.outbox.lock().unwrap();
        for r in rows {
            o.remove(&r.seq);
        }
        Ok(rows.len() as u64)
    }
    async fn hold(&self, _: &Lease, moves: &[HoldMove]) -> Result<(), StoreError> {
        self.ask()?;
        let mut o = self.0.outbox.lock().unwrap();
        let mut h = self.0.held.lock().unwrap();
        if self.0.rival.swap(false, Ordering::SeqCst) {
            o.pop_first();
        }
        if moves.iter().any(|m| !o.contains_key(&m.seq)) {
            let cause = "not all rows were there; nothing was moved";
            return Err(StoreError::new(StoreErrorKind::Other, "move", cause));
        }
        for m in moves {
            let r = o.remove(&m.seq).unwrap();
            let mut x = held(r.seq, r, m.reason);
            x.attempts = m.attempts;
            if m.reason == HeldReason::Failing {
                let due = Instant::now() + m.due_in;
                self.0.due.lock().unwrap().insert(x.id, due);
            }
            h.insert(x.id, x);
        }
        Ok(())
    }
    async fn held(&self, _: &str, f: &HeldFilter) -> Result<Vec<HeldRow>, StoreError> {
        self.ask()?;
        self.0.scans.fetch_add(usize::from(f.due), Ordering::SeqCst);
        let mut bytes = 0;
        let rows: Vec<_> = self
            .0
            .held
            .lock()
            .unwrap()
            .values()
            .filter(|r| f.reasons.is_empty() || f.reasons.contains(&r.reason))
            .filter(|r| {
                !f.exclude_ids.contains(&r.id) && !f.exclude_subjects.contains(&r.row.subject)
            })
            .filter(|r| f.key.is_none() || r.row.key == f.key)
            .filter(|r| {
                r.row
                    .key
                    .as_ref()
                    .is_none_or(|key| !f.exclude_keys.contains(key))
            })
            .filter(|r| !f.due || self.due_in(r.id).is_zero())
            .take(f.limit as usize)
            .enumerate()
            .take_while(|(i, r)| {
                bytes += r.row.payload.len();
                *i == 0 || bytes <= f.max_bytes
            })
            .map(|(_, r)| HeldRow {
                due_in: self.due_in(r.id),
                ..r.clone()
            })
            .collect();
        if f.key.is_some() {
            let mut lent = self.0.lent.lock().unwrap();
            lent.extend(rows.iter().map(|r| (r.id, r.row.payload.len())));
            self.0
                .most_lent
                .fetch_max(lent.values().sum(), Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        if f.reasons == [HeldReason::Waiting] && !f.exclude_subjects.is_empty() {
            // this scan's snapshot is taken; the stream comes back while its answer is on the way
            let hook = self.0.on_waiting_scan.lock().unwrap().take();
            if let Some(open) = hook {
                open.store(true, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(6000)).await;
            }
        }
        Ok(rows)
    }
    async fn held_keys(&self, _: &str, _: bool) -> Result<Vec<String>, StoreError> {
        self.ask()?;
        Ok(vec![])
    }
    async fn change_held(&self, _: &Lease, changes: &[HeldChange]) -> Result<(), StoreError> {
        self.ask()?;
        let mut h = self.0.held.lock().unwrap();
        for c in changes {
            let x = h.get_mut(&c.id).unwrap();
            (x.reason, x.attempts) = (c.reason, c.attempts);
            let due = Instant::now() + c.due_in;
            self.0.due.lock().unwrap().insert(c.id, due);
        }
        Ok(())
    }
    async fn settle_held(&self, _: &str, rows: &[(i64, Uuid)]) -> Result<u64, StoreError> {
        self.ask()?;
        let mut h = self.0.held.lock().unwrap();
        for r in rows {
            h.remove(&r.0);
            self.0.lent.lock().unwrap().remove(&r.0);
        }
        Ok(rows.len() as u64)
    }
    async fn release_due(&self, _: &Lease, _: u32) -> Result<u64, StoreError> {
        self.ask()?;
        Ok(0)
    }
    async fn repair_heads(&self, _: &Lease, _: bool) -> Result<u64, StoreError> {
        self.ask()?;
        Ok(0)
    }
    async fn next_due(&self, _: &str) -> Result<Option<Duration>, StoreError> {
        self.ask()?;
        let held = self.0.held.lock().unwrap();
        let failing = held.values().filter(|r| r.reason == HeldReason::Failing);
        Ok(failing.map(|r| self.due_in(r.id)).min())
    }
    async fn probe_floor(
        &self,
        _: &str,
        last: Option<FloorProbe>,
    ) -> Result<Option<FloorProbe>, StoreError> {
        self.ask()?;
        let c = self
            .0
            .outbox
            .lock()
            .unwrap()
            .keys()
            .next_back()
            .copied()
            .unwrap_or(0);
        Ok(Some(match last {
            Some(p) => FloorProbe { passed: true, ..p },
            None => FloorProbe {
                candidate: c,
                marker: 1,
                passed: false,
            },
        }))
    }
    async fn backlog(&self, _: &str) -> Result<Backlog, StoreError> {
        Ok(Backlog::default())
    }
    async fn held_row(&self, _: &str, _: i64) -> Result<Option<HeldRow>, StoreError> {
        Ok(None)
    }
    async fn replay_dead(&self, _: &str, _: i64) -> Result<bool, StoreError> {
        Ok(false)
    }
    async fn discard_dead(&self, _: &str, _: i64) -> Result<bool, StoreError> {
        Ok(false)
    }
}
/// Answers by subject: `good` is confirmed, `refused` refused, `slow` never answered in time, and all
/// else unavailable until it is open.
#[derive(Default)]
struct Pub {
    open: Arc<AtomicBool>,
    delay: Duration,
    away: bool,
    sent: Arc<Mutex<Vec<Uuid>>>,
}
impl Publisher for Pub {
    fn publish(
        &self,
        m: WireMessage,
    ) -> impl Future<Output = Result<Receipt, PublishFailure>> + Send + 'static {
        let (open, delay) = (self.open.clone(), self.delay);
        self.sent.lock().unwrap().extend(m.id);
        async move {
            tokio::time::sleep(delay).await;
            if m.subject == "refused" {
                return Err(PublishFailure::new(FailureKind::Rejected, "too large"));
            }
            if m.subject == "slow" {
                tokio::time::sleep(Duration::from_secs(5)).await;
                return Err(PublishFailure::new(FailureKind::TimedOut, "no answer"));
            }
            if m.subject == "good" || open.load(Ordering::SeqCst) {
                Ok(receipt(if m.subject == "good" { "G" } else { "S" }))
            } else {
                Err(unavailable())
            }
        }
    }
    async fn probe(&self, _: &str) -> Result<(), PublishFailure> {
        Ok(())
    }
    fn connected(&self) -> bool {
        !self.away
    }
}
fn engine(
    store: &Fake,
    publisher: Pub,
    options: RelayOptions,
    status: SharedStatus,
) -> Engine<Fake, Pub> {
    let lease = Lease {
        target: "t".into(),
        owner: Uuid::nil(),
        epoch: 1,
        length: Duration::from_secs(10),
    };
    Engine::new(
        Parts {
            store: store.clone(),
            publisher: Arc::new(publisher),
            signal: Arc::new(Signal::default()),
            options,
            source_name: "x".into(),
            status,
        },
        lease,
        Instant::now(),
        Mode::Run,
    )
}

#[tokio::test(start_paused = true)]
async fn the_floor_never_passes_rows_that_the_byte_limit_left_out() {
    let store = Fake::default();
    let body = Bytes::from(vec![0; 20_000]);
    for s in 1..=20_000 {
        let mut r = row(s, None, "good", 0);
        r.payload = body.clone();
        store.0.outbox.lock().unwrap().insert(s, r);
    }
    let p = Pub {
        open: Arc::default(),
        delay: Duration::from_millis(60),
        ..Pub::default()
    };
    let mut e = engine(&store, p, RelayOptions::default(), SharedStatus::default());
    let stop = CancellationToken::new();
    let _ = tokio::time::timeout(Duration::from_secs(120), e.run(&stop)).await;
    assert_eq!(
        store.0.outbox.lock().unwrap().len(),
        0,
        "rows that are never read"
    );
}

/// Dead row versions before a long backlog are not scanned again with each read of it.
#[tokio::test(start_paused = true)]
async fn the_floor_follows_the_reads_of_a_backlog() {
    let store = Fake::default();
    for seq in 1..=100_000 {
        store.insert(row(seq, None, "good", 10));
    }
    let publisher = Pub {
        delay: Duration::from_millis(1),
        ..Pub::default()
    };
    let mut e = engine(
        &store,
        publisher,
        RelayOptions::default(),
        SharedStatus::default(),
    );
    let stop = CancellationToken::new();
    let _ = tokio::time::timeout(Duration::from_secs(60), e.run(&stop)).await;
    assert_eq!(store.0.outbox.lock().unwrap().len(), 0);
    let floor = store.0.floor.load(Ordering::SeqCst);
    assert!(floor > 90_000, "the last read but one began at {floor}");
}

#[tokio::test(start_paused = true)]
async fn a_scan_that_is_under_way_when_a_stream_comes_back_strands_nothing() {
    let store = Fake::default();
    for s in 1..=100 {
        store
            .0
            .outbox
            .lock()
            .unwrap()
            .insert(s, row(s, None, "full", 10));
    }
    let open = Arc::new(AtomicBool::new(false));
    let p = Pub {
        open: open.clone(),
        delay: Duration::from_millis(1),
        ..Pub::default()
    };
    let mut e = engine(
        &store,
        p,
        RelayOptions::default().batch(20).in_hand(40),
        SharedStatus::default(),
    );
    let stop = CancellationToken::new();
    {
        let run = e.run(&stop);
        tokio::pin!(run);
        let _ = tokio::time::timeout(Duration::from_secs(20), &mut run).await;
        *store.0.on_waiting_scan.lock().unwrap() = Some(open.clone());
        let _ = tokio::time::timeout(Duration::from_secs(600), &mut run).await;
    }
    let left = store.0.held.lock().unwrap().len();
    assert!(open.load(Ordering::SeqCst));
    assert_eq!(
        (left, store.0.outbox.lock().unwrap().len()),
        (0, 0),
        "waiting rows that are never taken up, ten minutes after the stream came back"
    );
}

#[tokio::test(start_paused = true)]
async fn health_names_the_unavailable_stream() {
    let store = Fake::default();
    store
        .0
        .outbox
        .lock()
        .unwrap()
        .insert(1, row(1, None, "full", 10));
    let status = SharedStatus::default();
    let p = Pub {
        open: Arc::default(),
        delay: Duration::from_millis(1),
        ..Pub::default()
    };
    let mut e = engine(&store, p, RelayOptions::default(), status.clone());
    let stop = CancellationToken::new();
    let _ = tokio::time::timeout(Duration::from_secs(60), e.run(&stop)).await;
    assert!(
        !status.get().unavailable.is_empty(),
        "a minute of nothing but `unavailable`: {:?}",
        status.get()
    );
}

/// Of a batch, one row is refused and one never answered: each goes its own way, and the others go once.
#[tokio::test(start_paused = true)]
async fn a_failing_row_of_a_batch_sends_no_other_again() {
    let store = Fake::default();
    for seq in 1..=10 {
        let subject = match seq {
            3 => "refused",
            7 => "slow",
            _ => "good",
        };
        store.insert(row(seq, None, subject, 10));
    }
    let publisher = Pub::default();
    let sent = Arc::clone(&publisher.sent);
    let options = RelayOptions::default().batch(10).max_attempts(3);
    let mut engine = engine(&store, publisher, options, SharedStatus::default());
    let stop = CancellationToken::new();
    let _ = tokio::time::timeout(Duration::from_secs(120), engine.run(&stop)).await;
    let sent = sent.lock().unwrap();
    let times = |seq: u128| sent.iter().filter(|id| id.as_u128() == seq).count();
    let good: Vec<usize> = [1, 2, 4, 5, 6, 8, 9, 10].map(times).into();
    assert_eq!(good, [1; 8]);
    assert_eq!(times(3), 3, "as often as it may fail");
    assert_eq!(times(7), 4, "its first time-out is not counted");
    let held = store.0.held.lock().unwrap();
    let dead: Vec<_> = held
        .values()
        .map(|r| (r.id, r.reason, r.attempts))
        .collect();
    assert_eq!(dead, [(3, HeldReason::Dead, 3), (7, HeldReason::Dead, 3)]);
    let tally = engine.tally();
    assert_eq!((tally.published, tally.failed, tally.dead), (8, 6, 2));
}

/// What is read at a time of the held rows of many keys fits into memory.
#[tokio::test(start_paused = true)]
async fn large_held_rows_of_many_keys_fit_into_memory() {
    const MIB: usize = 1024 * 1024;
    let store = Fake::default();
    let body = Bytes::from(vec![0; MIB - 20_000]);
    for seq in 0..2_000 {
        let (key, place) = (format!("k{}", seq / 20), seq % 20);
        let mut large = row(seq, Some(&key), "good", 0);
        large.payload = body.clone();
        let reason = if place == 0 {
            HeldReason::Failing
        } else {
            HeldReason::Parked
        };
        store.insert_held(large, reason);
    }
    let publisher = Pub {
        delay: Duration::from_secs(2),
        ..Pub::default()
    };
    let mut engine = engine(
        &store,
        publisher,
        RelayOptions::default(),
        SharedStatus::default(),
    );
    let stop = CancellationToken::new();
    let _ = tokio::time::timeout(Duration::from_secs(600), engine.run(&stop)).await;
    let most = store.0.most_lent.load(Ordering::SeqCst) / MIB;
    assert!(most <= 64, "{most} MiB of held rows in memory");
    assert_eq!(store.0.held.lock().unwrap().len(), 0);
}

/// Memory does not grow with what waits while the broker is away, or answers nobody.
#[tokio::test(start_paused = true)]
async fn a_backlog_of_a_gigabyte_is_not_read_ahead() {
    let body = Bytes::from(vec![0; 20_000]);
    for away in [true, false] {
        let store = Fake::default();
        for seq in 1..=50_000 {
            let mut large = row(seq, None, "good", 0);
            large.payload = body.clone();
            store.insert(large);
        }
        let publisher = Pub {
            delay: Duration::from_secs(60),
            away,
            ..Pub::default()
        };
        let options = RelayOptions::default();
        let mut engine = engine(&store, publisher, options, SharedStatus::default());
        let stop = CancellationToken::new();
        let _ = tokio::time::timeout(Duration::from_secs(50), engine.run(&stop)).await;
        let read = store.0.read.load(Ordering::SeqCst) >> 20;
        assert!(read <= 40, "{read} MiB in memory, broker away: {away}");
    }
}

/// Many more keys are due than are taken up at a time, and nothing gets on.
#[tokio::test(start_paused = true)]
async fn held_rows_that_cannot_go_are_not_read_in_a_loop() {
    for away in [true, false] {
        let store = Fake::default();
        for seq in 0..1_000 {
            let key = format!("k{seq}");
            store.insert_held(row(seq, Some(&key), "good", 10), HeldReason::Failing);
        }
        let publisher = Pub {
            delay: Duration::from_secs(60),
            away,
            ..Pub::default()
        };
        let mut engine = engine(
            &store,
            publisher,
            RelayOptions::default(),
            SharedStatus::default(),
        );
        let stop = CancellationToken::new();
        let _ = tokio::time::timeout(Duration::from_secs(8), engine.run(&stop)).await;
        let scans = store.0.scans.load(Ordering::SeqCst);
        assert!(scans <= 50, "{scans} scans in 8 s, broker away: {away}");
    }
}

/// Counts what is logged as a warning or an error.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Ten minutes without a database: neither a loop of statements nor a flood of lines, and an end to it.
#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_is_asked_ever_less_often() {
    let lines = Arc::new(AtomicUsize::new(0));
    let _guard = tracing::subscriber::set_default(Warnings(Arc::clone(&lines)));
    let store = Fake::default();
    let relay = Relay::new(Bus::new(store.clone()), MemoryBroker::new());
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { relay.run(stop).await }
    });
    store.insert(row(1, None, "good", 10));
    let left = || store.0.outbox.lock().unwrap().len();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(left(), 0);

    store.0.away.store(true, Ordering::SeqCst);
    let before = store.0.asked.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = store.0.asked.load(Ordering::SeqCst) - before;
    let logged = lines.load(Ordering::SeqCst);
    assert!(
        (100..=300).contains(&asked),
        "{asked} statements in ten minutes"
    );
    assert!((2..=30).contains(&logged), "{logged} lines in ten minutes");

    store.0.away.store(false, Ordering::SeqCst);
    store.insert(row(2, None, "good", 10));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(left(), 0, "it goes on by itself");
    stop.cancel();
    running.await.unwrap();
}

/// A row that is to be moved is gone, so that nothing of its batch is moved: all others get on.
#[tokio::test(start_paused = true)]
async fn a_move_that_fails_holds_up_no_other_row() {
    let store = Fake::default();
    for seq in 1..=6 {
        let subject = if seq <= 3 { "refused" } else { "good" };
        store.insert(row(seq, None, subject, 10));
    }
    store.0.rival.store(true, Ordering::SeqCst);
    let options = RelayOptions::default().max_attempts(1);
    let stop = CancellationToken::new();
    let mut first = engine(
        &store,
        Pub::default(),
        options.clone(),
        SharedStatus::default(),
    );
    let end = tokio::time::timeout(Duration::from_secs(10), first.run(&stop)).await;
    assert!(matches!(end, Ok(End::Rebuild)), "{end:?}");
    first.into_unsettled().settle().await;
    let mut second = engine(&store, Pub::default(), options, SharedStatus::default());
    let _ = tokio::time::timeout(Duration::from_secs(10), second.run(&stop)).await;
    assert_eq!(store.0.outbox.lock().unwrap().len(), 0);
    let held: Vec<i64> = store.0.held.lock().unwrap().keys().copied().collect();
    assert_eq!(held, [2, 3]);
}

/// A database that answers nothing is a problem before its statements are given up.
#[tokio::test(start_paused = true)]
async fn a_database_that_does_not_answer_is_soon_a_problem() {
    let store = Fake::default();
    store.0.frozen.store(true, Ordering::SeqCst);
    let relay = Arc::new(Relay::new(Bus::new(store.clone()), MemoryBroker::new()));
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (relay, stop) = (Arc::clone(&relay), stop.clone());
        async move { relay.run(stop).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(relay.status().store_error, None, "it may just be slow");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let error = relay.status().store_error;
    assert!(
        error
            .as_deref()
            .is_some_and(|error| error.contains("no answer")),
        "{error:?}"
    );
    store.0.frozen.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(relay.status().store_error, None);
    stop.cancel();
    running.await.unwrap();
}
