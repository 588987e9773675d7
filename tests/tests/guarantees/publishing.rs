//! R1 and R2, the publisher's side.

use std::time::Duration;

use outbox_core::{
    Bus, Consumer, HandlerError, IntegrationEvent, Publish, State,
    error::{PublishErrorKind, StoreErrorKind},
    handler,
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{NatsConfig, NatsServer, TestDatabase, on_every_database};
use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};
use serde::{Deserialize, Serialize};

use crate::shop::{Act, OrderPlaced, Script, Shop, numbers};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.labels.drawn")]
struct LabelDrawn {
    image: String,
}

/// Its effect is the size of the image.
#[handler(consumer = "labels", max_attempts = 1)]
async fn print_label(
    label: LabelDrawn,
    tx: &DatabaseTransaction,
    script: State<Script>,
) -> Result<(), HandlerError> {
    if script.start(0) == Act::Reject {
        return Err(HandlerError::reject("the printer is out of paper"));
    }
    let insert = format!(
        "INSERT INTO effects (number) VALUES ({})",
        label.image.len()
    );
    tx.execute_unprepared(&insert).await?;
    Ok(())
}

fn event(number: i64) -> OrderPlaced {
    OrderPlaced {
        number,
        customer: None,
    }
}

on_every_database! {
    /// R1, in every way in which a transaction can end without a commit.
    async fn an_event_of_a_transaction_that_rolled_back_is_never_published(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let db = &shop.db.connection;

        let tx = db.begin().await.unwrap();
        shop.order_in(&tx, 1, None).await;
        tx.rollback().await.unwrap();

        let tx = db.begin().await.unwrap();
        shop.order_in(&tx, 2, None).await;
        drop(tx);

        let unit = shop.bus.begin().await.unwrap();
        unit.publish(&event(3)).unwrap();
        unit.rollback().await.unwrap();

        let unit = shop.bus.begin().await.unwrap();
        shop.bus.publish(&unit, &event(4)).await.unwrap();
        drop(unit);

        let failed: Result<(), sea_orm::DbErr> = async {
            shop.bus
                .transaction(async |unit| {
                    unit.publish(&event(5)).map_err(|error| BoxErr(error.to_string()))?;
                    Err::<(), BoxErr>(BoxErr("changed my mind".to_owned()))
                })
                .await
                .map_err(|error| sea_orm::DbErr::Custom(error.0))
        }
        .await;
        assert!(failed.is_err());

        shop.order(6).await;
        shop.await_published([6]).await;
        shop.await_empty("outbox").await;
        relay.stop().await;
        assert_eq!(shop.published().await, [6]);
    }

    /// R1 and R2: a raised limit holds on the whole way, dead letter and replay included.
    async fn an_event_above_the_default_limit_goes_all_the_way_where_it_is_raised(db: TestDatabase) {
        const SIZE: usize = 5_000_000;
        let nats = NatsServer::start_with(NatsConfig::default().max_payload(8 * 1024 * 1024)).await;
        let mut shop = Shop::open_with(db, nats).await;
        let label = LabelDrawn { image: "x".repeat(SIZE) };
        let tx = shop.db.connection.begin().await.unwrap();
        let error = shop.bus.publish(&tx, &label).await.expect_err("too large");
        assert_eq!(error.kind(), PublishErrorKind::TooLarge, "{error}");
        tx.rollback().await.unwrap();

        let store = SeaOrm::new(shop.db.connection.clone());
        shop.bus = Bus::builder(store).envelope_limit(6 * 1024 * 1024).build();
        let tx = shop.db.connection.begin().await.unwrap();
        shop.bus.publish(&tx, &label).await.unwrap();
        let larger = LabelDrawn { image: "x".repeat(6 * 1024 * 1024) };
        let error = shop.bus.publish(&tx, &larger).await.expect_err("too large");
        assert_eq!(error.kind(), PublishErrorKind::TooLarge, "{error}");
        tx.commit().await.unwrap();

        let script = Script::new(|_, before| if before == 0 { Act::Reject } else { Act::Ship });
        let relay = shop.relay();
        let consumer = shop.consumer_with(&script, Consumer::of(print_label {}), Duration::from_secs(20));
        let dead = shop.await_dead_letters(1).await;
        assert_eq!(dead[0].reason, "rejected", "{dead:?}");
        assert!(dead[0].size > SIZE, "{dead:?}");
        assert!(shop.bus.dead_letters(shop.broker.clone()).replay(dead[0].id).await.unwrap());
        shop.await_effects([SIZE as i64]).await;
        shop.await_empty("outbox").await;
        shop.await_empty("outbox_held").await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R1, savepoints.
    async fn an_event_of_a_savepoint_that_rolled_back_is_never_published(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let db = &shop.db.connection;

        let tx = db.begin().await.unwrap();
        shop.order_in(&tx, 1, None).await;
        let savepoint = tx.begin().await.unwrap();
        shop.order_in(&savepoint, 2, None).await;
        savepoint.rollback().await.unwrap();
        let savepoint = tx.begin().await.unwrap();
        shop.order_in(&savepoint, 3, None).await;
        savepoint.commit().await.unwrap();
        let savepoint = tx.begin().await.unwrap();
        shop.order_in(&savepoint, 4, None).await;
        drop(savepoint);
        tx.commit().await.unwrap();

        // The same with buffered events.
        let unit = shop.bus.begin().await.unwrap();
        unit.publish(&event(5)).unwrap();
        let failed: Result<(), String> = unit
            .nested(async {
                unit.publish(&event(6)).map_err(|error| error.to_string())?;
                Err("no".to_owned())
            })
            .await;
        assert!(failed.is_err());
        unit.nested(async { unit.publish(&event(7)).map(|_| ()) }).await.unwrap();
        unit.commit().await.unwrap();

        // What a savepoint has committed is rolled back with the rest.
        let tx = db.begin().await.unwrap();
        shop.order_in(&tx, 8, None).await;
        let savepoint = tx.begin().await.unwrap();
        shop.order_in(&savepoint, 9, None).await;
        savepoint.commit().await.unwrap();
        tx.rollback().await.unwrap();

        let relay = shop.relay();
        shop.await_published([1, 3, 5, 7]).await;
        shop.await_empty("outbox").await;
        relay.stop().await;
        assert_eq!(shop.published().await, [1, 3, 5, 7]);
    }

    /// R1, again and again on few connections: one that is dropped comes back at once, rolled back.
    async fn dropped_transactions_give_their_connections_back(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let two = shop.db.connect(2).await;
        let bus = Bus::new(SeaOrm::new(two.clone()));
        for round in 0..100 {
            let tx = two.begin().await.unwrap();
            Shop::write_order(&bus, &tx, round, None).await.unwrap();
            match round % 4 {
                0 => drop(tx),
                1 => tx.rollback().await.unwrap(),
                2 => {
                    let panicked = tokio::spawn(async move {
                        let _tx = tx;
                        panic!("as a handler of HTTP requests may");
                    });
                    assert!(panicked.await.unwrap_err().is_panic());
                }
                _ => {
                    tx.rollback().await.unwrap();
                    let unit = bus.begin().await.unwrap();
                    bus.publish(&unit, &event(round)).await.unwrap();
                }
            }
        }
        let tx = two.begin().await.unwrap();
        Shop::write_order(&bus, &tx, 1000, None).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(shop.count("outbox").await, 1);
        let relay = shop.relay();
        shop.await_published([1000]).await;
        relay.stop().await;
    }

    /// R2: one id twice is two rows, of which JetStream stores one; equal events without ids are two.
    async fn an_id_that_is_used_twice_harms_no_transaction(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let db = &shop.db.connection;
        let id = uuid::Uuid::new_v4();
        let tx = db.begin().await.unwrap();
        for number in [1, 2] {
            shop.bus.publish_with(&tx, &event(number), Publish::new().id(id)).await.unwrap();
        }
        tx.commit().await.unwrap();
        let tx = db.begin().await.unwrap();
        shop.bus.publish_with(&tx, &event(3), Publish::new().id(id)).await.unwrap();
        for _ in 0..2 {
            shop.bus.publish(&tx, &event(4)).await.unwrap();
        }
        tx.commit().await.unwrap();
        assert_eq!(shop.count("outbox").await, 5);
        let relay = shop.relay();
        shop.await_empty("outbox").await;
        // Also when the first row is gone.
        let tx = db.begin().await.unwrap();
        shop.bus.publish_with(&tx, &event(5), Publish::new().id(id)).await.unwrap();
        tx.commit().await.unwrap();
        shop.order(6).await;
        shop.await_published([1, 4, 6]).await;
        shop.await_empty("outbox").await;
        relay.stop().await;
        assert_eq!(shop.stream().await.len(), 4, "one of the id, two equal ones, and the last");
        assert_eq!(shop.count("outbox_held").await, 0);
    }

    /// R1: a unit of work whose transaction the database has ended says so and commits nothing.
    async fn a_unit_whose_transaction_was_ended_commits_nothing_and_says_so(db: TestDatabase) {
        use sea_orm::ConnectionTrait;
        let shop = Shop::open(db).await;
        let unit = shop.bus.begin().await.unwrap();
        unit.publish(&event(1)).unwrap();
        unit.tx().execute_unprepared("ROLLBACK").await.unwrap();
        let error = unit.commit().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::TransactionLost, "{error}");
        assert_eq!(shop.count("outbox").await, 0);
    }

    /// R1: SeaORM commits nothing and reports success while a nested handle is alive; the unit of
    /// work notices.
    async fn a_unit_with_a_live_nested_handle_says_so(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let unit = shop.bus.begin().await.unwrap();
        unit.publish(&event(1)).unwrap();
        let leaked = unit.tx().begin().await.unwrap();
        let result = unit.commit().await;
        drop(leaked);
        let committed = shop.count("outbox").await;
        assert_eq!(committed, i64::from(result.is_ok()), "what was said and what was done differ: {result:?}");
    }

    /// R2: ids, headers and everything else arrive as they were published.
    async fn what_was_published_arrives_unchanged(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let id = uuid::Uuid::new_v4();
        let tx = shop.db.connection.begin().await.unwrap();
        let options = Publish::new().id(id).header("tenant", "acme 🦀").correlation_id("c 1");
        let order = OrderPlaced { number: 1, customer: Some("Zoë \u{2028} 🦀 %".to_owned()) };
        shop.bus.publish_with(&tx, &order, options).await.unwrap();
        tx.commit().await.unwrap();
        shop.await_published([1]).await;
        relay.stop().await;
        let message = &shop.stream().await[0];
        assert_eq!(message.header("Nats-Msg-Id"), Some(id.to_string().as_str()));
        assert_eq!(message.header("ce-id"), Some(id.to_string().as_str()));
        assert_eq!(message.header("ce-type"), Some("shop.orders.placed"));
        assert_eq!(message.header("ce-correlationid"), Some("c%201"));
        assert_eq!(message.header("ce-partitionkey"), Some("Zo%C3%AB%20%E2%80%A8%20%F0%9F%A6%80%20%25"));
        assert_eq!(message.header("tenant"), Some("acme 🦀"));
        assert_eq!(message.payload, serde_json::to_vec(&order).unwrap());
    }

    /// R2: a delayed event goes out when it is due, not before.
    async fn a_delayed_event_is_published_when_it_is_due(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let began = std::time::Instant::now();
        let delay = std::time::Duration::from_millis(1500);
        let tx = shop.db.connection.begin().await.unwrap();
        shop.bus.publish_with(&tx, &event(1), Publish::new().delay(delay)).await.unwrap();
        shop.bus.publish(&tx, &event(2)).await.unwrap();
        tx.commit().await.unwrap();
        shop.await_published([2]).await;
        assert_eq!(numbers(&shop.db.connection, "SELECT COUNT(*) AS number FROM outbox_held").await, [1]);
        shop.await_published([1, 2]).await;
        assert!(began.elapsed() >= delay, "it went out after {:?}", began.elapsed());
        relay.stop().await;
    }
}

#[derive(Debug)]
struct BoxErr(String);

impl From<outbox_core::error::StoreError> for BoxErr {
    fn from(error: outbox_core::error::StoreError) -> Self {
        Self(error.to_string())
    }
}
