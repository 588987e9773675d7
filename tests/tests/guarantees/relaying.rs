//! R2 and R8, the relay's side.

use std::time::{Duration, Instant};

use outbox_core::{
    Backoff, Bus, DeadLetterFilter, DispatchError, IntegrationEvent, MemoryBroker, Publish, Relay,
    RelayOptions, store::HeldReason,
};
use outbox_seaorm::{Clock, ManualClock, SeaOrm};
use outbox_tests::{
    Database, NatsConfig, NatsServer, SqliteFile, TestDatabase, eventually, on_every_database,
};
use sea_orm::{ConnectionTrait, TransactionTrait};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::server::{Server, on_servers};
use crate::shop::{Act, DEADLINE, OrderPlaced, Script, Shop, numbers, relay, shipping};

on_every_database! {
    /// R2: the broker is away when the events are written, and comes back.
    async fn events_wait_for_a_broker_that_is_away(db: TestDatabase) {
        let shop = Shop::open(db).await;
        // A failure that is counted makes its row dead at once.
        let relay = shop.relay_with(relay().max_attempts(1));
        shop.order(1).await;
        shop.await_published([1]).await;
        // Some are on their way when it goes.
        shop.nats.freeze();
        for number in 2..=20 {
            shop.order(number).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        shop.nats.kill();
        for number in 21..=50 {
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

    /// R8: the oldest rows, more than a batch of them, can never go: the others go, each once.
    async fn rows_that_always_fail_fill_no_batch(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let js = shop.nats.nats().jetstream().await;
        let mut config = js.get_stream("SHOP").await.unwrap().cached_info().config.clone();
        config.max_message_size = 2_000;
        // So that a row that is sent twice is stored twice.
        config.duplicate_window = Duration::from_millis(100);
        js.update_stream(config).await.unwrap();
        for number in 1..=25 {
            shop.order(number).await;
        }
        let blob = "79".repeat(5_000);
        let payload = match shop.db.kind {
            Database::Postgres => format!("decode('{blob}', 'hex')"),
            Database::MariaDb | Database::Sqlite => format!("X'{blob}'"),
        };
        shop.db.connection.execute_unprepared(&format!("UPDATE outbox SET payload = {payload}")).await.unwrap();
        for number in 26..=45 {
            shop.order(number).await;
        }
        let slow = Backoff::fixed(Duration::from_secs(1));
        let relay = shop.relay_with(relay().batch(10).max_attempts(3).backoff(slow));
        shop.await_published(26..=45).await;
        assert_eq!(shop.count("outbox_held WHERE reason = 'dead'").await, 0, "the good ones did not wait for the others");
        let dead = shop.await_dead_letters(25).await;
        assert!(dead.iter().all(|letter| letter.attempts == 3 && letter.error.contains("size")), "{dead:?}");
        shop.await_empty("outbox").await;
        relay.stop().await;
        assert_eq!(shop.stream().await.len(), 20);
    }

    /// R2: a second target has an outbox and a relay of its own, and its own held rows.
    async fn a_second_target_is_relayed_by_itself(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let store = SeaOrm::builder(shop.db.connection.clone()).target("analytics").build().unwrap();
        store.migrate().await.unwrap();
        let bus = Bus::new(store).target("analytics");
        let place = async |number: i64| {
            let tx = shop.db.connection.begin().await.unwrap();
            Shop::write_order(&bus, &tx, number, None).await.unwrap();
            tx.commit().await.unwrap();
        };
        for number in 1..=10 {
            place(number).await;
        }
        let sql = "UPDATE outbox_analytics SET headers = 'nonsense' WHERE seq = (SELECT s FROM (SELECT MIN(seq) AS s FROM outbox_analytics) AS m)";
        shop.db.connection.execute_unprepared(sql).await.unwrap();
        let stop = CancellationToken::new();
        let relay = Relay::new(bus.clone(), shop.broker.clone()).options(relay());
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { relay.run(stop).await }
        });
        let other = shop.relay();
        shop.await_published(2..=10).await;
        shop.await_empty("outbox_analytics").await;
        let dead = bus.held(&[HeldReason::Dead], 0, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert!(shop.dead_letters().await.is_empty(), "it is none of the first target's");
        shop.db.connection.execute_unprepared("UPDATE outbox_held SET headers = ''").await.unwrap();
        let letters = bus.dead_letters(shop.broker.clone());
        let letter = letters.list(&DeadLetterFilter::default()).await.unwrap();
        assert!(letters.replay(letter[0].id).await.unwrap());
        shop.await_published(1..=10).await;
        shop.await_empty("outbox_held").await;
        stop.cancel();
        running.await.unwrap();
        other.stop().await;
        assert_eq!(shop.stream().await.len(), 10);
    }

    /// R2: the database's clock and that of the hosts differ by far: what counts is the time that passes.
    async fn a_clock_that_disagrees_with_the_hosts_harms_nothing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let clock = ManualClock::new(ManualClock::default().now() - Duration::from_secs(600));
        let ticking = tokio::spawn({
            let clock = clock.clone();
            async move {
                let mut last = Instant::now();
                loop {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    clock.advance(last.elapsed());
                    last = Instant::now();
                }
            }
        });
        let open = || SeaOrm::builder(shop.db.connection.clone()).clock(Clock::Manual(clock.clone())).build().unwrap();
        let bus = Bus::new(open());
        let stop = CancellationToken::new();
        let relays: Vec<_> = [bus.clone(), Bus::new(open())]
            .into_iter()
            .map(|bus| {
                let options = relay().max_attempts(3).backoff(Backoff::fixed(Duration::from_millis(400)));
                let relay = Relay::new(bus, shop.broker.clone()).options(options);
                let stop = stop.clone();
                tokio::spawn(async move { relay.run(stop).await })
            })
            .collect();
        let js = shop.nats.nats().jetstream().await;
        let mut config = js.get_stream("SHOP").await.unwrap().cached_info().config.clone();
        config.max_message_size = 2_000;
        js.update_stream(config).await.unwrap();
        for (round, number) in [10, 20, 30].into_iter().enumerate() {
            // Ten minutes behind, an hour ahead, and three days ahead.
            clock.advance(Duration::from_secs([0, 4_200, 255_600][round]));
            let began = Instant::now();
            let tx = shop.db.connection.begin().await.unwrap();
            Shop::write_order(&bus, &tx, number, None).await.unwrap();
            let large = Publish::new().header("large", "x".repeat(3_000));
            bus.publish_with(&tx, &OrderPlaced { number: number + 1, customer: None }, large).await.unwrap();
            let delayed = Publish::new().delay(Duration::from_secs(1));
            bus.publish_with(&tx, &OrderPlaced { number: number + 2, customer: None }, delayed).await.unwrap();
            tx.commit().await.unwrap();
            bus.wake();
            eventually("the fresh event", DEADLINE, async || shop.published().await.contains(&number)).await;
            eventually("the delayed event", DEADLINE, async || shop.published().await.contains(&(number + 2))).await;
            assert!(began.elapsed() >= Duration::from_secs(1), "it was sent early");
            eventually("the row that fails", DEADLINE, async || {
                shop.count("outbox_held WHERE reason = 'dead' AND attempts = 3").await == round as i64 + 1
            })
            .await;
            assert!(began.elapsed() >= Duration::from_millis(400), "two delays of 200 ms at least");
            assert!(began.elapsed() < Duration::from_secs(20), "it waited for a clock");
        }
        stop.cancel();
        for relay in relays {
            relay.await.unwrap();
        }
        ticking.abort();
        assert_eq!(shop.stream().await.len(), 6);
    }

    /// R5 and R8: the relay's connections are cut and its table is missing for a while; it goes on by
    /// itself, and says what is wrong meanwhile.
    async fn a_relay_survives_what_befalls_its_database(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let runtime = shop.bus.runtime(shop.broker.clone()).relay(relay());
        let health = runtime.health();
        let stop = CancellationToken::new();
        let running = tokio::spawn(runtime.run(stop.clone()));
        shop.order(1).await;
        shop.await_published([1]).await;

        let others = match shop.db.kind {
            Database::Postgres => Some(
                "SELECT COUNT(pg_terminate_backend(pid)) AS number FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            ),
            Database::MariaDb => Some(
                "SELECT id AS number FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
            ),
            Database::Sqlite => None,
        };
        if let Some(others) = others {
            let one = shop.db.connect(1).await;
            let found = numbers(&one, others).await;
            if shop.db.kind == Database::MariaDb {
                for id in found {
                    // It may have ended meanwhile.
                    let _ = one.execute_unprepared(&format!("KILL {id}")).await;
                }
            }
            eventually("the test's own connections work again", DEADLINE, async || {
                shop.db.connection.execute_unprepared("SELECT 1").await
            })
            .await;
            shop.order(2).await;
            shop.await_published([1, 2]).await;
        } else {
            shop.order(2).await;
        }

        shop.order(3).await;
        shop.await_published([1, 2, 3]).await;
        let rename = async |from: &str, to: &str| {
            let sql = format!("ALTER TABLE {from} RENAME TO {to}");
            eventually("the table renamed", DEADLINE, async || shop.db.connection.execute_unprepared(&sql).await).await;
        };
        rename("outbox", "elsewhere").await;
        eventually("a report that names the database", DEADLINE, async || {
            let report = health.report();
            let seen = !report.ready && report.problems.iter().any(|problem| problem.contains("database"));
            if seen { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        rename("elsewhere", "outbox").await;
        shop.order(4).await;
        shop.await_published(1..=4).await;
        eventually("a report without problems", DEADLINE, async || {
            let report = health.report();
            if report.ready && report.problems.is_empty() { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        stop.cancel();
        running.await.unwrap().unwrap();
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
        // And none of their waiting counts as a failure: the first would make a row dead.
        let relay = shop.relay_with(small_hands().max_attempts(1));
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

/// R2 and R4: publisher, relay, consumer and an operator over one connection to SQLite, with failures.
#[tokio::test(flavor = "multi_thread")]
async fn everything_works_over_one_sqlite_connection() {
    let file = SqliteFile::new();
    for url in [file.url(), "sqlite::memory:".to_owned()] {
        let mut options = sea_orm::ConnectOptions::new(url);
        options.max_connections(1);
        let db = sea_orm::Database::connect(options).await.unwrap();
        for table in ["orders", "effects"] {
            let sql = format!("CREATE TABLE {table} (number BIGINT NOT NULL)");
            db.execute_unprepared(&sql).await.unwrap();
        }
        let store = SeaOrm::new(db.clone());
        store.migrate().await.unwrap();
        let bus = Bus::new(store);
        let broker = MemoryBroker::new();
        let script = Script::new(|number, before| match (number % 10, before) {
            (7, _) => Act::Reject,
            (3, 0) => Act::Fail,
            (5, 0) => Act::FailAfterTheEffect,
            _ => Act::Ship,
        });
        let stop = CancellationToken::new();
        let runtime = bus
            .runtime(broker.clone())
            .state(script)
            .relay(relay())
            .consumer(shipping());
        let running = tokio::spawn(runtime.run(stop.clone()));
        for number in 1..=100 {
            let tx = db.begin().await.unwrap();
            Shop::write_order(&bus, &tx, number, None).await.unwrap();
            tx.commit().await.unwrap();
        }
        let effects = "SELECT number FROM effects ORDER BY number";
        let expected: Vec<i64> = (1..=100).filter(|number| number % 10 != 7).collect();
        eventually("all effects", DEADLINE, async || {
            let found = numbers(&db, effects).await;
            if found == expected {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
        let letters = bus.dead_letters(broker);
        eventually("all dead letters", DEADLINE, async || {
            letters
                .list(&DeadLetterFilter::default())
                .await
                .unwrap()
                .len()
                == 10
        })
        .await;
        eventually("an empty outbox", DEADLINE, async || {
            bus.backlog().await.unwrap().waiting == 0
        })
        .await;
        stop.cancel();
        assert_eq!(running.await.unwrap().unwrap().abandoned, 0);
    }
}

/// R8: a backup or a forgotten session keeps dead row versions, and a relay with a backlog does not pass
/// over all of them with each read. On PostgreSQL, which has a floor.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_behind_dead_rows_is_read_once() {
    const DEAD: i64 = 20_000;
    const BACKLOG: i64 = 3_000;
    const BATCH: i64 = 50;
    // Of its own: whoever writes in another database of a server delays the proof of a floor.
    let (_server, db) = Server::start(Database::Postgres).await;
    let shop = Shop::open(db).await;
    let db = &shop.db.connection;
    shop.order(1).await;
    let columns = "event_type, event_version, subject, ordering_key, headers, payload, occurred_at";
    let copies = |count: i64| {
        format!(
            "INSERT INTO outbox (message_id, {columns}) SELECT gen_random_uuid(), {columns} \
             FROM (SELECT * FROM outbox LIMIT 1) AS first, generate_series(1, {count})"
        )
    };
    db.execute_unprepared(&copies(DEAD)).await.unwrap();
    let level = sea_orm::IsolationLevel::RepeatableRead;
    let snapshot = db.begin_with_config(Some(level), None).await.unwrap();
    let see = "SELECT COUNT(*) FROM outbox";
    snapshot.execute_unprepared(see).await.unwrap();
    db.execute_unprepared(&copies(BACKLOG)).await.unwrap();
    let dead = format!("DELETE FROM outbox WHERE seq <= {}", DEAD + 1);
    db.execute_unprepared(&dead).await.unwrap();
    db.execute_unprepared("ANALYZE outbox").await.unwrap();

    // A server's counts of a session are complete when it has ended.
    let store = SeaOrm::new(db.clone());
    // One after the other, and only what is read next is in hand: reads are spread over the drain.
    let options = relay()
        .batch(BATCH as u32)
        .in_hand(2 * BATCH as usize)
        .window(1);
    let relay = Relay::new(Bus::new(store), shop.broker.clone()).options(options);
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { relay.run(stop).await }
    });
    shop.await_messages(BACKLOG).await;
    stop.cancel();
    running.await.unwrap();
    let settled = "SELECT n_tup_del AS number FROM pg_stat_user_tables WHERE relname = 'outbox'";
    eventually("the sessions' counts", DEADLINE, async || {
        numbers(db, settled).await[0] > DEAD + BACKLOG
    })
    .await;
    let read = "SELECT SUM(idx_tup_read)::bigint AS number FROM pg_stat_user_indexes WHERE relname = 'outbox'";
    let read = numbers(db, read).await[0];
    assert!(
        read < DEAD * BACKLOG / BATCH / 2,
        "{read} entries were read, {DEAD} by each read from the beginning"
    );
    assert_eq!(shop.count("outbox").await, 0);
    snapshot.rollback().await.unwrap();
}

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.notes")]
struct Noted {
    text: String,
}

on_servers! {
    /// R8: neither what the relay itself has deleted, while something keeps its remains: on PostgreSQL a
    /// transaction that has written and stays open, beside which no floor can be proved; on MariaDB, which
    /// has no floor, an old snapshot.
    async fn a_drain_does_not_pass_over_its_own_dead_rows(kind: Database) {
        const ROWS: i64 = 12_000;
        const BATCH: i64 = 20;
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let db = &shop.db.connection;
        let level = sea_orm::IsolationLevel::RepeatableRead;
        let old = db.begin_with_config(Some(level), None).await.unwrap();
        old.execute_unprepared("INSERT INTO orders VALUES (0)").await.unwrap();
        old.execute_unprepared("SELECT COUNT(*) FROM outbox").await.unwrap();
        // So long that only a few fit on a page.
        let notes = vec![Noted { text: "n".repeat(3_000) }; 1_000];
        for _ in 0..ROWS / 1_000 {
            let tx = db.begin().await.unwrap();
            shop.bus.publish_all(&tx, &notes).await.unwrap();
            tx.commit().await.unwrap();
        }
        // A session's counts are complete when it has ended.
        let read = match kind {
            Database::Postgres => "SELECT idx_tup_read::bigint AS number FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_pkey'",
            _ => "SELECT CAST(variable_value AS SIGNED) AS number FROM information_schema.global_status \
                  WHERE variable_name = 'Innodb_buffer_pool_read_requests'",
        };
        let before = numbers(db, read).await[0];
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let options = relay().batch(BATCH as u32).in_hand(10 * BATCH as usize);
            let relay = Relay::new(Bus::new(SeaOrm::new(db.clone())), shop.broker.clone()).options(options);
            let stop = stop.clone();
            async move { relay.run(stop).await }
        });
        // Whoever counted the table's rows would read what is dead, too.
        shop.await_messages(ROWS).await;
        stop.cancel();
        running.await.unwrap();
        if kind == Database::Postgres {
            let settled = "SELECT n_tup_del AS number FROM pg_stat_user_tables WHERE relname = 'outbox'";
            eventually("the sessions' counts", DEADLINE, async || numbers(db, settled).await[0] >= ROWS).await;
        }
        let read = numbers(db, read).await[0] - before;
        // 430,000 index entries, and 120,000 pages; without passing over them 3,630,000 and 1,020,000.
        let most = if kind == Database::Postgres { 1_200_000 } else { 500_000 };
        assert!((ROWS..most).contains(&read), "{read} index entries or pages were read");
        assert_eq!(shop.count("outbox").await, 0);
        old.rollback().await.unwrap();
    }

    /// R2: a table that is emptied with its sequence hands out numbers again that are gone, while the relay's
    /// connections live on.
    async fn numbers_that_come_again_hide_nothing(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let tx = shop.db.connection.begin().await.unwrap();
        let notes = vec![Noted { text: "n".to_owned() }; 6_000];
        shop.bus.publish_all(&tx, &notes).await.unwrap();
        tx.commit().await.unwrap();
        shop.await_empty("outbox").await;
        let empty = match kind {
            Database::Postgres => "TRUNCATE outbox RESTART IDENTITY",
            _ => "TRUNCATE TABLE outbox",
        };
        shop.db.connection.execute_unprepared(empty).await.unwrap();
        for number in 1..=10 {
            shop.order(number).await;
        }
        shop.await_published(1..=10).await;
        relay.stop().await;
    }

    /// R7: a number of a transaction that is still open lies in the middle of many that are gone.
    async fn an_open_number_among_deleted_ones_keeps_its_turn(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let publish = async |count| {
            let tx = shop.db.connection.begin().await.unwrap();
            let notes = vec![Noted { text: "n".to_owned() }; count];
            shop.bus.publish_all(&tx, &notes).await.unwrap();
            tx.commit().await.unwrap();
        };
        publish(6_000).await;
        let late = shop.db.connection.begin().await.unwrap();
        shop.order_in(&late, 1, Some("late")).await;
        publish(6_000).await;
        shop.await_empty("outbox").await;
        late.commit().await.unwrap();
        shop.order_for(2, Some("late")).await;
        shop.await_empty("outbox").await;
        assert_eq!(shop.published().await, [1, 2]);
        relay.stop().await;
    }
}

fn small_hands() -> RelayOptions {
    relay().batch(10).in_hand(30)
}
