//! What the store's tests share.

use std::time::Duration;

use outbox_core::store::{
    HeldFilter, HeldReason, HeldRow, HoldMove, Lease, OutboxRecord, OutboxRow, OutboxStore, Pool,
    ReadQuery, SeqRuns, Settled, Store,
};
use outbox_seaorm::{Clock, ManualClock, SeaOrm};
use outbox_tests::TestDatabase;
use sea_orm::{ConnectionTrait, DatabaseConnection, Statement};
use uuid::Uuid;

pub const TARGET: &str = "default";
pub const MINUTE: Duration = Duration::from_secs(60);

/// A store with its tables.
pub async fn store(db: &TestDatabase) -> SeaOrm {
    migrated(SeaOrm::new(db.connection.clone())).await
}

/// A store whose time stands still.
pub async fn store_with_clock(db: &TestDatabase) -> (SeaOrm, ManualClock) {
    let clock = ManualClock::default();
    let store = SeaOrm::builder(db.connection.clone()).clock(Clock::Manual(clock.clone()));
    (migrated(store.build().expect("a store")).await, clock)
}

pub async fn migrated(store: SeaOrm) -> SeaOrm {
    store.migrate().await.expect("migrate");
    store.check_schema().await.expect("the schema is right");
    store
}

pub fn record(key: Option<&str>) -> OutboxRecord {
    let mut record = OutboxRecord::new(
        Uuid::now_v7(),
        "shop.placed",
        "shop.orders.placed",
        &b"{}"[..],
    );
    record.key = key.map(str::to_owned);
    record
}

pub fn payload(bytes: Vec<u8>) -> OutboxRecord {
    let mut record = record(None);
    record.payload = bytes.into();
    record
}

/// Commits `records` and returns them as rows.
pub async fn publish(store: &SeaOrm, records: &[OutboxRecord]) -> Vec<OutboxRow> {
    let tx = store.begin(Pool::User).await.expect("begin");
    store.insert(&tx, TARGET, records).await.expect("insert");
    store.commit(tx).await.expect("commit");
    let rows = read(store, everything()).await;
    let ids: Vec<_> = records.iter().map(|record| record.id).collect();
    rows.into_iter()
        .filter(|row| ids.contains(&row.id))
        .collect()
}

pub fn everything() -> ReadQuery {
    ReadQuery {
        floor: 0,
        exclude: SeqRuns::default(),
        limit: 10_000,
        max_bytes: usize::MAX,
    }
}

pub async fn read(store: &SeaOrm, query: ReadQuery) -> Vec<OutboxRow> {
    store.read(TARGET, &query).await.expect("read")
}

pub async fn read_ids(store: &SeaOrm) -> Vec<Uuid> {
    read(store, everything())
        .await
        .iter()
        .map(|row| row.id)
        .collect()
}

pub fn settled(row: &OutboxRow) -> Settled {
    Settled {
        seq: row.seq,
        id: row.id,
        stream: "S".into(),
        stream_seq: 1,
    }
}

/// Takes the lease of the default target.
pub async fn lease(store: &SeaOrm) -> Lease {
    let owner = Uuid::new_v4();
    let length = Duration::from_secs(10);
    let epoch = store
        .acquire(TARGET, owner, length)
        .await
        .expect("acquire")
        .expect("the lease is free");
    Lease {
        target: TARGET.to_owned(),
        owner,
        epoch,
        length,
    }
}

pub fn to_held(row: &OutboxRow, reason: HeldReason) -> HoldMove {
    let error = (reason == HeldReason::Failing).then(|| "first".to_owned());
    HoldMove {
        seq: row.seq,
        id: row.id,
        reason,
        due_in: Duration::ZERO,
        attempts: 1,
        error,
    }
}

pub fn all_held() -> HeldFilter {
    HeldFilter {
        limit: 10_000,
        max_bytes: usize::MAX,
        ..HeldFilter::default()
    }
}

pub async fn held(store: &SeaOrm, filter: HeldFilter) -> Vec<HeldRow> {
    store.held(TARGET, &filter).await.expect("read held rows")
}

/// The first column of the first row of `sql`, as an integer.
pub async fn number(db: &DatabaseConnection, sql: &str) -> i64 {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db
        .query_one_raw(statement)
        .await
        .expect(sql)
        .expect("a row");
    row.try_get_by_index::<i64>(0)
        .or_else(|_| row.try_get_by_index::<i32>(0).map(i64::from))
        .expect("a number")
}

pub async fn run(db: &impl ConnectionTrait, sql: &str) {
    db.execute_unprepared(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}
