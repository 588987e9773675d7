//! R2, R4, R5 and R8 whatever befalls the broker.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, Placement};
use outbox_core::{Bus, IntegrationEvent};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::{
    Database, Direction, NatsConfig, NatsServer, Proxy, TestDatabase, count_messages,
    create_stream, eventually, nats_cluster, on_every_database,
};
use sea_orm::{ConnectionTrait, TransactionTrait};
use serde::{Deserialize, Serialize};

use crate::shop::{Act, DEADLINE, Running, Script, Shop, relay, shipping};

const LONG: Duration = Duration::from_secs(60);

/// An event of another stream than the shop's.
#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "news.written")]
struct NewsWritten {
    number: i64,
}

/// A broker behind a proxy.
async fn behind(proxy: &Proxy, nats: &NatsServer) -> JetStream {
    JetStream::builder()
        .stream(StreamSpec::new("SHOP", ["shop.>"]))
        .ack_timeout(Duration::from_secs(1))
        .connect(&proxy.through(nats.nats().url()))
        .await
        .unwrap()
}

/// A process that relays and ships. A failure that is counted ends its row or message at once, and the
/// broker's troubles are not to be counted.
fn start(bus: &Bus<SeaOrm>, broker: &JetStream) -> Running {
    let runtime = bus
        .runtime(broker.clone())
        .relay(relay().max_attempts(1))
        .state(Script::always_ship())
        .consumer(shipping().ack_wait(Duration::from_secs(2)).max_attempts(1));
    Running::start(runtime)
}

async fn publish_news(shop: &Shop, numbers: impl IntoIterator<Item = i64>) {
    let unit = shop.bus.begin().await.unwrap();
    for number in numbers {
        unit.publish(&NewsWritten { number }).unwrap();
    }
    unit.commit().await.unwrap();
}

on_every_database! {
    /// Everything arrives late over a slow network, and nothing twice or dead.
    async fn a_slow_network_loses_and_doubles_nothing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let proxy = Proxy::start(shop.nats.nats().url()).await;
        let broker = behind(&proxy, &shop.nats).await;
        proxy.delay(Duration::from_millis(150));
        let running = start(&shop.bus, &broker);
        for number in 1..=30 {
            shop.order(number).await;
        }
        shop.await_effects(1..=30).await;
        shop.await_empty("outbox").await;
        assert!(shop.dead_letters().await.is_empty());
        running.stop().await;
    }

    /// A network that loses everything in one direction for longer than leases, confirmations and
    /// acknowledgements wait.
    async fn a_half_open_network_loses_and_doubles_nothing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let proxy = Proxy::start(shop.nats.nats().url()).await;
        let broker = behind(&proxy, &shop.nats).await;
        let running = start(&shop.bus, &broker);
        shop.order(1).await;
        shop.await_effects([1]).await;
        let mut next = 2;
        for direction in [Direction::Downstream, Direction::Upstream] {
            proxy.drop_direction(direction);
            for number in next..next + 10 {
                shop.order(number).await;
            }
            next += 10;
            // Nothing gets through, and it shows.
            eventually("the relay misses its broker", DEADLINE, async || {
                let problems = running.health.report().problems;
                if problems.is_empty() { Err("no problem is seen") } else { Ok(()) }
            })
            .await;
            assert!(shop.effects().await.len() < next as usize - 1, "{:?}", shop.effects().await);
            proxy.restore().await;
            shop.await_effects(1..next).await;
            shop.await_empty("outbox").await;
        }
        assert!(shop.dead_letters().await.is_empty());
        assert_eq!(shop.count("outbox_held").await, 0);
        running.stop().await;
    }

    /// Events of a stream that was deleted wait, others go on, and when the stream is back they leave.
    async fn a_deleted_stream_stops_no_other(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let jetstream = shop.nats.nats().jetstream().await;
        create_stream(&jetstream, "NEWS", &["news.>"]).await;
        // None of the waiting counts as a failure: the first would make a row dead.
        let relay = shop.relay_with(relay().max_attempts(1));
        publish_news(&shop, [1]).await;
        shop.await_empty("outbox").await;
        jetstream.delete_stream("NEWS").await.unwrap();
        publish_news(&shop, 2..=5).await;
        shop.order(1).await;
        shop.await_published([1]).await;
        shop.order(2).await;
        shop.await_published([1, 2]).await;
        let waiting = "(SELECT subject FROM outbox WHERE subject = 'news.written' UNION ALL \
                       SELECT subject FROM outbox_held WHERE subject = 'news.written') AS waiting";
        assert_eq!(shop.count(waiting).await, 4);
        create_stream(&jetstream, "NEWS", &["news.>"]).await;
        shop.await_empty("outbox").await;
        shop.await_empty("outbox_held").await;
        assert_eq!(count_messages(&jetstream, "NEWS").await, 4);
        relay.stop().await;
    }

    /// Three relays, of which the active one is lost again and again.
    async fn three_relays_publish_every_event_in_order(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let mut relays = vec![shop.relay(), shop.relay(), shop.relay()];
        for round in 0..6 {
            for number in 1..=20 {
                shop.order_for(round * 20 + number, Some("one")).await;
            }
            // Whichever it is: after three rounds each was the active one or stood by.
            relays.remove(0).abort().await;
            relays.push(shop.relay());
        }
        shop.await_published(1..=120).await;
        shop.await_empty("outbox").await;
        assert_eq!(shop.published().await, (1..=120).collect::<Vec<i64>>());
        for relay in relays {
            relay.stop().await;
        }
    }

    /// The oldest server that is supported is replaced by the newest, with its streams, under load.
    async fn a_server_of_another_version_takes_over(db: TestDatabase) {
        let nats = NatsServer::start_with(NatsConfig::default().oldest()).await;
        let shop = Shop::open_with(db, nats).await;
        let script = Script::new(|number, starts| match (number % 5, starts) {
            (0, 0) => Act::Fail,
            (1, _) => Act::Reject,
            _ => Act::Ship,
        });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping());
        for number in 1..=40 {
            if number == 21 {
                shop.nats.upgrade().await;
            }
            shop.order(number).await;
        }
        let expected = (1..=40).filter(|number| number % 5 != 1).collect::<Vec<i64>>();
        shop.await_effects(expected).await;
        shop.await_empty("outbox").await;
        shop.await_dead_letters(8).await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R6: a dead letter that cannot be stored is not lost: its message stays and comes again.
    async fn a_full_dead_letter_queue_keeps_its_messages(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let script = Script::new(|number, _| if number <= 3 { Act::Reject } else { Act::Ship });
        let consumer = shop.consumer(&script, shipping());
        shop.order(1).await;
        shop.await_dead_letters(1).await;
        let jetstream = shop.nats.nats().jetstream().await;
        let limit = async |max_messages| {
            let stream = jetstream.get_stream("OUTBOX_DLQ").await.unwrap();
            let mut config = stream.cached_info().config.clone();
            config.max_messages = max_messages;
            config.discard = DiscardPolicy::New;
            jetstream.update_stream(config).await.unwrap();
        };
        let full = count_messages(&jetstream, "OUTBOX_DLQ").await;
        limit(i64::try_from(full).unwrap()).await;
        for number in 2..=6 {
            shop.order(number).await;
        }
        shop.await_effects(4..=6).await;
        eventually("the rejected ones came again", DEADLINE, async || {
            script.starts(2) >= 2 && script.starts(3) >= 2
        })
        .await;
        assert_eq!(shop.dead_letters().await.len(), 1);
        limit(-1).await;
        let mut dead: Vec<_> = shop.await_dead_letters(3).await.into_iter().map(|letter| letter.reason).collect();
        dead.dedup();
        assert_eq!(dead, ["rejected"]);
        consumer.stop().await;
        relay.stop().await;
    }
}

async fn shop_on_a_cluster(
    kind: Database,
    servers: &[NatsServer],
    replicas: u8,
) -> (Bus<SeaOrm>, TestDatabase, JetStream) {
    let db = kind.fresh().await;
    db.connection
        .execute_unprepared("CREATE TABLE effects (number BIGINT NOT NULL)")
        .await
        .unwrap();
    db.connection
        .execute_unprepared("CREATE TABLE orders (number BIGINT NOT NULL)")
        .await
        .unwrap();
    let store = SeaOrm::new(db.connection.clone());
    store.migrate().await.unwrap();
    let urls = servers
        .iter()
        .map(|server| server.nats().url())
        .collect::<Vec<_>>()
        .join(",");
    let broker = eventually("a cluster that works", LONG, async || {
        JetStream::builder()
            .stream(StreamSpec::new("SHOP", ["shop.>"]).replicas(replicas))
            .dead_letter_replicas(replicas)
            .ack_timeout(Duration::from_secs(1))
            .connect(&urls)
            .await
    })
    .await;
    (Bus::new(store), db, broker)
}

async fn order(bus: &Bus<SeaOrm>, db: &TestDatabase, number: i64) {
    let tx = db.connection.begin().await.unwrap();
    Shop::write_order(bus, &tx, number, None).await.unwrap();
    tx.commit().await.unwrap();
}

async fn effects(db: &TestDatabase, expected: impl IntoIterator<Item = i64>) {
    let expected: Vec<i64> = expected.into_iter().collect();
    eventually("exactly the expected effects", LONG, async || {
        let sql = "SELECT number FROM effects ORDER BY number";
        let found = crate::shop::numbers(&db.connection, sql).await;
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// The leader goes, then the quorum; events wait meanwhile and are handled once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_quorum_loses_and_doubles_nothing() {
    let servers = nats_cluster().await;
    let (bus, db, broker) = shop_on_a_cluster(Database::Postgres, &servers, 3).await;
    let running = start(&bus, &broker);
    order(&bus, &db, 1).await;
    effects(&db, [1]).await;
    servers[0].kill();
    for number in 2..=5 {
        order(&bus, &db, number).await;
    }
    effects(&db, 1..=5).await;
    servers[1].kill();
    for number in 6..=10 {
        order(&bus, &db, number).await;
    }
    // The cluster stays like this for a while.
    tokio::time::sleep(Duration::from_secs(4)).await;
    effects(&db, 1..=5).await;
    servers[1].restart().await;
    servers[0].restart().await;
    effects(&db, 1..=10).await;
    // Each stream elects its own leader.
    let letters = bus.dead_letters(broker.clone());
    let dead = eventually("an answer of the dead-letter queue", LONG, async || {
        letters.list(&Default::default()).await
    })
    .await;
    assert!(dead.is_empty(), "{dead:?}");
    running.stop().await;
}

/// A stream whose only server is down does not answer; events of others go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_leader_stops_no_other() {
    let servers = nats_cluster().await;
    let (bus, db, broker) = shop_on_a_cluster(Database::Postgres, &servers, 3).await;
    let jetstream = servers[0].nats().jetstream().await;
    let config = Config {
        name: "NEWS".to_owned(),
        subjects: vec!["news.>".to_owned()],
        placement: Some(Placement {
            tags: vec!["place:2".to_owned()],
            ..Placement::default()
        }),
        ..Config::default()
    };
    eventually("a stream on the third server", LONG, async || {
        jetstream.create_stream(config.clone()).await
    })
    .await;
    let running = start(&bus, &broker);
    order(&bus, &db, 1).await;
    effects(&db, [1]).await;
    servers[2].kill();
    let unit = bus.begin().await.unwrap();
    for number in 1..=5 {
        unit.publish(&NewsWritten { number }).unwrap();
    }
    unit.commit().await.unwrap();
    for number in 2..=10 {
        order(&bus, &db, number).await;
    }
    effects(&db, 1..=10).await;
    servers[2].restart().await;
    eventually("the news in their stream", LONG, async || {
        let stream = jetstream
            .get_stream("NEWS")
            .await
            .map_err(|error| error.to_string())?;
        let messages = stream.cached_info().state.messages;
        if messages == 5 {
            Ok(())
        } else {
            Err(format!("{messages} messages"))
        }
    })
    .await;
    running.stop().await;
}
