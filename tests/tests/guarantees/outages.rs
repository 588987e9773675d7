//! R5 and R8: the database goes away, freezes, or cuts connections; the relay's host freezes.

use std::time::Duration;

use outbox_core::Bus;
use outbox_seaorm::SeaOrm;
use outbox_tests::{Child, Database, Proxy, eventually};
use sea_orm::{ConnectionTrait, TransactionTrait};
use tokio_util::sync::CancellationToken;

use crate::server::{Server, end_session, on_servers};
use crate::shop::{Act, DEADLINE, Script, Shop, numbers, relay, shipping};

const NODE: &str = env!("CARGO_BIN_EXE_outbox-test-node");

on_servers! {
    /// R2: a row with a lower number that commits after a higher one was published is found.
    async fn a_row_that_commits_late_is_found(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let late = shop.db.connection.begin().await.unwrap();
        shop.order_in(&late, 1, None).await;
        for number in 2..=20 {
            shop.order(number).await;
        }
        shop.await_published(2..=20).await;
        shop.await_empty("outbox").await;
        // Long enough for a floor to be proved, if one could be.
        tokio::time::sleep(Duration::from_secs(2)).await;
        shop.order(21).await;
        shop.await_published(2..=21).await;
        late.commit().await.unwrap();
        shop.await_published(1..=21).await;
        relay.stop().await;
    }

    /// R2 and R4: rows were published, and the database goes before they are deleted. A relay that lives on
    /// deletes them later. If it dies, the next one publishes them again, under their ids, and the inbox
    /// drops the copies although the stream has forgotten the ids.
    async fn what_was_published_and_not_deleted_goes_again_at_most_under_its_id(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let js = shop.nats.nats().jetstream().await;
        let mut config = js.get_stream("SHOP").await.unwrap().cached_info().config.clone();
        config.duplicate_window = Duration::from_millis(100);
        js.update_stream(config).await.unwrap();
        let consumer = shop.consumer(&Script::always_ship(), shipping());
        let (lock_it, unlock_it, deletions) = match kind {
            Database::Postgres => (
                "LOCK TABLE outbox IN SHARE MODE",
                "SELECT 1",
                "SELECT pid::bigint AS number FROM pg_stat_activity WHERE query LIKE 'DELETE%'",
            ),
            _ => (
                "LOCK TABLES outbox READ",
                "UNLOCK TABLES",
                "SELECT id AS number FROM information_schema.processlist WHERE info LIKE 'DELETE%'",
            ),
        };
        let placed = async || {
            let mut messages = shop.stream().await;
            messages.retain(|message| message.subject == "shop.orders.placed");
            messages
        };
        for (dies, ordered, expected) in [(false, 10, 10), (true, 20, 30)] {
            for number in ordered - 9..=ordered {
                shop.order(number).await;
            }
            // From here on rows can be read and not deleted.
            let lock = shop.db.connection.begin().await.unwrap();
            lock.execute_unprepared(lock_it).await.unwrap();
            let proxy = Proxy::start(&shop.db.url).await;
            let far = sea_orm::Database::connect(proxy.through(&shop.db.url)).await.unwrap();
            let store = SeaOrm::builder(far).acquire_timeout(Duration::from_secs(1)).build().unwrap();
            let lease = Duration::from_secs(if dies { 1 } else { 60 });
            let runtime = Bus::new(store).runtime(shop.broker.clone()).relay(relay().lease(lease));
            let stop = CancellationToken::new();
            let running = tokio::spawn(runtime.run(stop.clone()));
            eventually("all rows in the stream", DEADLINE, async || placed().await.len() as i64 == ordered).await;
            proxy.cut().await;
            if dies {
                running.abort();
            }
            // Their server would carry the deletion out although nobody waits for the answer.
            eventually("no deletion that waits", DEADLINE, async || {
                let waiting = numbers(&shop.db.connection, deletions).await;
                for id in &waiting {
                    end_session(&shop.db.connection, *id).await;
                }
                waiting.is_empty()
            })
            .await;
            lock.execute_unprepared(unlock_it).await.unwrap();
            lock.rollback().await.unwrap();
            assert_eq!(shop.count("outbox WHERE subject = 'shop.orders.placed'").await, 10);
            proxy.restore().await;
            let next = dies.then(|| shop.relay());
            shop.await_empty("outbox").await;
            assert_eq!(placed().await.len(), expected);
            match next {
                Some(next) => {
                    next.stop().await;
                }
                None => {
                    stop.cancel();
                    running.await.unwrap().unwrap();
                }
            }
        }
        let messages = placed().await;
        let mut ids: Vec<_> = messages.iter().map(|message| message.header("ce-id").unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 20);
        eventually("all copies handled", DEADLINE, async || {
            let stream = js.get_stream("SHOP").await.unwrap();
            let mut durable: async_nats::jetstream::consumer::PullConsumer = stream.get_consumer("shipping").await.unwrap();
            let info = durable.info().await.unwrap();
            info.num_pending == 0 && info.num_ack_pending == 0
        })
        .await;
        assert_eq!(shop.effects().await, (1..=20).collect::<Vec<i64>>());
        consumer.stop().await;
    }

    /// R5: the database is killed in the middle of handling, with one attempt allowed.
    async fn a_database_outage_spends_no_attempt(kind: Database) {
        let (server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Take(Duration::from_millis(200)));
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(1));
        for number in 1..=60 {
            shop.order(number).await;
        }
        shop.await_published(1..=60).await;
        eventually("some are handled", DEADLINE, async || shop.effects().await.len() >= 8).await;
        server.kill();
        consumer.await_pause().await;
        server.restart().await;
        eventually("all shipped", Duration::from_secs(60), async || {
            // The test's own pool has dead connections too.
            let found = shop.try_effects().await.unwrap_or_default();
            if found == (1..=60).collect::<Vec<i64>>() { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        assert!(shop.dead_letters().await.is_empty());
        // And the relay goes on too.
        shop.order(61).await;
        shop.await_effects(1..=61).await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: the database freezes for a while and thaws.
    async fn a_frozen_database_spends_no_attempt(kind: Database) {
        let (server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Take(Duration::from_millis(100)));
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(1));
        for number in 1..=40 {
            shop.order(number).await;
        }
        eventually("some are handled", DEADLINE, async || shop.effects().await.len() >= 8).await;
        server.freeze();
        consumer.await_pause().await;
        server.thaw();
        shop.await_effects(1..=40).await;
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }

    /// R8: a handler that kills its own connection fails alone and is counted.
    async fn a_handler_that_kills_its_connection_fails_alone(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let script = Script::new(|number, _| if number == 3 { Act::KillTheConnection } else { Act::Ship });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(2));
        for number in 1..=10 {
            shop.order(number).await;
        }
        let dead = shop.await_dead_letters(1).await;
        assert_eq!(dead[0].reason, "out-of-attempts", "{dead:?}");
        assert_eq!(dead[0].attempts, 2);
        shop.await_effects((1..=10).filter(|number| *number != 3)).await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R2 and R7: the active relay's host freezes beyond its lease, another takes over, and the first
    /// one thaws.
    async fn a_relay_that_froze_beyond_its_lease_harms_nothing(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let spawn = || Child::spawn(NODE, &["relay"], &[("DATABASE_URL", &shop.db.url), ("NATS_URL", shop.nats.nats().url())]);
        let first = spawn();
        first.line_with("ready", DEADLINE).await;
        let order = async |number: i64| shop.order_for(number, Some(&format!("c{}", number % 3))).await;
        for number in 1..=100 {
            order(number).await;
        }
        eventually("the first relay works", DEADLINE, async || !shop.published().await.is_empty()).await;
        first.freeze();
        let second = spawn();
        second.line_with("ready", DEADLINE).await;
        for number in 101..=200 {
            order(number).await;
        }
        shop.await_published(1..=200).await;
        first.thaw();
        for number in 201..=300 {
            order(number).await;
        }
        shop.await_published(1..=300).await;
        shop.await_empty("outbox").await;
        let published = shop.published().await;
        for customer in 0..3 {
            let of: Vec<i64> = published.iter().copied().filter(|number| number % 3 == customer).collect();
            assert!(of.is_sorted(), "customer {customer}: {of:?}");
        }
        for node in [first, second] {
            node.terminate();
            node.exit(DEADLINE).await;
        }
    }
}
