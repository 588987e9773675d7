//! R2 and R8, the relay's side.

use std::time::Duration;

use outbox_core::{DispatchError, Relay, RelayOptions};
use outbox_tests::{Database, NatsConfig, NatsServer, TestDatabase, eventually, on_every_database};
use sea_orm::ConnectionTrait;

use crate::shop::{DEADLINE, Shop, relay};

on_every_database! {
    /// R2: the broker is away when the events are written, and comes back.
    async fn events_wait_for_a_broker_that_is_away(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        shop.order(1).await;
        shop.await_published([1]).await;
        shop.nats.kill();
        for number in 2..=50 {
            shop.order(number).await;
        }
        shop.nats.restart().await;
        shop.await_published(1..=50).await;
        shop.await_empty("outbox").await;
        assert_eq!(shop.count("outbox_held").await, 0, "an outage is not counted");
        relay.stop().await;
    }

    /// R2: the relay dies between any two steps, again and again.
    async fn a_relay_that_dies_loses_nothing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        for number in 1..=200 {
            shop.order(number).await;
        }
        let options = || relay().batch(20).window(10);
        for round in 0..10_u64 {
            let relay = shop.relay_with(options());
            // Long enough to be somewhere in the middle, each time elsewhere.
            tokio::time::sleep(Duration::from_millis(20 + 7 * round)).await;
            relay.abort().await;
        }
        let relay = shop.relay_with(options());
        shop.await_published(1..=200).await;
        shop.await_empty("outbox").await;
        relay.stop().await;
    }

    /// R2: two relays stand side by side; one is active, the other takes over when it goes.
    async fn one_relay_is_active_and_the_other_takes_over(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let first = shop.relay();
        shop.order(1).await;
        shop.await_published([1]).await;
        let second = shop.relay();
        for number in 2..=20 {
            shop.order(number).await;
        }
        shop.await_published(1..=20).await;
        first.stop().await;
        shop.order(21).await;
        shop.await_published(1..=21).await;
        second.stop().await;
        assert_eq!(shop.stream().await.len(), 21, "no event was published twice");
    }

    /// R2 and R8: a row that the broker refuses is held alone, ends dead with its reason, and goes out
    /// when it is replayed.
    async fn a_row_that_is_refused_is_held_and_stops_nobody(db: TestDatabase) {
        let nats = NatsServer::start_with(NatsConfig::default().max_payload(8 * 1024)).await;
        let shop = Shop::open_with(db, nats).await;
        let relay = shop.relay_with(relay().max_attempts(2));
        shop.order(1).await;
        shop.order_for(2, Some(&"x".repeat(200))).await;
        let blob = "79".repeat(10_000);
        let payload = match shop.db.kind {
            Database::Postgres => format!("decode('{blob}', 'hex')"),
            Database::MariaDb | Database::Sqlite => format!("X'{blob}'"),
        };
        let sql = format!(
            "UPDATE outbox SET payload = {payload} WHERE seq = (SELECT s FROM (SELECT MAX(seq) AS s FROM outbox) AS m)"
        );
        relay.stop().await;
        shop.order(3).await;
        shop.db.connection.execute_unprepared(&sql).await.unwrap();
        shop.order(4).await;
        let relay = shop.relay_with(self::relay().max_attempts(2));
        shop.await_published([1, 2, 4]).await;
        let dead = shop.await_dead_letters(1).await;
        assert_eq!(dead[0].attempts, 2);
        assert!(dead[0].error.contains("size limit"), "{:?}", dead[0]);
        relay.stop().await;
    }

    /// R8: rows that were edited by hand are held alone, without touching the connection.
    async fn broken_rows_are_held_alone(db: TestDatabase) {
        let shop = Shop::open(db).await;
        for number in 1..=20 {
            shop.order(number).await;
        }
        for (position, edit) in [
            "subject = ''", "subject = 'a..b'", "subject = 'a b'", "subject = 'shop.*'", "event_type = ''",
            "event_version = -1", "headers = 'nonsense'",
        ]
        .iter()
        .enumerate()
        {
            let nth = position + 3;
            let sql = format!(
                "UPDATE outbox SET {edit} WHERE seq = (SELECT s FROM (SELECT MIN(seq) + {nth} AS s FROM outbox) AS m)"
            );
            shop.db.connection.execute_unprepared(&sql).await.unwrap();
        }
        let relay = shop.relay();
        shop.await_published((1..=20).filter(|number| !(4..=10).contains(number))).await;
        let dead = shop.await_dead_letters(7).await;
        assert!(dead.iter().all(|letter| !letter.error.is_empty()));
        shop.await_empty("outbox").await;
        relay.stop().await;
    }

    /// R8: a subject that no stream carries waits, uncounted, and goes out when a stream carries it.
    async fn a_subject_without_a_stream_waits_and_stops_nobody(db: TestDatabase) {
        let shop = Shop::open(db).await;
        shop.order(1).await;
        shop.order(2).await;
        let sql = "UPDATE outbox SET subject = 'elsewhere.orders' WHERE seq = (SELECT s FROM (SELECT MIN(seq) AS s FROM outbox) AS m)";
        shop.db.connection.execute_unprepared(sql).await.unwrap();
        let relay = shop.relay();
        shop.await_published([2]).await;
        eventually("one row that waits", DEADLINE, async || shop.count("outbox").await == 1).await;
        let js = shop.nats.nats().jetstream().await;
        outbox_tests::create_stream(&js, "ELSEWHERE", &["elsewhere.>"]).await;
        eventually("the row in the new stream", DEADLINE, async || {
            outbox_tests::count_messages(&js, "ELSEWHERE").await == 1
        })
        .await;
        shop.await_empty("outbox").await;
        assert_eq!(shop.count("outbox_held").await, 0);
        relay.stop().await;
    }

    /// R8: a stream that is full holds its own events back, however many, and no others.
    async fn a_full_stream_stops_no_other(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let js = shop.nats.nats().jetstream().await;
        let full = async_nats::jetstream::stream::Config {
            name: "FULL".to_owned(),
            subjects: vec!["full.>".to_owned()],
            max_messages: 5,
            discard: async_nats::jetstream::stream::DiscardPolicy::New,
            ..Default::default()
        };
        js.create_stream(full.clone()).await.unwrap();
        for number in 1..=100 {
            shop.order(number).await;
        }
        shop.db.connection.execute_unprepared("UPDATE outbox SET subject = 'full.orders'").await.unwrap();
        for number in 101..=200 {
            shop.order(number).await;
        }
        // Small hands: the rows of the full stream must make room.
        let relay = shop.relay_with(small_hands());
        shop.await_published(101..=200).await;
        let roomy = async_nats::jetstream::stream::Config { max_messages: 1000, ..full };
        js.update_stream(roomy).await.unwrap();
        eventually("all rows in the stream that was full", DEADLINE, async || {
            outbox_tests::count_messages(&js, "FULL").await == 100
        })
        .await;
        shop.await_empty("outbox").await;
        shop.await_empty("outbox_held").await;
        relay.stop().await;
    }

    /// R2: one batch without a runtime: all answers awaited and settled, counts returned; refused while
    /// another relay is active.
    async fn a_batch_is_dispatched_without_a_runtime(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = Relay::new(shop.bus.clone(), shop.broker.clone()).options(relay().batch(50));
        assert_eq!(relay.dispatch_batch().await.unwrap().published, 0);
        for number in 1..=60 {
            shop.order(number).await;
        }
        let sql = "UPDATE outbox SET headers = 'nonsense' WHERE seq = (SELECT s FROM (SELECT MIN(seq) AS s FROM outbox) AS m)";
        shop.db.connection.execute_unprepared(sql).await.unwrap();
        let done = relay.dispatch_batch().await.unwrap();
        assert_eq!((done.published, done.failed, done.dead), (49, 1, 1));
        assert_eq!(shop.count("outbox").await, 10);
        assert_eq!(shop.stream().await.len(), 49);
        let active = shop.relay();
        eventually("another active relay", DEADLINE, async || shop.count("outbox").await == 0).await;
        let refused = relay.dispatch_batch().await.unwrap_err();
        assert!(matches!(refused, DispatchError::NotActive { .. }), "{refused}");
        active.stop().await;
        assert_eq!(relay.dispatch_batch().await.unwrap().published, 0);
    }
}

fn small_hands() -> RelayOptions {
    relay().batch(10).in_hand(30)
}
