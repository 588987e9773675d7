//! What JetStream confirmed and then lost is found in the archive, and published again.

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::{
    message::PublishMessage,
    stream::{Config, DiscardPolicy},
};
use outbox_core::{AuditRange, AuditReport, Bus, MemoryBroker, Relay, RelayOptions, Retention};
use outbox_seaorm::SeaOrm;
use outbox_tests::{
    Database, TestDatabase, eventually,
    history::{KEEP, KILL_AT, LISTING, PLACED, Settings, World},
    on_every_database, read_stream,
};
use sea_orm::{ConnectionTrait, Statement, TransactionTrait};
use uuid::Uuid;

use crate::shop::{DEADLINE, OrderPlaced, Running, Script, Shop, numbers, relay, shipping};

const HOUR: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(60);
const NODE: &str = env!("CARGO_BIN_EXE_outbox-history-node");

fn keeping() -> RelayOptions {
    relay().retention(Retention::Keep(HOUR))
}

/// A shop whose stream forgets ids at once, with a relay that keeps what it publishes.
async fn open(db: TestDatabase) -> (Shop, Running) {
    let shop = Shop::open(db).await;
    configure(&shop, |stream| {
        stream.duplicate_window = Duration::from_millis(100)
    })
    .await;
    // A lease that is lost on a busy machine would publish rows again, which this stream does not notice.
    let relay = shop.relay_with(keeping().lease(LONG));
    (shop, relay)
}

async fn configure(shop: &Shop, change: impl FnOnce(&mut Config)) {
    let js = shop.nats.nats().jetstream().await;
    let mut config = js
        .get_stream("SHOP")
        .await
        .unwrap()
        .cached_info()
        .config
        .clone();
    change(&mut config);
    js.update_stream(config).await.unwrap();
}

/// Places orders and waits until all are published and out of the outbox.
async fn publish(shop: &Shop, orders: impl Iterator<Item = i64>) {
    for number in orders {
        shop.order(number).await;
    }
    shop.await_empty("outbox").await;
}

async fn check(shop: &Shop) -> AuditReport {
    shop.bus
        .audit(shop.broker.clone())
        .check(&AuditRange::default())
        .await
        .unwrap()
}

async fn republish(shop: &Shop) -> AuditReport {
    shop.bus
        .audit(shop.broker.clone())
        .republish(&AuditRange::default())
        .await
        .unwrap()
}

/// Checked, present, expired, missing, republished.
fn counts(report: &AuditReport) -> [u64; 5] {
    [
        report.checked,
        report.present,
        report.expired,
        report.missing,
        report.republished,
    ]
}

/// The archive: id, stream and sequence of each message.
async fn archive(shop: &Shop) -> Vec<(Uuid, String, i64)> {
    let db = &shop.db.connection;
    let sql = "SELECT message_id, stream, stream_seq FROM outbox_archive ORDER BY stream_seq";
    let rows = db
        .query_all_raw(Statement::from_string(db.get_database_backend(), sql))
        .await
        .unwrap();
    rows.iter()
        .map(|row| {
            let stream = row.try_get_by_index::<String>(1).unwrap();
            (
                row.try_get_by_index(0).unwrap(),
                stream,
                row.try_get_by_index(2).unwrap(),
            )
        })
        .collect()
}

/// The ids in the stream with their sequences.
async fn stored(shop: &Shop) -> Vec<(Uuid, i64)> {
    let messages = shop.stream().await;
    let id =
        |message: &outbox_tests::StoredMessage| message.header("ce-id").unwrap().parse().unwrap();
    messages
        .iter()
        .map(|message| (id(message), i64::try_from(message.sequence).unwrap()))
        .collect()
}

/// Takes the messages with these sequences out of the stream.
async fn delete(shop: &Shop, sequences: impl IntoIterator<Item = u64>) {
    let js = shop.nats.nats().jetstream().await;
    let stream = js.get_stream("SHOP").await.unwrap();
    for sequence in sequences {
        stream.delete_message(sequence).await.unwrap();
    }
}

/// The same, and their ids: they can be published again.
async fn lose(shop: &Shop, sequences: impl IntoIterator<Item = u64>) {
    delete(shop, sequences).await;
    await_forgotten(shop).await;
}

/// Waits until the stream knows no id any more that it knows now. It forgets them in their order, and on a
/// busy machine later than its window says.
async fn await_forgotten(shop: &Shop) {
    let js = shop.nats.nats().jetstream().await;
    let stream = js.get_stream("SHOP").await.unwrap();
    let id = Uuid::new_v4().to_string();
    let probe = async || {
        let message = PublishMessage::build().message_id(&id);
        let sent = js.send_publish("shop.probe", message).await.unwrap();
        sent.await.unwrap()
    };
    let first = probe().await.sequence;
    let second = eventually("the ids are forgotten", DEADLINE, async || {
        let ack = probe().await;
        if ack.duplicate {
            Err("it is known")
        } else {
            Ok(ack.sequence)
        }
    })
    .await;
    for sequence in [first, second] {
        stream.delete_message(sequence).await.unwrap();
    }
}

on_every_database! {
    /// Each published row is in the archive with the place where JetStream stored it, and goes after
    /// its time by itself.
    async fn what_was_published_is_kept_for_its_time(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay_with(relay().retention(Retention::Keep(Duration::from_secs(3))));
        publish(&shop, 1..=50).await;
        let kept: Vec<_> = archive(&shop).await.into_iter().map(|(id, stream, sequence)| {
            assert_eq!(stream, "SHOP");
            (id, sequence)
        }).collect();
        assert_eq!(kept, stored(&shop).await);
        assert_eq!(counts(&check(&shop).await), [50, 50, 0, 0, 0]);
        shop.await_empty("outbox_archive").await;
        assert_eq!(counts(&check(&shop).await), [0; 5]);
        assert_eq!(shop.stream().await.len(), 50);
        relay.stop().await;
    }

    async fn nothing_is_kept_by_default(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        publish(&shop, 1..=20).await;
        relay.stop().await;
        assert_eq!(shop.count("outbox_archive").await, 0);
        assert_eq!(counts(&republish(&shop).await), [0; 5]);
        assert_eq!(shop.count("outbox").await, 0);
    }

    /// What was held before it could go is kept as well.
    async fn held_rows_are_kept_when_they_are_published(db: TestDatabase) {
        let shop = Shop::open(db).await;
        configure(&shop, |stream| stream.max_message_size = 10).await;
        let relay = shop.relay_with(keeping());
        for number in 1..=5 {
            shop.order_for(number, Some("ann")).await;
        }
        eventually("they are held", DEADLINE, async || shop.count("outbox_held").await == 5).await;
        configure(&shop, |stream| stream.max_message_size = -1).await;
        shop.await_published(1..=5).await;
        shop.await_empty("outbox_held").await;
        let kept: Vec<_> = archive(&shop).await.into_iter().map(|(id, _, sequence)| (id, sequence)).collect();
        assert_eq!(kept, stored(&shop).await);
        assert_eq!(counts(&check(&shop).await), [5, 5, 0, 0, 0]);
        relay.stop().await;
    }

    /// What was taken out of the stream is found, no more and no less, and published again under its
    /// old id. Each order has its effect once, whether it had been handled before the loss or not.
    async fn exactly_what_is_missing_is_found_and_has_its_effect_once(db: TestDatabase) {
        let (shop, relay) = open(db).await;
        publish(&shop, 1..=600).await;
        let script = Script::always_ship();
        let consumer = shop.consumer(&script, shipping());
        shop.await_effects(1..=600).await;
        consumer.stop().await;
        // Their shipments, 600 messages more.
        shop.await_empty("outbox").await;
        publish(&shop, 601..=620).await;
        let all = stored(&shop).await;
        assert_eq!(all.len(), 1220);
        let lost: Vec<u64> = vec![1, 2, 300, 599, 900, 1201, 1219, 1220];
        lose(&shop, lost.clone()).await;
        let found = check(&shop).await;
        assert_eq!(counts(&found), [1220, 1212, 0, 8, 0]);
        // The archive is in the order of the rows, which need not be that of the stream.
        let expected: BTreeSet<_> =
            lost.iter().map(|sequence| (*sequence, all[usize::try_from(*sequence).unwrap() - 1].0)).collect();
        assert_eq!(found.examples.iter().map(|message| (message.sequence, message.message_id)).collect::<BTreeSet<_>>(), expected);
        assert_eq!(counts(&check(&shop).await), [1220, 1212, 0, 8, 0], "looking changes nothing");
        assert_eq!(counts(&republish(&shop).await), [1220, 1212, 0, 8, 8]);
        shop.await_empty("outbox").await;
        assert_eq!(counts(&republish(&shop).await), [1220, 1220, 0, 0, 0]);
        let again = stored(&shop).await;
        assert_eq!(again.len(), 1220);
        assert_eq!(again.iter().map(|message| message.0).collect::<BTreeSet<_>>(), all.iter().map(|message| message.0).collect());
        assert_eq!(shop.published().await.len(), 620);
        let consumer = shop.consumer(&script, shipping());
        shop.await_effects(1..=620).await;
        let js = shop.nats.nats().jetstream().await;
        eventually("all is settled", DEADLINE, async || {
            let info = js.get_stream("SHOP").await.unwrap().consumer_info("shipping").await.unwrap();
            info.num_pending == 0 && info.num_ack_pending == 0
        }).await;
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(shop.effects().await, (1..=620).collect::<Vec<_>>());
        assert!((1..=620).all(|number| script.starts(number) == 1));
        assert!(shop.dead_letters().await.is_empty());
    }

    /// Messages at both ends of the range are left alone.
    async fn only_the_range_is_looked_at(db: TestDatabase) {
        let (shop, relay) = open(db).await;
        publish(&shop, 1..=3).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        publish(&shop, 4..=5).await;
        delete(&shop, 1..=5).await;
        let audit = shop.bus.audit(shop.broker.clone());
        let recent = AuditRange { oldest: Some(Duration::from_millis(2500)), ..AuditRange::default() };
        assert_eq!(counts(&audit.check(&recent).await.unwrap()), [2, 0, 0, 2, 0]);
        let older = AuditRange { newest: Some(Duration::from_millis(2500)), ..AuditRange::default() };
        assert_eq!(counts(&audit.republish(&older).await.unwrap()), [3, 0, 0, 3, 3]);
        shop.await_published(1..=3).await;
        relay.stop().await;
    }

    /// What a stream drops by its own settings is expired; what is purged by hand is missing.
    async fn expired_is_not_missing(db: TestDatabase) {
        let (shop, relay) = open(db).await;
        publish(&shop, 1..=20).await;
        let js = shop.nats.nats().jetstream().await;
        js.get_stream("SHOP").await.unwrap().purge().sequence(4).await.unwrap();
        assert_eq!(counts(&check(&shop).await), [20, 17, 0, 3, 0], "nothing but a purge explains it");
        // A stream that ages its messages out, but not so young ones.
        configure(&shop, |stream| stream.max_age = HOUR).await;
        assert_eq!(counts(&check(&shop).await), [20, 17, 0, 3, 0], "they were too young");
        configure(&shop, |stream| stream.max_age = Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(counts(&check(&shop).await), [20, 0, 20, 0, 0]);
        assert_eq!(counts(&republish(&shop).await), [20, 0, 20, 0, 0]);
        // A stream that drops its oldest message when it is full.
        configure(&shop, |stream| {
            stream.max_age = Duration::ZERO;
            stream.max_messages = 10;
            stream.discard = DiscardPolicy::Old;
        }).await;
        publish(&shop, 21..=40).await;
        assert_eq!(counts(&check(&shop).await), [40, 10, 30, 0, 0]);
        delete(&shop, [35]).await;
        assert_eq!(counts(&check(&shop).await), [40, 9, 30, 1, 0], "not the oldest");
        relay.stop().await;
    }

    /// The server comes back with what it had synced. What it had confirmed after that is found, though
    /// its numbers are taken by others by then, and is stored again at once.
    async fn what_a_power_cut_took_is_published_again(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay_with(keeping());
        publish(&shop, 1..=30).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        shop.nats.save();
        publish(&shop, 31..=50).await;
        shop.await_published(1..=50).await;
        shop.nats.lose_since_saved().await;
        assert_eq!(shop.published().await, (1..=30).collect::<Vec<_>>());
        assert_eq!(shop.count("outbox").await, 0, "without an archive they would be gone");
        publish(&shop, 51..=55).await;
        let found = check(&shop).await;
        assert_eq!(counts(&found), [55, 35, 0, 20, 0]);
        assert_eq!(found.examples.iter().map(|message| message.sequence).collect::<BTreeSet<_>>(), (31..=50).collect());
        assert_eq!(counts(&republish(&shop).await), [55, 35, 0, 20, 20]);
        // The stream's duplicate window is two minutes, and it has forgotten with the messages.
        shop.await_published(1..=55).await;
        shop.await_empty("outbox").await;
        assert_eq!(counts(&check(&shop).await), [55, 55, 0, 0, 0]);
        assert_eq!(shop.stream().await.len(), 55);
        relay.stop().await;
    }

    /// All is lost, and the stream is made anew.
    async fn a_stream_that_was_made_anew_has_other_messages(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay_with(keeping());
        publish(&shop, 1..=10).await;
        shop.nats.wipe().await;
        assert_eq!(counts(&check(&shop).await)[3], 10, "there is no stream");
        // The relay's publisher makes it anew.
        for number in 11..=15 {
            shop.order(number).await;
        }
        let jetstream = shop.nats.nats().jetstream().await;
        eventually("a new stream", DEADLINE, async || jetstream.get_stream("SHOP").await.is_ok()).await;
        shop.await_published(11..=15).await;
        shop.await_empty("outbox").await;
        assert_eq!(counts(&check(&shop).await), [15, 5, 0, 10, 0]);
        assert_eq!(counts(&republish(&shop).await), [15, 5, 0, 10, 10]);
        shop.await_published(1..=15).await;
        shop.await_empty("outbox").await;
        assert_eq!(counts(&check(&shop).await), [15, 15, 0, 0, 0]);
        relay.stop().await;
    }

    /// A server that has deleted a message, and not lost it with its files, still knows its id: it
    /// answers the second publication as a duplicate and stores nothing. The audit does not believe it.
    async fn a_duplicate_that_is_not_stored_stays_missing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        configure(&shop, |stream| stream.duplicate_window = Duration::from_secs(8)).await;
        let relay = shop.relay_with(keeping());
        publish(&shop, 1..=3).await;
        delete(&shop, [2]).await;
        assert_eq!(counts(&republish(&shop).await), [3, 2, 0, 1, 1]);
        shop.await_empty("outbox").await;
        assert_eq!(shop.published().await, [1, 3], "it was confirmed and is not there");
        assert_eq!(counts(&check(&shop).await), [3, 2, 0, 1, 0]);
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(counts(&republish(&shop).await), [3, 2, 0, 1, 1]);
        shop.await_published(1..=3).await;
        shop.await_empty("outbox").await;
        assert_eq!(counts(&check(&shop).await), [3, 3, 0, 0, 0]);
        relay.stop().await;
    }

    /// A broker that does not answer has neither lost nor kept anything.
    async fn a_broker_that_is_away_is_an_error(db: TestDatabase) {
        let (shop, relay) = open(db).await;
        publish(&shop, 1..=5).await;
        shop.nats.kill();
        let audit = shop.bus.audit(shop.broker.clone());
        let error = audit.republish(&AuditRange::default()).await.expect_err("nobody answers");
        assert!(format!("{error:?}").contains("SHOP"), "{error:?}");
        assert_eq!((shop.count("outbox").await, shop.count("outbox_archive").await), (0, 5));
        shop.nats.restart().await;
        eventually("the connection is back", DEADLINE, async || shop.broker.is_connected()).await;
        assert_eq!(counts(&check(&shop).await), [5, 5, 0, 0, 0]);
        relay.stop().await;
    }

    /// Five operators at once put each message back once.
    async fn many_at_a_time_republish_each_once(db: TestDatabase) {
        let (shop, relay) = open(db).await;
        publish(&shop, 1..=100).await;
        relay.stop().await;
        lose(&shop, 1..=100).await;
        let tasks: Vec<_> = (0..5).map(|_| {
            let audit = shop.bus.audit(shop.broker.clone());
            tokio::spawn(async move { audit.republish(&AuditRange::default()).await })
        }).collect();
        let mut republished = 0;
        for task in tasks {
            republished += task.await.unwrap().unwrap().republished;
        }
        assert_eq!((republished, shop.count("outbox").await, shop.count("outbox_archive").await), (100, 100, 0));
        let relay = shop.relay_with(keeping());
        shop.await_published(1..=100).await;
        shop.await_empty("outbox").await;
        assert_eq!(counts(&check(&shop).await), [100, 100, 0, 0, 0]);
        relay.stop().await;
    }

    /// A relay that deletes and one that keeps take turns on one outbox.
    async fn relays_with_and_without_archive_take_turns(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let mut expected = 0;
        for round in 0..4 {
            let keeps = round % 2 == 0;
            let relay = shop.relay_with(if keeps { keeping() } else { relay() });
            publish(&shop, round * 10 + 1..=round * 10 + 10).await;
            expected += if keeps { 10 } else { 0 };
            assert_eq!(shop.count("outbox_archive").await, expected);
            relay.stop().await;
        }
        assert_eq!(shop.stream().await.len(), 40, "each once");
        assert_eq!(counts(&check(&shop).await), [20, 20, 0, 0, 0]);
    }

    /// The same without a runtime, and with the broker in the process: its successor has lost all.
    async fn a_relay_without_a_runtime_keeps_and_prunes(db: TestDatabase) {
        let store = SeaOrm::new(db.connection.clone());
        store.migrate().await.unwrap();
        let bus = Bus::new(store);
        let order = async |number| {
            let tx = db.connection.begin().await.unwrap();
            bus.publish(&tx, &OrderPlaced { number, customer: None }).await.unwrap();
            tx.commit().await.unwrap();
        };
        let dispatch = async |broker: &MemoryBroker, keep| {
            let options = RelayOptions::default().retention(Retention::Keep(keep));
            Relay::new(bus.clone(), broker.clone()).options(options).dispatch_batch().await.unwrap().published
        };
        let first = MemoryBroker::new();
        for number in 1..=10 {
            order(number).await;
        }
        assert_eq!(dispatch(&first, HOUR).await, 10);
        let all = AuditRange::default();
        assert_eq!(counts(&bus.audit(first.clone()).check(&all).await.unwrap()), [10, 10, 0, 0, 0]);
        let second = MemoryBroker::new();
        order(11).await;
        assert_eq!(dispatch(&second, HOUR).await, 1);
        assert_eq!(counts(&bus.audit(second.clone()).republish(&all).await.unwrap()), [11, 1, 0, 10, 10]);
        assert_eq!(dispatch(&second, HOUR).await, 10);
        assert_eq!(second.messages().len(), 11);
        assert_eq!(counts(&bus.audit(second.clone()).check(&all).await.unwrap()), [11, 11, 0, 0, 0]);
        second.set_offline(true);
        bus.audit(second.clone()).check(&all).await.expect_err("it is away");
        second.set_offline(false);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(dispatch(&second, Duration::from_millis(1)).await, 0);
        assert_eq!(numbers(&db.connection, "SELECT COUNT(*) AS number FROM outbox_archive").await, [0]);
    }
}

/// A node dies at every place where it moves rows to the archive: in the end the archive has each
/// published row once, and the shop is as it should be.
async fn die_while_archiving(kind: Database) {
    let world = async || {
        let settings = Settings {
            program: NODE.into(),
            seed: 1,
            slots: 1,
            orders: Some(12),
            pace: 0,
        };
        World::open(settings, kind.fresh().await).await
    };
    const ROLES: &str = "orders,relay,consumer,operator";
    let places: BTreeSet<String> = {
        let world = world().await;
        let node = world.node(0, ROLES, &[(KEEP, "1"), (LISTING, "1")]);
        node.line_with(PLACED, LONG).await;
        let findings = world.come_to_rest(true).await;
        assert!(findings.violations.is_empty(), "{findings}");
        // The last place is passed after what it has done can be seen.
        node.terminate();
        node.exit(LONG).await;
        let lines = node.lines();
        let places = lines
            .iter()
            .filter_map(|line| line.strip_prefix("place: archive "));
        places.map(str::to_owned).collect()
    };
    for wanted in ["published rows: ", "published held rows: "] {
        let found = places
            .iter()
            .filter(|place| place.starts_with(wanted))
            .count();
        let expected = if kind == Database::Postgres { 1 } else { 3 };
        assert_eq!(found, expected, "{places:?}");
    }
    for place in places {
        let world = world().await;
        let here = format!("1, archive {place}");
        let first = world.node(0, ROLES, &[(KEEP, "1"), (KILL_AT, &here)]);
        first.line_with("reached: ", LONG).await;
        let second = world.node(0, ROLES, &[(KEEP, "1")]);
        second.line_with(PLACED, LONG).await;
        let findings = world.come_to_rest(true).await;
        assert!(findings.violations.is_empty(), "after {here}: {findings}");
        let js = world.nats.nats().jetstream().await;
        let mut stored = BTreeSet::new();
        for stream in ["SHOP", "REPORTS"] {
            let messages = read_stream(&js, stream).await;
            stored.extend(
                messages
                    .iter()
                    .map(|message| message.header("ce-id").unwrap().parse::<Uuid>().unwrap()),
            );
        }
        let db = &world.db.connection;
        let sql = "SELECT seq, message_id FROM outbox_archive";
        let rows = db
            .query_all_raw(Statement::from_string(db.get_database_backend(), sql))
            .await
            .unwrap();
        let kept = rows
            .iter()
            .map(|row| row.try_get_by_index::<Uuid>(1).unwrap());
        assert_eq!(kept.collect::<BTreeSet<_>>(), stored, "after {here}");
        // One id can be published with two rows, but no row is kept twice.
        let numbers = rows
            .iter()
            .map(|row| row.try_get_by_index::<i64>(0).unwrap());
        assert_eq!(
            numbers.collect::<BTreeSet<_>>().len(),
            rows.len(),
            "after {here}"
        );
    }
}

mod a_process_that_dies_while_it_archives_loses_and_doubles_nothing {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres() {
        die_while_archiving(Database::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mariadb() {
        die_while_archiving(Database::MariaDb).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite() {
        die_while_archiving(Database::Sqlite).await;
    }
}
