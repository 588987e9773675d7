//! The whole path in one process: orders are placed in transactions, a relay publishes what they
//! left in the outbox, and a consumer ships them.
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! Needs nothing but Rust: the database is a SQLite file, the broker lives in the process.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program has no other crate to be reached from"
)]

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::{
    Bus, Consumer, Context, DeadLetterFilter, HandlerError, IntegrationEvent, MemoryBroker,
    RelayOptions, State, handler,
};
use outbox_seaorm::SeaOrm;
use sea_orm::{
    ActiveValue::Set, ConnectionTrait, Database, DatabaseTransaction, PaginatorTrait,
    TransactionTrait, entity::prelude::*,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

// ----- what the service tells others -----

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", version = 1, key = order_id)]
pub struct OrderPlaced {
    pub order_id: Uuid,
    pub city: String,
}

// ----- what it stores -----

mod order {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: Uuid,
        pub city: String,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

mod shipment {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "shipments")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub order_id: Uuid,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

// ----- the producer: one transaction for the order and its event -----

async fn place_order(
    bus: &Bus<SeaOrm>,
    db: &DatabaseConnection,
    city: &str,
) -> Result<Uuid, Box<dyn Error>> {
    let tx = db.begin().await?;
    let order_id = Uuid::now_v7();
    order::ActiveModel {
        id: Set(order_id),
        city: Set(city.to_owned()),
    }
    .insert(&tx)
    .await?;
    let message_id = bus
        .publish(
            &tx,
            &OrderPlaced {
                order_id,
                city: city.to_owned(),
            },
        )
        .await?;
    tx.commit().await?;
    Ok(message_id)
}

// ----- the consumer: one transaction for the inbox row and the shipment -----

/// The cities that the carrier delivers to.
#[derive(Clone, Default)]
struct Carrier {
    knows_atlantis: Arc<AtomicBool>,
}

#[handler(consumer = "shipping", max_attempts = 3)]
async fn create_shipment(
    event: OrderPlaced,
    tx: &DatabaseTransaction,
    carrier: State<Carrier>,
    cx: Context,
) -> Result<(), HandlerError> {
    if event.city == "Atlantis" && !carrier.knows_atlantis.load(Ordering::Relaxed) {
        return Err(HandlerError::reject(
            "the carrier does not deliver to Atlantis",
        ));
    }
    shipment::ActiveModel {
        order_id: Set(event.order_id),
        ..Default::default()
    }
    .insert(tx)
    .await?;
    println!(
        "   [shipping] order to {} shipped (delivery {})",
        event.city,
        cx.deliveries()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = Database::connect(format!(
        "sqlite://{}?mode=rwc",
        dir.path().join("shop.db").display()
    ))
    .await?;
    db.execute_unprepared("CREATE TABLE orders (id BLOB PRIMARY KEY, city TEXT NOT NULL)")
        .await?;
    db.execute_unprepared(
        "CREATE TABLE shipments (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id BLOB NOT NULL)",
    )
    .await?;

    let store = SeaOrm::new(db.clone());
    store.migrate().await?;
    let bus = Bus::new(store);
    let broker = MemoryBroker::new();
    let carrier = Carrier::default();

    let shutdown = CancellationToken::new();
    let runtime = bus
        .runtime(broker.clone())
        .state(carrier.clone())
        .relay(RelayOptions::default())
        .consumer(Consumer::of(create_shipment {}));
    let mut running = tokio::spawn(runtime.run(shutdown.clone()));
    tokio::select! {
        // It could not start: nothing would ever happen.
        ended = &mut running => {
            ended??;
            return Err("the runtime has ended by itself".into());
        }
        told = story(&bus, &db, &broker, &carrier) => told?,
    }

    println!("\n6. A graceful stop.");
    shutdown.cancel();
    running.await??;
    println!(
        "   orders: {}, shipments: {}: each order once.",
        orders(&db).await,
        shipments(&db).await
    );
    Ok(())
}

/// What happens while the runtime runs.
async fn story(
    bus: &Bus<SeaOrm>,
    db: &DatabaseConnection,
    broker: &MemoryBroker,
    carrier: &Carrier,
) -> Result<(), Box<dyn Error>> {
    println!("1. Three orders are placed; each commits together with its event.");
    let first = place_order(bus, db, "Lisbon").await?;
    place_order(bus, db, "Oslo").await?;
    place_order(bus, db, "Kyoto").await?;
    until("three shipments", async || shipments(db).await == 3).await;

    println!("\n2. A fourth order is rolled back after it was published: nobody ever hears of it.");
    let tx = db.begin().await?;
    let order_id = Uuid::now_v7();
    order::ActiveModel {
        id: Set(order_id),
        city: Set("Paris".to_owned()),
    }
    .insert(&tx)
    .await?;
    bus.publish(
        &tx,
        &OrderPlaced {
            order_id,
            city: "Paris".to_owned(),
        },
    )
    .await?;
    tx.rollback().await?;
    println!(
        "   still {} orders, and {} messages at the broker",
        orders(db).await,
        broker.messages().len()
    );

    println!(
        "\n3. Lisbon's message is delivered a second time, and behind it that of a new order, to Quito."
    );
    println!("   The inbox recognises the duplicate: only Quito is shipped.");
    broker.duplicate(first);
    place_order(bus, db, "Quito").await?;
    until("the next shipment", async || shipments(db).await == 4).await;
    println!(
        "   {} messages at the broker, one of them the duplicate; {} shipments",
        broker.messages().len(),
        shipments(db).await
    );

    println!(
        "\n4. Two more orders: one to Atlantis, which cannot be shipped and ends in the dead letters,"
    );
    println!("   and one to Lima, which it does not hold up.");
    place_order(bus, db, "Atlantis").await?;
    place_order(bus, db, "Lima").await?;
    let dead_letters = bus.dead_letters(broker.clone());
    let mut dead = Vec::new();
    until("the dead letter", async || {
        dead = dead_letters
            .list(&DeadLetterFilter::default())
            .await
            .unwrap_or_default();
        dead.len() == 1 && shipments(db).await == 5
    })
    .await;
    for letter in &dead {
        println!(
            "   {}  {}  {}: {}",
            letter.id,
            letter.event_type.as_deref().unwrap_or("?"),
            letter.reason,
            letter.error
        );
    }

    println!("\n5. The carrier learns the way to Atlantis, and the dead letter is replayed.");
    carrier.knows_atlantis.store(true, Ordering::Relaxed);
    for letter in &dead {
        dead_letters.replay(letter.id).await?;
    }
    until("the replayed shipment", async || shipments(db).await == 6).await;
    Ok(())
}

async fn orders(db: &DatabaseConnection) -> u64 {
    order::Entity::find().count(db).await.unwrap_or_default()
}

async fn shipments(db: &DatabaseConnection) -> u64 {
    shipment::Entity::find().count(db).await.unwrap_or_default()
}

/// Waits until `reached` says so.
async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if reached().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("   (still waiting for {what}; something is wrong)");
    std::process::exit(1);
}
