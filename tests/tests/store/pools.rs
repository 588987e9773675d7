//! The store's own connections.

use std::time::Duration;

use outbox_core::{
    error::StoreErrorKind,
    store::{InboxStore, OutboxStore, Pool, Store},
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, Direction, Proxy, SqliteFile, TestDatabase, on_every_database};
use sea_orm::{ConnectOptions, TransactionTrait};
use uuid::Uuid;

use crate::support::*;

on_every_database! {
    /// Handlers that hold every connection leave the relay, the ledger and probes alone.
    async fn hung_handlers_starve_nobody(db: TestDatabase) {
        let store = SeaOrm::builder(db.connect(1).await).consumer_connections(2).acquire_timeout(Duration::from_millis(500)).build().expect("a store");
        let store = migrated(store).await;
        let mut hung = vec![store.begin(Pool::Consumer).await.expect("begin")];
        if db.kind != Database::Sqlite {
            hung.push(store.begin(Pool::Consumer).await.expect("begin"));
            let error = store.begin(Pool::Consumer).await.expect_err("none is free");
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            store.open_start("a", Uuid::now_v7(), false).await.expect("the ledger works");
        }
        store.ping().await.expect("probes work");
        store.read(TARGET, &everything()).await.expect("the relay works");
        drop(hung);
    }

    async fn shared_connections_are_the_users(db: TestDatabase) {
        let store = migrated(SeaOrm::builder(db.connect(1).await).share_connections().build().expect("a store")).await;
        let rows = publish(&store, &[record(None)]).await;
        store.settle(TARGET, &[settled(&rows[0])]).await.expect("settle");
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        assert_eq!(store.record(&tx, "a", &[Uuid::now_v7()]).await.expect("record"), [true]);
        store.commit(tx).await.expect("commit");
        let lease = lease(&store).await;
        store.renew(&lease).await.expect("renew");
    }

    /// What a hook of the user's pool sets holds for the store's own connections too.
    async fn hooks_are_kept(db: TestDatabase) {
        if db.kind != Database::Postgres {
            return;
        }
        run(&db.connection, "CREATE SCHEMA app").await;
        let mut options = ConnectOptions::new(&db.url);
        options.set_schema_search_path("app");
        let user = sea_orm::Database::connect(options).await.expect("connect");
        let store = migrated(SeaOrm::new(user)).await;
        publish(&store, &[record(None)]).await;
        assert_eq!(number(&db.connection, "SELECT COUNT(*) FROM app.outbox").await, 1);
    }

    async fn an_outage_is_unavailable(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let proxy = Proxy::start(&db.url).await;
        let mut options = ConnectOptions::new(proxy.through(&db.url));
        options.max_connections(5).acquire_timeout(Duration::from_secs(1));
        let user = sea_orm::Database::connect(options).await.expect("connect");
        let store = migrated(SeaOrm::new(user)).await;
        store.ping().await.expect("it is there");
        let open = store.begin(Pool::Consumer).await.expect("begin");
        let lease = lease(&store).await;
        proxy.cut().await;
        for error in [
            store.ping().await.expect_err("gone"),
            store.read(TARGET, &everything()).await.expect_err("gone"),
            store.renew(&lease).await.expect_err("gone"),
            store.begin(Pool::User).await.expect_err("gone"),
            store.commit(open).await.expect_err("gone"),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        }
        proxy.restore().await;
        outbox_tests::eventually("it is back", Duration::from_secs(10), async || store.ping().await).await;
        store.renew(&lease).await.expect("renew");
    }

    /// Connections that died while nobody used them are nobody's failure.
    async fn connections_that_died_idle_are_passed_over(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let proxy = Proxy::start(&db.url).await;
        let user = sea_orm::Database::connect(proxy.through(&db.url)).await.expect("connect");
        let store = migrated(SeaOrm::builder(user).consumer_connections(4).build().expect("a store")).await;
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(store.begin(Pool::Consumer).await.expect("begin"));
        }
        for tx in open {
            store.commit(tx).await.expect("commit");
        }
        proxy.cut().await;
        proxy.restore().await;
        for _ in 0..4 {
            let (tx, fresh) = store.begin_recorded("a", &[Uuid::now_v7()]).await.expect("begin");
            assert_eq!(fresh, [true]);
            store.commit(tx).await.expect("commit");
        }
    }

    /// Answers that never come, as behind a network device that forgot the connection.
    async fn dead_connections_are_given_up(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let proxy = Proxy::start(&db.url).await;
        let user = sea_orm::Database::connect(proxy.through(&db.url)).await.expect("connect");
        let store = SeaOrm::builder(user).statement_timeout(Duration::from_secs(1)).acquire_timeout(Duration::from_secs(1));
        let store = migrated(store.build().expect("a store")).await;
        let lease = lease(&store).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(store.begin(Pool::Consumer).await.expect("begin"));
        }
        proxy.drop_direction(Direction::Downstream);
        for error in [
            store.read(TARGET, &everything()).await.expect_err("no answer"),
            store.renew(&lease).await.expect_err("no answer"),
            store.hold(&lease, &[]).await.expect_err("no answer"),
            store.begin(Pool::Consumer).await.expect_err("no answer"),
            store.rollback(open.pop().expect("open")).await.expect_err("no answer"),
            store.ping().await.expect_err("no answer"),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        }
        let error = store.commit(open.pop().expect("open")).await.expect_err("no answer");
        assert_eq!(error.kind(), StoreErrorKind::CommitUnknown, "{error:?}");
        proxy.restore().await;
        outbox_tests::eventually("new connections work", Duration::from_secs(10), async || {
            store.ping().await?;
            let tx = store.begin(Pool::Consumer).await?;
            store.record(&tx, "a", &[Uuid::now_v7()]).await?;
            store.commit(tx).await
        })
        .await;
    }

    /// One statement that waits does not make the next one wait for its connection.
    async fn an_overdue_statement_keeps_its_connection_to_itself(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let builder = SeaOrm::builder(db.connection.clone()).system_connections(1);
        let store = builder.statement_timeout(Duration::from_secs(1)).build().expect("a store");
        let store = migrated(store).await;
        let tx = db.connection.begin().await.expect("begin");
        run(&tx, if db.kind == Database::Postgres { "LOCK TABLE outbox" } else { "LOCK TABLES outbox WRITE" }).await;
        let error = store.read(TARGET, &everything()).await.expect_err("locked");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        store.next_due(TARGET).await.expect("on another connection");
        if db.kind == Database::MariaDb {
            run(&tx, "UNLOCK TABLES").await;
        }
        tx.rollback().await.expect("roll back");
        store.read(TARGET, &everything()).await.expect("read");
    }

    /// A rotated password, or a database that moved.
    async fn new_options_of_the_users_pool_are_taken_over(db: TestDatabase) {
        if db.kind != Database::Postgres {
            return;
        }
        let store = store(&db).await;
        let other = Database::Postgres.fresh().await;
        let options = other.connection.get_postgres_connection_pool().connect_options();
        db.connection.get_postgres_connection_pool().set_connect_options((*options).clone());
        store.check_schema().await.expect_err("the other database is empty");
        let tx = migrated(store.clone()).await.begin(Pool::Consumer).await.expect("begin");
        store.record(&tx, "a", &[Uuid::now_v7()]).await.expect("record");
        store.commit(tx).await.expect("commit");
        assert_eq!(number(&other.connection, "SELECT COUNT(*) FROM inbox").await, 1);
    }

    /// Neither passwords nor the values of rows and parameters.
    async fn texts_hold_no_secrets(db: TestDatabase) {
        let store = store(&db).await;
        run(&db.connection, "CREATE TABLE secrets (word VARCHAR(20) PRIMARY KEY)").await;
        run(&db.connection, "INSERT INTO secrets VALUES ('hunter2')").await;
        run(&db.connection, "DROP TABLE inbox").await;
        let strict = if db.kind == Database::Sqlite { "STRICT" } else { "" };
        let id = match db.kind {
            Database::Postgres => "UUID",
            Database::MariaDb => "BINARY(16)",
            Database::Sqlite => "BLOB",
        };
        run(&db.connection, &format!("CREATE TABLE inbox (message_id {id}, consumer INTEGER, processed_at INTEGER) {strict}")).await;
        let tx = store.begin(Pool::User).await.expect("begin");
        let error = store.record(&tx, "hunter2", &[Uuid::now_v7()]).await.expect_err("wrong columns");
        drop(tx);
        let error = format!("{error:?} {error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
        let password = db.url.replacen("@", ":hunter2@", 1);
        let mut options = ConnectOptions::new(if db.kind == Database::Sqlite { db.url.clone() } else { password });
        options.connect_lazy(true).acquire_timeout(Duration::from_secs(1));
        let other = sea_orm::Database::connect(options).await.expect("a lazy pool");
        let builder = SeaOrm::builder(other);
        let builder_text = format!("{builder:?}");
        let other = builder.build().expect("a store");
        let other_error = format!("{:?}", other.ping().await);
        for text in [error, builder_text, other_error, format!("{other:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

/// Publisher, relay, consumer and pruning in one process whose own pool has one connection.
#[tokio::test(flavor = "multi_thread")]
async fn everything_works_beside_a_sqlite_pool_of_one() {
    let file = SqliteFile::new();
    let user = sea_orm::Database::connect(file.url())
        .await
        .expect("connect");
    let store = migrated(SeaOrm::new(user)).await;
    let publisher = tokio::spawn({
        let store = store.clone();
        async move {
            for _ in 0..300 {
                let tx = store.begin(Pool::User).await.expect("begin");
                store
                    .insert(&tx, TARGET, &[record(None)])
                    .await
                    .expect("insert");
                store.commit(tx).await.expect("commit");
            }
        }
    });
    let consumer = |number: u32| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                let id = Uuid::now_v7();
                store.open_start("a", id, false).await.expect("open");
                let tx = store.begin(Pool::Consumer).await.expect("begin");
                assert_eq!(store.record(&tx, "a", &[id]).await.expect("record"), [true]);
                assert!(
                    !store
                        .is_recorded("a", id)
                        .await
                        .expect("look up while a transaction is open")
                );
                store.clear_in(&tx, "a", id).await.expect("clear");
                store.commit(tx).await.expect("commit");
                if number == 0 {
                    store.prune(MINUTE, 100).await.expect("prune");
                }
            }
        })
    };
    let consumers: Vec<_> = (0..3).map(consumer).collect();
    let mut seen = 0;
    while seen < 300 {
        assert!(
            !publisher.is_finished() || !read_ids(&store).await.is_empty(),
            "the publisher failed"
        );
        let rows = read(&store, everything()).await;
        seen += store
            .settle(TARGET, &rows.iter().map(settled).collect::<Vec<_>>())
            .await
            .expect("settle");
    }
    publisher.await.expect("the publisher");
    for consumer in consumers {
        consumer.await.expect("a consumer");
    }
}

/// The database lives on although all connections of the user's pool are closed when idle.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_in_memory_is_one_database() {
    for connections in [1, 5] {
        let mut options = ConnectOptions::new("sqlite::memory:");
        options
            .max_connections(connections)
            .idle_timeout(Duration::from_millis(300));
        let user = sea_orm::Database::connect(options).await.expect("connect");
        let store = migrated(SeaOrm::new(user.clone())).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        for _ in 0..20 {
            let records = [record(None)];
            let (one, two) = tokio::join!(publish(&store, &records), async {
                let tx = store.begin(Pool::Consumer).await.expect("begin");
                let fresh = store
                    .record(&tx, "a", &[Uuid::now_v7()])
                    .await
                    .expect("record");
                store.commit(tx).await.expect("commit");
                fresh
            });
            assert_eq!((one.len(), two), (1, vec![true]));
        }
        assert_eq!(read_ids(&store).await.len(), 20);
        assert_eq!(number(&user, "SELECT COUNT(*) FROM inbox").await, 20);
    }
}

#[tokio::test]
async fn sqlite_databases_that_no_two_connections_share_are_refused() {
    let store = migrated(SeaOrm::new(private_memory(1))).await;
    publish(&store, &[record(None)]).await;
    let error = SeaOrm::builder(private_memory(2))
        .build()
        .expect_err("two databases");
    assert_eq!(error.kind(), StoreErrorKind::Schema);

    for (url, connections) in [
        ("sqlite://c?mode=memory&cache=private", 1),
        ("sqlite://d?mode=memory&cache=shared", 5),
        ("sqlite://e?mode=memory", 1),
    ] {
        let mut options = ConnectOptions::new(url);
        options.max_connections(connections);
        let user = sea_orm::Database::connect(options).await.expect("connect");
        let error = SeaOrm::new(user)
            .migrate()
            .await
            .expect_err("one for each connection");
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{url}");
    }
}

/// A pool whose connections do not name a file.
fn private_memory(connections: u32) -> sea_orm::DatabaseConnection {
    let options = sea_orm::sqlx::pool::PoolOptions::new().max_connections(connections);
    let pool = options.connect_lazy_with(sea_orm::sqlx::sqlite::SqliteConnectOptions::new());
    sea_orm::SqlxSqliteConnector::from_sqlx_sqlite_pool(pool)
}
