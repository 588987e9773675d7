//! How a service tests its publishing and its handlers, without a server: SQLite for the database,
//! and `MemoryBroker` for NATS.
//!
//! ```text
//! cargo test -p outbox-examples --test testing
//! ```
//!
//! From the smallest to the whole: a handler is a function; a publisher is looked at through the
//! messages that one step of a relay makes; and relay, broker and consumers together run in one
//! process, where the broker can be told to fail.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use outbox_core::{
    Bus, Consumer, Context, HandlerErrorKind, MemoryBroker, Relay, RelayOptions, State,
    error::BoxError,
};
use outbox_examples::shop::{
    NewOrder, OrderPlaced, ShipmentCreated,
    billing::charge_customer,
    entity::{self, search_entry, shipment},
    orders::{find_order, totals},
    payments::PaymentProvider,
    place_order,
    search::{index_order, index_shipment},
    shipping::create_shipment,
};
use outbox_seaorm::SeaOrm;
use sea_orm::{Database, DatabaseConnection, EntityTrait, PaginatorTrait, TransactionTrait};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

type Result<T = ()> = std::result::Result<T, BoxError>;

// ===== a handler is a function =====

/// A handler is called like any function, in a transaction of the test's own. `Context::test()`
/// keeps what it publishes.
#[tokio::test]
async fn shipping_makes_a_parcel_and_tells_of_it() -> Result {
    let db = database_in_memory().await?;
    let (order, cx) = (an_order("Lisbon"), Context::test());

    let tx = db.begin().await?;
    create_shipment(order.clone(), &tx, cx.clone())
        .await
        .unwrap();
    tx.commit().await?;

    let parcels = shipment::Entity::find().all(&db).await?;
    assert_eq!(parcels.len(), 1);
    assert_eq!(parcels[0].order_id, order.order_id);
    assert_eq!(cx.test_events(), ["shop.shipments.created"]);
    Ok(())
}

/// What a handler says about an error is part of what it does.
#[tokio::test]
async fn a_declined_card_is_never_tried_again() -> Result {
    let db = database_in_memory().await?;
    let books = tempfile::tempdir()?;
    let provider = PaymentProvider::open(books.path())?;
    let mut order = an_order("Lisbon");
    order.total_cents = 1_000_000;

    let tx = db.begin().await?;
    let refused = charge_customer(order, &tx, State(provider), Context::test()).await;

    let error = refused.err().ok_or("the card was charged")?;
    assert_eq!(error.kind(), HandlerErrorKind::Reject);
    assert_eq!(
        error.to_string(),
        "declined: the card's limit is 100000 cents"
    );
    Ok(())
}

/// Two handlers that may run in either order are called in either order.
#[tokio::test]
async fn news_of_a_shipment_may_overtake_news_of_its_order() -> Result {
    let db = database_in_memory().await?;
    let order = an_order("Lisbon");
    let shipment = ShipmentCreated {
        order_id: order.order_id,
        tracking: "PX1".to_owned(),
    };

    let tx = db.begin().await?;
    index_shipment(shipment, &tx).await.unwrap();
    index_order(order, &tx).await.unwrap();
    tx.commit().await?;

    let entries = search_entry::Entity::find().all(&db).await?;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].words.as_deref(), Some("ada kettle"));
    assert_eq!(entries[0].tracking.as_deref(), Some("PX1"));
    Ok(())
}

// ===== what a publisher publishes =====

/// `Relay::dispatch_batch` publishes what has been committed so far; the broker then has it on the
/// wire, as consumers would get it.
#[tokio::test]
async fn an_order_is_published_as_it_was_placed() -> Result {
    let db = database_in_memory().await?;
    let (bus, broker) = (bus(&db).await?, MemoryBroker::new());

    let order_id = place_order(&bus, &db, a_new_order("Lisbon")).await?;
    assert_eq!(bus.backlog().await?.waiting, 1);
    let dispatched = Relay::new(bus.clone(), broker.clone())
        .dispatch_batch()
        .await?;

    assert_eq!(dispatched.published, 1);
    assert_eq!(bus.backlog().await?.waiting, 0);
    let messages = broker.messages();
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].subject, "shop.orders.placed");
    let event: OrderPlaced = outbox_core::decode(1, &messages[0].payload)?;
    assert_eq!(event.order_id, order_id);
    assert_eq!(event.city, "Lisbon");
    Ok(())
}

#[tokio::test]
async fn nobody_hears_of_an_order_that_is_rolled_back() -> Result {
    let db = database_in_memory().await?;
    let (bus, broker) = (bus(&db).await?, MemoryBroker::new());

    let tx = db.begin().await?;
    bus.publish(&tx, &an_order("Paris")).await?;
    tx.rollback().await?;

    let relay = Relay::new(bus.clone(), broker.clone());
    assert_eq!(relay.dispatch_batch().await?.published, 0);
    assert!(broker.messages().is_empty());
    Ok(())
}

// ===== everything together =====

#[tokio::test]
async fn an_order_is_shipped_paid_and_found() -> Result {
    let shop = Shop::open().await?;

    let id = place_order(&shop.bus, &shop.db, a_new_order("Lisbon")).await?;
    shop.until(async |shop| shop.is_done(id).await).await?;

    let order = find_order(&shop.db, id).await?.ok_or("the order is gone")?;
    assert_eq!(order.shipments.len(), 1);
    assert_eq!(order.payments.len(), 1);
    shop.close().await
}

/// A duplicate leaves no trace, so there is nothing to wait for: another order behind it is the sign
/// that the duplicate has been dealt with.
#[tokio::test]
async fn a_duplicate_has_no_effect() -> Result {
    let shop = Shop::open().await?;
    let first = place_order(&shop.bus, &shop.db, a_new_order("Lisbon")).await?;
    shop.until(async |shop| shop.is_done(first).await).await?;

    // Every message once more: the order and the shipment.
    for message in shop.broker.messages() {
        let id = message.id.ok_or("a message without an id")?;
        assert_eq!(shop.broker.duplicate(id), 1);
    }
    let second = place_order(&shop.bus, &shop.db, a_new_order("Oslo")).await?;
    shop.until(async |shop| shop.is_done(second).await).await?;

    let totals = totals(&shop.db).await?;
    assert_eq!((totals.shipped_once, totals.shipped_twice), (2, 0));
    assert_eq!((totals.paid_once, totals.paid_twice), (2, 0));
    shop.close().await
}

/// While the broker is away, orders are placed as always, and their events wait.
#[tokio::test]
async fn an_outage_of_the_broker_delays_and_loses_nothing() -> Result {
    let shop = Shop::open().await?;
    let before = place_order(&shop.bus, &shop.db, a_new_order("Lisbon")).await?;
    shop.until(async |shop| shop.is_done(before).await).await?;

    shop.broker.set_offline(true);
    let during = place_order(&shop.bus, &shop.db, a_new_order("Oslo")).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(shop.bus.backlog().await?.waiting, 1);
    assert_eq!(shipment::Entity::find().count(&shop.db).await?, 1);

    shop.broker.set_offline(false);
    shop.until(async |shop| shop.is_done(during).await).await?;
    shop.close().await
}

/// A customer's card is declined: the message waits among the dead letters until it is replayed.
#[tokio::test]
async fn a_dead_letter_is_replayed_to_the_consumer_that_gave_it_up() -> Result {
    let shop = Shop::open().await?;
    let dead_letters = shop.bus.dead_letters(shop.broker.clone());
    let mut order = a_new_order("Lisbon");
    order.total_cents = 1_000_000;
    let id = place_order(&shop.bus, &shop.db, order).await?;
    let listed = async || dead_letters.list(&Default::default()).await;
    shop.until(async |_| Ok(listed().await?.len() == 1)).await?;

    let letter = &listed().await?[0];
    assert_eq!(letter.consumer.as_deref(), Some("billing"));
    assert_eq!(letter.reason, "rejected");

    std::fs::write(shop.books.path().join("limit"), "2000000")?;
    assert!(dead_letters.replay(letter.id).await?);
    shop.until(async |shop| shop.is_done(id).await).await?;
    let totals = totals(&shop.db).await?;
    assert_eq!((totals.shipped_once, totals.shipped_twice), (1, 0));
    shop.close().await
}

// ===== what the tests share =====

/// The whole shop in one process.
struct Shop {
    db: DatabaseConnection,
    bus: Bus<SeaOrm>,
    broker: MemoryBroker,
    books: TempDir,
    shutdown: CancellationToken,
    running: JoinHandle<std::result::Result<outbox_core::Stopped, outbox_core::RuntimeError>>,
}

impl Shop {
    async fn open() -> Result<Self> {
        let books = tempfile::tempdir()?;
        let db = database_in_memory().await?;
        let (bus, broker) = (bus(&db).await?, MemoryBroker::new());
        let shutdown = CancellationToken::new();
        let runtime = bus
            .runtime(broker.clone())
            .state(PaymentProvider::open(books.path())?)
            .relay(RelayOptions::default())
            .consumer(Consumer::of(create_shipment {}))
            .consumer(Consumer::of(charge_customer {}))
            .consumer(Consumer::of(index_order {}).handler(index_shipment {}));
        let running = tokio::spawn(runtime.run(shutdown.clone()));
        Ok(Self {
            db,
            bus,
            broker,
            books,
            shutdown,
            running,
        })
    }

    /// Whether all consumers have done their part for an order.
    async fn is_done(&self, id: Uuid) -> Result<bool> {
        let order = find_order(&self.db, id).await?;
        Ok(order.is_some_and(|order| {
            !order.shipments.is_empty() && !order.payments.is_empty() && order.search == "shipped"
        }))
    }

    async fn until(&self, reached: impl AsyncFn(&Self) -> Result<bool>) -> Result {
        for _ in 0..1000 {
            if reached(self).await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err("this takes too long".into())
    }

    async fn close(self) -> Result {
        self.shutdown.cancel();
        let stopped = self.running.await??;
        assert_eq!(stopped.abandoned, 0);
        Ok(())
    }
}

async fn bus(db: &DatabaseConnection) -> Result<Bus<SeaOrm>> {
    let store = SeaOrm::new(db.clone());
    store.migrate().await?;
    Ok(Bus::new(store))
}

/// A database that is gone with its only connection, which handlers, relay and test share.
async fn database_in_memory() -> Result<DatabaseConnection> {
    let db = Database::connect("sqlite::memory:").await?;
    entity::create_tables(&db).await?;
    Ok(db)
}

fn an_order(city: &str) -> OrderPlaced {
    OrderPlaced {
        order_id: Uuid::now_v7(),
        customer: "ada".to_owned(),
        item: "kettle".to_owned(),
        city: city.to_owned(),
        total_cents: 4990,
    }
}

fn a_new_order(city: &str) -> NewOrder {
    NewOrder {
        customer: "ada".to_owned(),
        item: "kettle".to_owned(),
        city: city.to_owned(),
        total_cents: 4990,
    }
}
