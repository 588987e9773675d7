//! R5 and R8: the database goes away, freezes, or cuts connections; the relay's host freezes.

use std::time::Duration;

use outbox_tests::{Child, Database, MariaDb, Postgres, TestDatabase, eventually};
use sea_orm::TransactionTrait;

use crate::shop::{Act, DEADLINE, Script, Shop, shipping};

const NODE: &str = env!("CARGO_BIN_EXE_outbox-test-node");

/// A database server to break.
enum Server {
    Postgres(Postgres),
    MariaDb(MariaDb),
}

impl Server {
    async fn start(kind: Database) -> (Self, TestDatabase) {
        let (server, url) = match kind {
            Database::Postgres => {
                let server = Postgres::start().await;
                let url = server.create_database().await;
                (Self::Postgres(server), url)
            }
            _ => {
                let server = MariaDb::start().await;
                let url = server.create_database().await;
                (Self::MariaDb(server), url)
            }
        };
        (server, TestDatabase::on(kind, url).await)
    }

    fn kill(&self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::MariaDb(server) => server.kill(),
        }
    }

    async fn restart(&self) {
        match self {
            Self::Postgres(server) => server.restart().await,
            Self::MariaDb(server) => server.restart().await,
        }
    }

    fn freeze(&self) {
        match self {
            Self::Postgres(server) => server.freeze(),
            Self::MariaDb(server) => server.freeze(),
        }
    }

    fn thaw(&self) {
        match self {
            Self::Postgres(server) => server.thaw(),
            Self::MariaDb(server) => server.thaw(),
        }
    }
}

macro_rules! on_servers {
    ($($(#[$doc:meta])* async fn $name:ident($kind:ident: Database) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::*;

            async fn body($kind: Database) $body

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                body(Database::Postgres).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn mariadb() {
                body(Database::MariaDb).await;
            }
        }
    )*};
}

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
        // Long enough for handlers to fail and for the consumer to find out why.
        tokio::time::sleep(Duration::from_secs(2)).await;
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
        tokio::time::sleep(Duration::from_secs(3)).await;
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
