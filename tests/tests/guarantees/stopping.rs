//! R9.

use std::time::{Duration, Instant};

use outbox_core::RelayOptions;
use outbox_tests::{Database, Postgres, TestDatabase, eventually, on_every_database};
use tokio_util::sync::CancellationToken;

use crate::shop::{Act, DEADLINE, Script, Shop, relay, shipping};

on_every_database! {
    /// R9: a relay that stops gives its lease up, so that the next does not wait for it to run out.
    async fn a_relay_that_stops_hands_over_at_once(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let long = || relay().lease(Duration::from_secs(600));
        let first = shop.relay_with(long());
        for number in 1..=300 {
            shop.order(number).await;
        }
        let stopped = first.stop().await;
        assert!(stopped.relay_released);
        let began = Instant::now();
        let second = shop.relay_with(long());
        shop.await_published(1..=300).await;
        assert!(began.elapsed() < Duration::from_secs(60), "a lease of ten minutes was waited for");
        second.stop().await;
        assert_eq!(shop.stream().await.len(), 300, "what was in flight was settled");
    }

    /// R9: messages that were pulled and not started go to the next process at once.
    async fn a_consumer_that_stops_hands_its_messages_back_at_once(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, before| if before == 0 { Act::Hang } else { Act::Ship });
        let relay = shop.relay_with(RelayOptions::default());
        for number in 1..=12 {
            shop.order(number).await;
        }
        shop.await_published(1..=12).await;
        let slow = shipping().ack_wait(Duration::from_secs(600)).concurrency(4);
        let first = shop.consumer_within(&script, slow, Duration::from_millis(300));
        // SQLite has one writer, so one handler hangs and the others wait for it.
        let hanging = if shop.db.kind == Database::Sqlite { 1 } else { 4 };
        eventually("the handlers hang", DEADLINE, async || {
            (1..=12).filter(|number| script.starts(*number) > 0).count() == hanging
        })
        .await;
        first.stop().await;
        let script = Script::always_ship();
        let second = shop.consumer(&script, shipping().ack_wait(Duration::from_secs(600)));
        shop.await_effects(1..=12).await;
        second.stop().await;
        relay.stop().await;
    }
}

/// R9: a stop ends in its time, whatever does not: handlers, the database, the broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_in_its_time_whatever_hangs() {
    let server = Postgres::start().await;
    let db = TestDatabase::on(Database::Postgres, server.create_database().await).await;
    let shop = Shop::open(db).await;
    let script = Script::new(|_, _| Act::Hang);
    let stop = CancellationToken::new();
    let runtime = shop
        .bus
        .runtime(shop.broker.clone())
        .state(script.clone())
        .stop_timeout(Duration::from_secs(3))
        .relay(relay())
        .consumer(shipping());
    let running = tokio::spawn(runtime.run(stop.clone()));
    shop.order(1).await;
    eventually("the handler hangs", DEADLINE, async || {
        script.starts(1) == 1
    })
    .await;
    server.freeze();
    shop.nats.freeze();
    let began = Instant::now();
    stop.cancel();
    let stopped = running.await.unwrap().unwrap();
    let took = began.elapsed();
    assert_eq!(stopped.abandoned, 1);
    assert!(took < Duration::from_millis(3700), "{took:?}");
}
