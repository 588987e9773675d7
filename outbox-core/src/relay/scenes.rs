//! Scenes in which an earlier version broke a promise, with the hands alone and with an engine over a
//! store in memory.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    RelayOptions,
    engine::{Engine, Mode, Parts},
    hands::Hands,
    status::SharedStatus,
};
use crate::{
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
    on_waiting_scan: Mutex<Option<Arc<AtomicBool>>>,
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
        Ok(Some(1))
    }
    async fn renew(&self, _: &Lease) -> Result<(), StoreError> {
        Ok(())
    }
    async fn release(&self, _: &Lease) -> Result<(), StoreError> {
        Ok(())
    }
    async fn read(&self, _: &str, q: &ReadQuery) -> Result<Vec<OutboxRow>, StoreError> {
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
            .collect();
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(rows)
    }
    async fn settle(&self, _: &str, rows: &[Settled]) -> Result<u64, StoreError> {
        let mut o = self.0.outbox.lock().unwrap();
        for r in rows {
            o.remove(&r.seq);
        }
        Ok(rows.len() as u64)
    }
    async fn hold(&self, _: &Lease, moves: &[HoldMove]) -> Result<(), StoreError> {
        let mut o = self.0.outbox.lock().unwrap();
        let mut h = self.0.held.lock().unwrap();
        for m in moves {
            let r = o.remove(&m.seq).unwrap();
            let mut x = held(r.seq, r, m.reason);
            x.attempts = m.attempts;
            h.insert(x.id, x);
        }
        Ok(())
    }
    async fn held(&self, _: &str, f: &HeldFilter) -> Result<Vec<HeldRow>, StoreError> {
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
            .take(f.limit as usize)
            .cloned()
            .collect();
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
        Ok(vec![])
    }
    async fn change_held(&self, _: &Lease, _: &[HeldChange]) -> Result<(), StoreError> {
        Ok(())
    }
    async fn settle_held(&self, _: &str, rows: &[(i64, Uuid)]) -> Result<u64, StoreError> {
        let mut h = self.0.held.lock().unwrap();
        for r in rows {
            h.remove(&r.0);
        }
        Ok(rows.len() as u64)
    }
    async fn release_due(&self, _: &Lease, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
    async fn repair_heads(&self, _: &Lease, _: bool) -> Result<u64, StoreError> {
        Ok(0)
    }
    async fn next_due(&self, _: &str) -> Result<Option<Duration>, StoreError> {
        Ok(None)
    }
    async fn probe_floor(
        &self,
        _: &str,
        last: Option<FloorProbe>,
    ) -> Result<Option<FloorProbe>, StoreError> {
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
struct Pub {
    open: Arc<AtomicBool>,
    delay: Duration,
}
impl Publisher for Pub {
    fn publish(
        &self,
        m: WireMessage,
    ) -> impl Future<Output = Result<Receipt, PublishFailure>> + Send + 'static {
        let (open, delay) = (self.open.clone(), self.delay);
        async move {
            tokio::time::sleep(delay).await;
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
        true
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
