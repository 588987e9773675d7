//! The relay's engine: one task that reads, publishes and settles, overlapping all three.
//!
//! Reads, deletions and moves run in tasks of their own; publishes are futures of this task,
//! bounded by a window. No transaction is open and no row locked while the broker is called.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    hands::{AckedHeld, Change, DRAINS, DrainRead, Hands, Move, Tally},
    lanes::LaneId,
    options::{DeadHead, RelayOptions},
    past::{Began, Past},
    poll::Poll,
    slab::Token,
    source::TableSource,
    status::SharedStatus,
};
use crate::{
    broker::{FailureKind, PublishFailure, Publisher, Receipt, WireMessage},
    bus::Signal,
    error::{StoreError, StoreErrorKind},
    policy::Backoff,
    store::{FloorProbe, HeldFilter, HeldReason, HeldRow, Lease, OutboxRow, OutboxStore, Settled},
    telemetry::{self, OutageLog},
    wire,
};

/// Rows in one fenced transaction.
const FENCED_ROWS: usize = 1000;
/// A deletion waits for this many rows while more acknowledgements are on their way, or this long.
const SETTLE_ROWS: usize = 500;
const SETTLE_WITHIN: Duration = Duration::from_millis(4);
/// How long to wait before a failed statement is tried again.
const STORE_RETRY: Backoff =
    Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));
/// How often the connection is looked at while it is down.
const BROKER_POLL: Duration = Duration::from_millis(50);
/// How often heads of parked keys are repaired while there are held keys.
const REPAIR_EVERY: Duration = Duration::from_secs(5);
/// How often a floor is probed while the relay is busy.
const FLOOR_EVERY: Duration = Duration::from_millis(500);
/// When a new candidate is looked at first: most transactions are short.
const FLOOR_SOON: Duration = Duration::from_millis(20);
/// Held rows read at once.
const HELD_ROWS: u32 = 256;
/// How soon to look for held rows again when more of them can be taken up.
const SCAN_SOON: Duration = Duration::from_millis(5);
/// Held rows of one key read at once.
const DRAIN_ROWS: u32 = 20;

/// Why an engine ended.
#[derive(Debug)]
pub(super) enum End {
    /// It was asked to, and everything in flight is settled.
    Stopped,
    /// The lease ran out or was taken over.
    LeaseLost,
    /// The broker was out of reach for longer than a lease.
    BrokerAway,
    /// A fenced transaction's outcome is unknown: memory is to be rebuilt from the tables.
    Rebuild,
}

/// What an engine works with.
pub(super) struct Parts<S, P> {
    pub(super) store: S,
    pub(super) publisher: Arc<P>,
    pub(super) signal: Arc<Signal>,
    pub(super) options: RelayOptions,
    pub(super) source_name: String,
    pub(super) status: SharedStatus,
}

/// How much an engine is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Go on until stopped.
    Run,
    /// One read with the due held rows, all answers awaited.
    Once,
}

type Answer = (Token, Result<Receipt, PublishFailure>);

/// A finished statement or probe.
enum Done {
    Read {
        began: Began,
        rows: Result<Vec<OutboxRow>, StoreError>,
    },
    Settled(Vec<Settled>, Result<u64, StoreError>),
    SettledHeld(Vec<AckedHeld>, Result<u64, StoreError>),
    Moved(Vec<Move>, Result<(), StoreError>),
    Changed(Vec<Change>, Result<(), StoreError>),
    Renewed(Instant, Result<(), StoreError>),
    Scanned {
        held: Result<Vec<HeldRow>, StoreError>,
        next_due: Option<Duration>,
        released: u64,
    },
    Drained(DrainRead, Result<Vec<HeldRow>, StoreError>),
    Probed(LaneId, Result<(), PublishFailure>),
    Floor(Result<Option<FloorProbe>, StoreError>),
    Repaired(Result<u64, StoreError>),
}

/// Which statements are under way.
#[derive(Debug, Default)]
struct Busy {
    read: bool,
    settle: bool,
    settle_held: bool,
    fenced: bool,
    renew: bool,
    scan: bool,
    floor: bool,
    probes: Vec<LaneId>,
}

pub(super) struct Engine<S: OutboxStore, P: Publisher> {
    parts: Parts<S, P>,
    source: TableSource<S>,
    lease: Lease,
    /// Until when the lease is certainly ours, by the local monotonic clock.
    lease_until: Instant,
    hands: Hands,
    past: Past,
    poll: Poll,
    mode: Mode,
    busy: Busy,
    tasks: JoinSet<Done>,
    /// Reads made in `Mode::Once`.
    reads: u32,
    scans: u32,
    scan_at: Instant,
    /// Waiting rows may exist: scan for them too.
    scan_waiting: bool,
    /// The scan under way began before something that it has to see.
    scan_again: bool,
    repair_at: Instant,
    floor_at: Instant,
    first_unsettled: Option<Instant>,
    store_retry_at: Option<Instant>,
    store_outage: OutageLog,
    broker_down_since: Option<Instant>,
    broker_outage: OutageLog,
    stopping: bool,
    reported: Tally,
}

impl<S: OutboxStore, P: Publisher> Engine<S, P> {
    pub(super) fn new(parts: Parts<S, P>, lease: Lease, acquired: Instant, mode: Mode) -> Self {
        let now = Instant::now();
        let options = &parts.options;
        let source = TableSource::new(
            parts.store.clone(),
            lease.target.clone(),
            options.batch,
            options.batch_bytes,
        )
        .keeping(options.retention.keeps());
        Self {
            hands: Hands::new(options),
            poll: Poll::new(options.idle_poll, parts.signal.seen(), now),
            source,
            lease_until: acquired + lease.length,
            lease,
            past: Past::default(),
            mode,
            busy: Busy::default(),
            tasks: JoinSet::new(),
            reads: 0,
            scans: 0,
            scan_at: now,
            scan_waiting: true,
            scan_again: false,
            repair_at: now,
            floor_at: now,
            first_unsettled: None,
            store_retry_at: None,
            store_outage: OutageLog::new("the relay's database"),
            broker_down_since: None,
            broker_outage: OutageLog::new("the relay's broker connection"),
            stopping: false,
            reported: Tally::default(),
            parts,
        }
    }

    /// Runs until something ends it.
    pub(super) async fn run(&mut self, stop: &CancellationToken) -> End {
        if let Err(end) = self.rebuild().await {
            return end;
        }
        let mut window: FuturesUnordered<_> = FuturesUnordered::new();
        let mut timer = pin!(sleep_until(Instant::now()));
        loop {
            let now = Instant::now();
            if now >= self.publish_until() {
                return End::LeaseLost;
            }
            if self.broker_away(now) {
                return End::BrokerAway;
            }
            self.start_statements(now);
            while window.len() < self.parts.options.window
                && let Some((token, message)) = self.next_message(now)
            {
                let publish = self.parts.publisher.publish(message);
                window.push(publish.map(move |answer| -> Answer { (token, answer) }));
            }
            if self.finished(window.is_empty()) {
                return End::Stopped;
            }
            let wake_at = self.next_wake(now);
            if timer.deadline() != wake_at {
                timer.as_mut().reset(wake_at);
            }
            tokio::select! {
                biased;
                Some((token, answer)) = window.next(), if !window.is_empty() => {
                    let now = Instant::now();
                    self.answered(token, answer, now);
                    while let Some(Some((token, answer))) = window.next().now_or_never() {
                        self.answered(token, answer, now);
                    }
                    self.report();
                }
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    let Ok(done) = done else { return End::Rebuild };
                    if let Err(end) = self.done(done, Instant::now()) {
                        return end;
                    }
                }
                () = stop.cancelled(), if !self.stopping => self.stopping = true,
                () = self.parts.signal.notified() => self.poll.signalled(self.parts.signal.seen(), Instant::now()),
                () = timer.as_mut() => {}
            }
        }
    }

    /// What became of the rows.
    pub(super) const fn tally(&self) -> Tally {
        self.hands.tally
    }

    /// Drops the publisher and everything in flight, and keeps what is acknowledged and not deleted.
    pub(super) fn into_unsettled(self) -> Unsettled<S> {
        let Self {
            source,
            hands,
            tasks,
            ..
        } = self;
        Unsettled {
            source,
            hands,
            tasks,
        }
    }

    /// Loads what memory must know before the first publish.
    async fn rebuild(&mut self) -> Result<(), End> {
        let dead_blocks = self.parts.options.dead_head == DeadHead::Park;
        loop {
            let loaded = async {
                self.parts
                    .store
                    .repair_heads(&self.lease, dead_blocks)
                    .await?;
                self.parts
                    .store
                    .held_keys(&self.lease.target, dead_blocks)
                    .await
            };
            match loaded.await {
                Ok(keys) => {
                    self.hands.load_held_keys(keys);
                    return Ok(());
                }
                Err(error) if error.kind() == StoreErrorKind::Fenced => return Err(End::LeaseLost),
                Err(error) => {
                    self.store_outage.failed(&self.lease.target, &error);
                    let wait = STORE_RETRY.delay(self.store_outage.failures());
                    if Instant::now() + wait >= self.publish_until() {
                        return Err(End::LeaseLost);
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Publishing stops this long before the lease ends, so that no publish outlives it.
    fn publish_until(&self) -> Instant {
        self.lease_until - self.lease.length / 5
    }

    /// Whether the broker has been away for longer than a lease, so that another host, which may
    /// reach it, gets its turn.
    fn broker_away(&mut self, now: Instant) -> bool {
        match self.broker_down_since {
            Some(since) if self.parts.publisher.connected() && now - since >= BROKER_POLL => {
                self.broker_down_since = None;
                self.broker_outage.worked(&self.lease.target);
                self.parts
                    .status
                    .update(|status| status.broker_connected = true);
                tracing::debug!(down_for = ?(now - since), "the broker is connected again");
                false
            }
            Some(since) => now - since > self.lease.length || self.mode == Mode::Once,
            None => {
                if !self.parts.publisher.connected() {
                    self.broker_down(now, None);
                }
                false
            }
        }
    }

    fn broker_down(&mut self, now: Instant, failure: Option<&PublishFailure>) {
        if self.broker_down_since.is_none() {
            self.broker_down_since = Some(now);
            self.parts
                .status
                .update(|status| status.broker_connected = false);
            let unknown =
                PublishFailure::new(FailureKind::Disconnected, "the broker is not connected");
            self.broker_outage
                .failed(&self.lease.target, failure.unwrap_or(&unknown));
        }
    }

    fn finished(&self, window_empty: bool) -> bool {
        let settled = window_empty && self.hands.settled_all() && self.tasks.is_empty();
        if self.stopping {
            return settled;
        }
        self.mode == Mode::Once
            && self.reads > 0
            && self.scans > 0
            && settled
            && (!self.hands.has_ready() || self.broker_down_since.is_some())
    }

    // ===== sending =====

    /// The next row to publish, encoded.
    fn next_message(&mut self, now: Instant) -> Option<(Token, WireMessage)> {
        if self.stopping || self.broker_down_since.is_some() {
            return None;
        }
        loop {
            let token = self.hands.next(now)?;
            let row = self.hands.row(token)?;
            // A row that was edited by hand may hold anything; it is held alone.
            match catch_unwind(AssertUnwindSafe(|| {
                wire::outgoing(row, &self.parts.source_name)
            })) {
                Ok(Ok(message)) => {
                    self.hands.sent(token);
                    return Some((token, message));
                }
                Ok(Err(error)) => self.hands.unsendable(token, error.to_string(), now),
                Err(_) => {
                    self.hands
                        .unsendable(token, "the row's encoding panicked".to_owned(), now)
                }
            }
        }
    }

    fn answered(&mut self, token: Token, answer: Result<Receipt, PublishFailure>, now: Instant) {
        match answer {
            Ok(receipt) => {
                if cfg!(feature = "metrics")
                    && let Some(row) = self.hands.row(token)
                    && let Ok(lag) = SystemTime::now().duration_since(row.occurred_at.into())
                {
                    telemetry::publish_lag(&self.lease.target, lag);
                }
                self.first_unsettled.get_or_insert(now);
                self.hands.acked(token, &receipt, now);
            }
            Err(failure) => {
                if failure.kind() == FailureKind::Disconnected {
                    self.broker_down(now, Some(&failure));
                }
                self.hands.failed(token, &failure, now);
            }
        }
    }

    fn report(&mut self) {
        let tally = self.hands.tally;
        let published = tally.published - self.reported.published;
        if published > 0 {
            telemetry::published(&self.lease.target, published);
            self.parts
                .status
                .update(|status| status.last_published = Some(std::time::Instant::now()));
        }
        if tally.failed > self.reported.failed {
            telemetry::publish_failed(&self.lease.target, tally.failed - self.reported.failed);
        }
        let unavailable: Vec<_> = self
            .hands
            .lanes
            .iter()
            .filter_map(|(_, lane)| {
                Some((lane.name.to_string(), lane.pause.as_ref()?.reason.clone()))
            })
            .collect();
        self.parts
            .status
            .update(|status| status.unavailable = unavailable);
        self.reported = tally;
    }

    // ===== statements =====

    fn start_statements(&mut self, now: Instant) {
        self.start_renewal(now);
        self.start_probes();
        if self.store_retry_at.is_some_and(|at| at > now) {
            return;
        }
        self.store_retry_at = None;
        self.start_settling(now);
        self.start_fenced();
        if self.stopping {
            return;
        }
        self.start_read(now);
        self.start_held(now);
        self.start_upkeep(now);
    }

    fn start_renewal(&mut self, now: Instant) {
        let retry = self.store_retry_at.is_some_and(|at| at > now);
        if !self.busy.renew && !retry && now >= self.lease_until - self.lease.length * 2 / 3 {
            self.busy.renew = true;
            let (store, lease) = (self.parts.store.clone(), self.lease.clone());
            self.tasks
                .spawn(async move { Done::Renewed(now, store.renew(&lease).await) });
        }
    }

    fn start_probes(&mut self) {
        for (lane, subject) in self.hands.probes() {
            if !self.busy.probes.contains(&lane) {
                self.busy.probes.push(lane);
                let publisher = Arc::clone(&self.parts.publisher);
                self.tasks
                    .spawn(async move { Done::Probed(lane, publisher.probe(&subject).await) });
            }
        }
    }

    fn start_settling(&mut self, now: Instant) {
        let due = self.hands.acked_len() >= SETTLE_ROWS
            || self.stopping
            || !self.hands.has_ready()
            || self
                .first_unsettled
                .is_some_and(|since| now - since >= SETTLE_WITHIN);
        if !self.busy.settle && self.hands.acked_len() > 0 && due {
            self.busy.settle = true;
            self.first_unsettled = None;
            let (source, rows) = (self.source.clone(), self.hands.take_acked());
            self.tasks.spawn(async move {
                let result = source.settle(&rows).await;
                Done::Settled(rows, result)
            });
        }
        if !self.busy.settle_held {
            let rows = self.hands.take_acked_held();
            if !rows.is_empty() {
                self.busy.settle_held = true;
                let source = self.source.clone();
                self.tasks.spawn(async move {
                    let settled: Vec<_> = rows.iter().map(|acked| acked.row.clone()).collect();
                    let result = source.settle_held(&settled).await;
                    Done::SettledHeld(rows, result)
                });
            }
        }
    }

    /// One fenced transaction at a time, so that the moves of a key keep their order.
    fn start_fenced(&mut self) {
        if self.busy.fenced {
            return;
        }
        let moves = self.hands.take_moves(FENCED_ROWS);
        if !moves.is_empty() {
            self.busy.fenced = true;
            let (store, lease) = (self.parts.store.clone(), self.lease.clone());
            self.tasks.spawn(async move {
                let rows: Vec<_> = moves.iter().map(|one| one.hold.clone()).collect();
                let result = store.hold(&lease, &rows).await;
                Done::Moved(moves, result)
            });
            return;
        }
        let changes = self.hands.take_changes();
        if !changes.is_empty() {
            self.busy.fenced = true;
            let (store, lease) = (self.parts.store.clone(), self.lease.clone());
            self.tasks.spawn(async move {
                let rows: Vec<_> = changes.iter().map(|one| one.change.clone()).collect();
                let result = store.change_held(&lease, &rows).await;
                Done::Changed(changes, result)
            });
        }
    }

    fn start_read(&mut self, now: Instant) {
        if self.busy.read || (self.mode == Mode::Once && self.reads > 0) || !self.poll.due(now) {
            return;
        }
        if !self.has_room() {
            // Only rows of unavailable streams can fill the hands for long.
            if self.broker_down_since.is_none() {
                self.hands.shed_waiting();
            }
            return;
        }
        self.busy.read = true;
        self.reads += 1;
        self.poll.reading(self.parts.signal.seen());
        let source = self.source.clone();
        let look = self.past.look(self.hands.in_hand(), now);
        self.tasks.spawn(async move {
            Done::Read {
                began: look.began,
                rows: source.next(look.floor, look.exclude).await,
            }
        });
    }

    /// Whether one more batch fits into memory.
    fn has_room(&self) -> bool {
        self.hands.has_room_for(self.parts.options.batch as usize)
    }

    /// Held rows that are due, scheduled rows that are due, and waiting rows whose stream works.
    fn start_held(&mut self, now: Instant) {
        for read in self.hands.take_drain_reads() {
            let store = self.parts.store.clone();
            let target = self.lease.target.clone();
            let mut reasons = vec![HeldReason::Failing, HeldReason::Parked, HeldReason::Waiting];
            if self.parts.options.dead_head == DeadHead::Park {
                reasons.push(HeldReason::Dead);
            }
            let filter = HeldFilter {
                reasons,
                key: Some(read.key.to_string()),
                exclude_ids: read.exclude_ids.clone(),
                limit: DRAIN_ROWS,
                // Many keys are read at a time, and together they must fit into memory.
                max_bytes: self.parts.options.in_hand_bytes / DRAINS,
                ..HeldFilter::default()
            };
            self.tasks.spawn(async move {
                let rows = store.held(&target, &filter).await;
                Done::Drained(read, rows)
            });
        }
        if let Some(due) = self.hands.take_next_due() {
            self.scan_at = self.scan_at.min(due);
        }
        if self.hands.take_reopened() {
            self.scan_waiting = true;
            self.scan_again |= self.busy.scan;
            self.scan_at = now;
        }
        if self.hands.take_room_for_key() {
            self.scan_at = self.scan_at.min(now + SCAN_SOON);
        }
        if self.busy.scan || now < self.scan_at || (self.mode == Mode::Once && self.scans > 0) {
            return;
        }
        // While the broker is away, what is due would be read again and again.
        if !self.has_room() || self.broker_down_since.is_some() {
            self.scan_at = now + BROKER_POLL;
            return;
        }
        self.busy.scan = true;
        self.scans += 1;
        let (store, lease) = (self.parts.store.clone(), self.lease.clone());
        let due = HeldFilter {
            reasons: vec![HeldReason::Failing],
            due: true,
            exclude_ids: self.hands.held_in_hand(),
            exclude_keys: self.hands.keys_in_hand(),
            limit: self.held_rows(),
            max_bytes: self.parts.options.batch_bytes,
            exclude_subjects: self.hands.lanes.paused_subjects(),
            ..HeldFilter::default()
        };
        let waiting = self.scan_waiting.then(|| HeldFilter {
            reasons: vec![HeldReason::Waiting],
            due: false,
            ..due.clone()
        });
        self.tasks.spawn(scan(store, lease, due, waiting));
    }

    /// Held rows read with one scan: a part of what fits into memory.
    fn held_rows(&self) -> u32 {
        HELD_ROWS.min(self.parts.options.batch)
    }

    fn start_upkeep(&mut self, now: Instant) {
        if !self.busy.floor && now >= self.floor_at && !self.past.proves() {
            self.busy.floor = true;
            let (source, last) = (self.source.clone(), self.past.last_probe());
            self.tasks
                .spawn(async move { Done::Floor(source.probe_floor(last).await) });
        }
        if !self.busy.fenced && now >= self.repair_at && self.mode == Mode::Run {
            self.repair_at = now + REPAIR_EVERY;
            if self.hands.any_held_keys() {
                self.busy.fenced = true;
                let (store, lease) = (self.parts.store.clone(), self.lease.clone());
                let dead_blocks = self.parts.options.dead_head == DeadHead::Park;
                self.tasks.spawn(async move {
                    Done::Repaired(store.repair_heads(&lease, dead_blocks).await)
                });
            }
        }
    }

    fn next_wake(&self, now: Instant) -> Instant {
        let mut wake = self.publish_until();
        if !self.busy.renew && self.store_retry_at.is_none() {
            wake = wake.min(self.lease_until - self.lease.length * 2 / 3);
        }
        let mut at = |instant: Instant| wake = wake.min(instant);
        if self.broker_down_since.is_some() {
            at(now + BROKER_POLL);
        } else if let Some(trial) = self.hands.lanes.next_trial() {
            at(trial);
        }
        if let Some(retry) = self.store_retry_at {
            at(retry);
        } else if !self.stopping {
            if !self.busy.read && self.has_room() && (self.mode == Mode::Run || self.reads == 0) {
                at(self.poll.next());
            }
            if !self.busy.scan && (self.mode == Mode::Run || self.scans == 0) {
                at(self.scan_at);
            }
            if let Some(since) = self.first_unsettled
                && !self.busy.settle
            {
                at(since + SETTLE_WITHIN);
            }
        }
        wake.max(now + Duration::from_millis(1))
    }

    // ===== results =====

    fn done(&mut self, done: Done, now: Instant) -> Result<(), End> {
        match done {
            Done::Read { began, rows } => {
                self.busy.read = false;
                if let Some(rows) = self.store_result(rows, now)? {
                    let full = rows.len() >= self.parts.options.batch as usize;
                    self.past.read(began, &rows, now);
                    self.parts
                        .status
                        .update(|status| status.last_read = Some(std::time::Instant::now()));
                    self.poll.read(!rows.is_empty(), full, began.at, now);
                    self.hands.admit(rows);
                }
            }
            Done::Settled(rows, result) => {
                self.busy.settle = false;
                match self.store_result(result, now)? {
                    Some(deleted) => {
                        if deleted == rows.len() as u64 {
                            self.past.deleted(rows.iter().map(|row| row.seq));
                        }
                        self.hands.settled(&rows);
                    }
                    None => self.hands.return_acked(rows),
                }
            }
            Done::SettledHeld(rows, result) => {
                self.busy.settle_held = false;
                match self.store_result(result, now)? {
                    Some(_) => self.hands.settled_held(&rows),
                    None => self.hands.return_acked_held(rows),
                }
            }
            Done::Moved(moves, result) => {
                self.busy.fenced = false;
                self.fenced(result, now)?;
                if moves
                    .iter()
                    .any(|one| one.hold.reason == HeldReason::Waiting)
                {
                    self.scan_waiting = true;
                    self.scan_again |= self.busy.scan;
                }
                self.hands.moved(&moves);
            }
            Done::Changed(changes, result) => {
                self.busy.fenced = false;
                self.fenced(result, now)?;
                self.hands.changed(&changes);
            }
            Done::Renewed(sent, result) => {
                self.busy.renew = false;
                if self.store_result(result, now)?.is_some() {
                    self.lease_until = sent + self.lease.length;
                }
            }
            Done::Scanned {
                held,
                next_due,
                released,
            } => {
                self.busy.scan = false;
                self.scan_at = now + self.parts.options.idle_poll;
                if let Some(rows) = self.store_result(held, now)? {
                    if released > 0 {
                        self.poll.signalled_now(now);
                    }
                    // A full scan may have left rows behind; one that is cut by bytes is full, too.
                    let bytes: usize = rows.iter().map(|row| row.row.payload.len()).sum();
                    let full = rows.len() >= self.held_rows() as usize
                        || bytes >= self.parts.options.batch_bytes / 2;
                    self.scan_waiting = rows.iter().any(|row| row.reason == HeldReason::Waiting)
                        || !self.hands.lanes.paused_subjects().is_empty();
                    let taken = self.hands.admit_held(rows);
                    if released > 0 || (full && taken > 0) {
                        self.scan_at = now + SCAN_SOON;
                    }
                }
                // What it was told to leave out may be what has come back meanwhile.
                if std::mem::take(&mut self.scan_again) {
                    self.scan_waiting = true;
                    self.scan_at = now;
                }
                if let Some(due) = next_due {
                    self.scan_at = self.scan_at.min(now + due.max(SCAN_SOON));
                }
            }
            Done::Drained(read, rows) => match self.store_result(rows, now)? {
                Some(rows) => self.hands.drained(&read, rows, now),
                None => self.hands.retry_drain(read),
            },
            Done::Probed(lane, result) => {
                self.busy.probes.retain(|busy| *busy != lane);
                self.hands.probed(lane, &result, now);
                self.report();
            }
            Done::Floor(result) => {
                self.busy.floor = false;
                self.floor_at = now + FLOOR_EVERY;
                if let Some(probe) = self.store_result(result, now)? {
                    if self.past.last_probe().is_none() && probe.is_some() {
                        self.floor_at = now + FLOOR_SOON;
                    }
                    self.past.probed(probe);
                }
            }
            Done::Repaired(result) => {
                self.busy.fenced = false;
                if self.fenced(result, now)? > 0 {
                    self.scan_at = now;
                }
            }
        }
        Ok(())
    }

    /// The value, or `None` after an error that is tried again later.
    fn store_result<T>(
        &mut self,
        result: Result<T, StoreError>,
        now: Instant,
    ) -> Result<Option<T>, End> {
        match result {
            Ok(value) => {
                self.store_outage.worked(&self.lease.target);
                self.parts.status.update(|status| status.store_error = None);
                Ok(Some(value))
            }
            Err(error) if error.kind() == StoreErrorKind::Fenced => Err(End::LeaseLost),
            Err(error) => {
                self.past.reset();
                self.store_outage.failed(&self.lease.target, &error);
                self.parts.status.update(|status| {
                    status.store_error = Some(telemetry::Chain(&error).to_string())
                });
                self.store_retry_at = Some(now + STORE_RETRY.delay(self.store_outage.failures()));
                if self.mode == Mode::Once {
                    Err(End::Rebuild)
                } else {
                    Ok(None)
                }
            }
        }
    }

    /// The value of a fenced transaction; any error leaves its outcome unknown.
    fn fenced<T>(&mut self, result: Result<T, StoreError>, now: Instant) -> Result<T, End> {
        self.store_result(result, now)?.ok_or(End::Rebuild)
    }
}

/// What an engine leaves: acknowledged rows that are not settled yet.
pub(super) struct Unsettled<S: OutboxStore> {
    source: TableSource<S>,
    hands: Hands,
    tasks: JoinSet<Done>,
}

impl<S: OutboxStore> Unsettled<S> {
    /// Deletes them, whatever ended the engine: it saves duplicates and is never wrong.
    pub(super) async fn settle(mut self) {
        while let Some(done) = self.tasks.join_next().await {
            match done {
                Ok(Done::Settled(rows, Err(_))) => self.hands.return_acked(rows),
                Ok(Done::SettledHeld(rows, Err(_))) => self.hands.return_acked_held(rows),
                _ => {}
            }
        }
        let rows = self.hands.take_acked();
        let held: Vec<_> = self
            .hands
            .take_acked_held()
            .iter()
            .map(|acked| acked.row.clone())
            .collect();
        let settled = async {
            if !rows.is_empty() {
                self.source.settle(&rows).await?;
            }
            if !held.is_empty() {
                self.source.settle_held(&held).await?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = settled.await {
            tracing::debug!(
                rows = rows.len() + held.len(), error = %telemetry::Chain(&error),
                "acknowledged rows stay and will be sent again"
            );
        }
    }
}

/// Looks for held rows that may go.
async fn scan<S: OutboxStore>(
    store: S,
    lease: Lease,
    due: HeldFilter,
    waiting: Option<HeldFilter>,
) -> Done {
    let mut released = 0;
    let mut next_due = None;
    let held = async {
        next_due = store.next_due(&lease.target).await?;
        let mut rows = Vec::new();
        if next_due.is_some_and(|due| due.is_zero()) {
            rows = store.held(&lease.target, &due).await?;
            released = store.release_due(&lease, FENCED_ROWS as u32).await?;
            next_due = store.next_due(&lease.target).await?;
        }
        if let Some(filter) = waiting {
            rows.extend(store.held(&lease.target, &filter).await?);
        }
        Ok(rows)
    }
    .await;
    // What is due and in hand already is no reason to look again at once.
    let next_due = next_due.map(|due| {
        if due.is_zero() {
            Duration::from_millis(200)
        } else {
            due
        }
    });
    Done::Scanned {
        held,
        next_due,
        released,
    }
}
