//! Events of several versions.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use outbox_core::{Consumer, HandlerError, IntegrationEvent, State, handler};
use outbox_tests::{TestDatabase, eventually, on_every_database};
use sea_orm::{DatabaseTransaction, TransactionTrait};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::shop::{DEADLINE, Shop};

#[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.stock.moved", version = 1)]
struct StockMovedV1 {
    amount: i64,
}

#[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.stock.moved", version = 2, upcast_from = StockMovedV1)]
struct StockMoved {
    amount: i64,
    unit: String,
}

impl From<StockMovedV1> for StockMoved {
    fn from(old: StockMovedV1) -> Self {
        Self {
            amount: old.amount,
            unit: "piece".to_owned(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.stock.moved", version = 3)]
struct StockMovedV3 {
    movement: String,
}

type Seen = Arc<Mutex<Vec<(i64, String)>>>;

#[handler(consumer = "stock", max_attempts = 2)]
async fn book(
    event: StockMoved,
    _tx: &DatabaseTransaction,
    State(seen): State<Seen>,
) -> Result<(), HandlerError> {
    seen.lock().unwrap().push((event.amount, event.unit));
    Ok(())
}

on_every_database! {
    /// Old versions are upcast; a newer one than this build knows waits for a deploy and then ends in
    /// the dead letters with a reason that says so.
    async fn an_old_version_is_upcast_and_a_newer_one_waits_for_a_deploy(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let seen = Seen::default();
        let stop = CancellationToken::new();
        let runtime = shop
            .bus
            .runtime(shop.broker.clone())
            .state(Arc::clone(&seen))
            .relay(crate::shop::relay())
            .consumer(Consumer::of(book {}).newer_version_delay(Duration::from_millis(300)));
        let running = tokio::spawn(runtime.run(stop.clone()));
        let tx = shop.db.connection.begin().await.unwrap();
        shop.bus.publish(&tx, &StockMovedV1 { amount: 1 }).await.unwrap();
        shop.bus.publish(&tx, &StockMovedV3 { movement: "in".to_owned() }).await.unwrap();
        shop.bus.publish(&tx, &StockMoved { amount: 2, unit: "box".to_owned() }).await.unwrap();
        tx.commit().await.unwrap();
        eventually("both known versions", DEADLINE, async || seen.lock().unwrap().len() == 2).await;
        let mut found = seen.lock().unwrap().clone();
        found.sort();
        assert_eq!(found, [(1, "piece".to_owned()), (2, "box".to_owned())]);
        let dead = shop.await_dead_letters(1).await;
        assert_eq!(dead[0].reason, "newer-version", "{dead:?}");
        assert_eq!(dead[0].attempts, 0, "waiting for a deploy spends none");
        assert!(dead[0].error.contains("newer"), "{dead:?}");
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
