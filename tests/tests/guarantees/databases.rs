//! R1, R2, R4 and R5 whatever befalls the database.

use std::{sync::Arc, time::Duration};

use outbox_core::{Consumer, HandlerError, IntegrationEvent, State, handler};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, TestDatabase, connect, eventually, on_every_database};
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, TransactionTrait};
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

use crate::{
    server::{Server, end_session, on_servers},
    shop::{DEADLINE, Script, Shop, numbers, shipping},
};

async fn run(db: &impl ConnectionTrait, sql: &str) {
    db.execute_unprepared(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The id of a connection.
async fn connection_id(db: &impl ConnectionTrait) -> i64 {
    let sql = match db.get_database_backend() {
        sea_orm::DbBackend::Postgres => "SELECT pg_backend_pid()::bigint AS number",
        _ => "SELECT CAST(CONNECTION_ID() AS SIGNED) AS number",
    };
    let statement = sea_orm::Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get("", "number").unwrap()
}

/// Ends every connection to the database but the caller's.
async fn kill_all_others(db: &DatabaseConnection) {
    let sql = match db.get_database_backend() {
        sea_orm::DbBackend::Postgres => {
            "SELECT pid::bigint AS number FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()"
        }
        sea_orm::DbBackend::MySql => {
            "SELECT CAST(id AS SIGNED) AS number FROM information_schema.processlist \
             WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        }
        _ => return,
    };
    for connection in numbers(db, sql).await {
        end_session(db, connection).await;
    }
}

/// How often the consumer's messages have been delivered.
async fn deliveries(shop: &Shop) -> u64 {
    let jetstream = shop.nats.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.unwrap();
    match stream.consumer_info("shipping").await {
        Ok(info) => info.delivered.consumer_sequence,
        Err(_) => 0,
    }
}

on_every_database! {
    /// R1: the order's own commit fails, and nobody hears of it.
    async fn an_order_whose_commit_fails_is_never_published(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let deferred = shop.db.kind != Database::MariaDb;
        if deferred {
            run(&shop.db.connection, "CREATE TABLE customers (id BIGINT NOT NULL PRIMARY KEY)").await;
            run(
                &shop.db.connection,
                "CREATE TABLE accounts (customer BIGINT NOT NULL REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED)",
            )
            .await;
        }
        let spoil = async |tx: &DatabaseTransaction| {
            if deferred {
                run(tx, "INSERT INTO accounts (customer) VALUES (7)").await;
            } else {
                end_session(&shop.db.connection, connection_id(tx).await).await;
            }
        };
        let tx = shop.db.connection.begin().await.unwrap();
        shop.order_in(&tx, 1, None).await;
        spoil(&tx).await;
        tx.commit().await.expect_err("the commit fails");
        let unit = shop.bus.begin().await.unwrap();
        shop.order_in(unit.tx(), 2, None).await;
        spoil(unit.tx()).await;
        unit.commit().await.expect_err("the commit fails");
        shop.order(3).await;
        shop.await_published([3]).await;
        shop.await_empty("outbox").await;
        shop.await_published([3]).await;
        assert_eq!(numbers(&shop.db.connection, "SELECT number FROM orders").await, [3]);
        relay.stop().await;
    }

    /// R2 and R4: a restored backup hands numbers out again, and brings rows back that had been published.
    async fn numbers_that_are_handed_out_twice_hide_nothing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let consumer = shop.consumer(&Script::always_ship(), shipping());
        for number in 1..=20 {
            shop.order(number).await;
        }
        shop.await_effects(1..=20).await;
        shop.await_empty("outbox").await;
        // What a backup of an earlier moment holds: rows that wait, and lower numbers to come.
        let held_back = shop.db.connection.begin().await.unwrap();
        shop.order_in(&held_back, 21, None).await;
        run(&held_back, "CREATE TABLE backup AS SELECT * FROM outbox").await;
        held_back.commit().await.unwrap();
        shop.await_effects(1..=21).await;
        shop.await_empty("outbox").await;
        const COLUMNS: &str = "seq, message_id, event_type, event_version, subject, ordering_key, headers, payload, occurred_at";
        let (overriding, again) = match shop.db.kind {
            Database::Postgres => ("OVERRIDING SYSTEM VALUE", "ALTER TABLE outbox ALTER COLUMN seq RESTART WITH 1"),
            Database::MariaDb => ("", "ALTER TABLE outbox AUTO_INCREMENT = 1"),
            Database::Sqlite => ("", "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'outbox'"),
        };
        let restore = format!("INSERT INTO outbox ({COLUMNS}) {overriding} SELECT {COLUMNS} FROM backup");
        run(&shop.db.connection, &restore).await;
        shop.await_empty("outbox").await;
        run(&shop.db.connection, again).await;
        kill_all_others(&shop.db.connect(1).await).await;
        // More than there were, at once: whoever looks at the sequence sees it beyond where it was.
        eventually("orders on a fresh connection", DEADLINE, async || {
            let tx = shop.db.connection.begin().await.map_err(|error| error.to_string())?;
            for number in 22..=60 {
                Shop::write_order(&shop.bus, &tx, number, None).await.map_err(|error| error.to_string())?;
            }
            tx.commit().await.map_err(|error| error.to_string())
        })
        .await;
        shop.await_effects(1..=60).await;
        shop.await_empty("outbox").await;
        assert!(shop.dead_letters().await.is_empty());
        relay.stop().await;
        consumer.stop().await;
    }
}

on_servers! {
    /// R5: the database only reads for a while, with one attempt allowed.
    async fn a_database_that_only_reads_spends_no_attempt(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        for number in 1..=5 {
            shop.order(number).await;
        }
        shop.await_published(1..=5).await;
        shop.await_empty("outbox").await;
        let admin = shop.db.connect(1).await;
        let read_only = |on: bool| match kind {
            Database::Postgres => format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {}', current_database()); END $$",
                if on { "on" } else { "off" }
            ),
            _ => format!("SET GLOBAL tx_read_only = {}", u8::from(on)),
        };
        run(&admin, &read_only(true)).await;
        kill_all_others(&admin).await;
        let consumer = shop.consumer(&Script::always_ship(), shipping().max_attempts(1));
        eventually("deliveries in vain", DEADLINE, async || {
            let seen = deliveries(&shop).await;
            if seen >= 5 { Ok(()) } else { Err(seen) }
        })
        .await;
        eventually("it is seen", DEADLINE, async || {
            let report = consumer.health.report();
            let seen = !report.ready && report.problems.iter().any(|problem| problem.contains("cannot write to its database"));
            if seen { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        assert!(shop.effects().await.is_empty());
        if kind == Database::Postgres {
            run(&admin, "SET default_transaction_read_only = off").await;
        }
        run(&admin, &read_only(false)).await;
        kill_all_others(&admin).await;
        shop.await_effects(1..=5).await;
        assert!(shop.dead_letters().await.is_empty());
        eventually("it is seen to work", DEADLINE, async || {
            let report = consumer.health.report();
            if report.ready && report.problems.is_empty() { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: others use up the server's connections for a while, with one attempt allowed.
    async fn a_server_without_free_connections_spends_no_attempt(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        for number in 1..=5 {
            shop.order(number).await;
        }
        shop.await_published(1..=5).await;
        shop.await_empty("outbox").await;
        let mut hogs = Vec::new();
        while let Ok(Ok(hog)) = tokio::time::timeout(Duration::from_secs(3), connect(&shop.db.url, 1)).await {
            hogs.push(hog);
        }
        let consumer = shop.consumer(&Script::always_ship(), shipping().max_attempts(1));
        eventually("deliveries in vain", DEADLINE, async || {
            let seen = deliveries(&shop).await;
            if seen >= 8 { Ok(()) } else { Err(seen) }
        })
        .await;
        for hog in hogs {
            hog.close().await.unwrap();
        }
        shop.await_effects(1..=5).await;
        shop.order(6).await;
        shop.await_effects(1..=6).await;
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: two handlers lock each other out; the database ends one, and it is tried again, uncounted.
    async fn a_deadlock_spends_no_attempt(kind: Database) {
        let (_server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        run(&shop.db.connection, "CREATE TABLE stock (id INT NOT NULL PRIMARY KEY, n INT NOT NULL)").await;
        run(&shop.db.connection, "INSERT INTO stock VALUES (0, 0), (1, 0)").await;
        let both = Both(Arc::new(Barrier::new(2)));
        let stop = CancellationToken::new();
        let runtime = shop
            .bus
            .runtime(shop.broker.clone())
            .relay(crate::shop::relay())
            .state(both)
            .consumer(Consumer::<SeaOrm, Both>::of(swap {}).max_attempts(1));
        let running = tokio::spawn(runtime.run(stop.clone()));
        let unit = shop.bus.begin().await.unwrap();
        for first in [0, 1] {
            unit.publish(&StockMoved { first }).unwrap();
        }
        unit.commit().await.unwrap();
        shop.await_effects([0, 1]).await;
        assert_eq!(numbers(&shop.db.connection, "SELECT CAST(SUM(n) AS SIGNED) AS number FROM stock".replace("SIGNED", if kind == Database::Postgres { "BIGINT" } else { "SIGNED" }).as_str()).await, [4]);
        assert!(shop.dead_letters().await.is_empty());
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.stock.moved")]
struct StockMoved {
    first: i64,
}

/// Two handlers that wait for each other at their first start.
#[derive(Clone)]
struct Both(Arc<Barrier>);

#[handler(consumer = "stock", concurrency = 2)]
async fn swap(
    moved: StockMoved,
    tx: &DatabaseTransaction,
    both: State<Both>,
    cx: outbox_core::Context,
) -> Result<(), HandlerError> {
    let take = async |id: i64| {
        let sql = format!("UPDATE stock SET n = n + 1 WHERE id = {id}");
        tx.execute_unprepared(&sql).await.map(drop)
    };
    take(moved.first).await?;
    if cx.deliveries() == 1 {
        both.0.0.wait().await;
    }
    take(1 - moved.first).await?;
    run(
        tx,
        &format!("INSERT INTO effects (number) VALUES ({})", moved.first),
    )
    .await;
    Ok(())
}
