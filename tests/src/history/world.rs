//! The servers and processes of one history.

use std::{path::PathBuf, time::Duration};

use outbox_core::Bus;
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use tokio::time::Instant;

use super::{
    check::{Findings, check},
    node::{ORDERS, PACE, SEED, replay, reports_stream},
    plan::Plan,
    shop::{CONSUMERS, create_tables, numbers},
};
use crate::{Child, NatsServer, Proxy, TestDatabase};

/// How long nothing may get on while there is something left to do.
const STANDSTILL: Duration = Duration::from_secs(60);
/// How often is looked whether all is quiet.
const LOOK: Duration = Duration::from_millis(100);

/// What is fixed for one history.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program of a node.
    pub program: PathBuf,
    /// Seed of the plan and of the faults.
    pub seed: u64,
    /// Processes that place orders, one a slot.
    pub slots: i64,
    /// Orders a slot; no end without.
    pub orders: Option<i64>,
    /// Milliseconds between two orders of a slot.
    pub pace: u64,
}

/// A shop on servers of its own.
#[derive(Debug)]
pub struct World {
    /// What is fixed.
    pub settings: Settings,
    /// The database.
    pub db: TestDatabase,
    /// The broker.
    pub nats: NatsServer,
    /// The way to the database; none for a file.
    pub to_database: Option<Proxy>,
    /// The way to the broker.
    pub to_nats: Proxy,
}

impl World {
    /// An empty shop.
    ///
    /// # Panics
    ///
    /// When it cannot be set up.
    pub async fn open(settings: Settings, db: TestDatabase) -> Self {
        create_tables(&db.connection)
            .await
            .expect("create the shop's tables");
        SeaOrm::new(db.connection.clone())
            .migrate()
            .await
            .expect("create the tables of the outbox");
        let nats = NatsServer::start().await;
        let jetstream = nats.nats().jetstream().await;
        let reports = jetstream.create_stream(reports_stream(1)).await;
        reports.expect("create the stream of the reports");
        let to_nats = Proxy::start(nats.nats().url()).await;
        let to_database = if db.url.starts_with("sqlite") {
            None
        } else {
            Some(Proxy::start(&db.url).await)
        };
        Self {
            settings,
            db,
            nats,
            to_database,
            to_nats,
        }
    }

    /// Starts a node, which is reached by faults of the network.
    #[must_use]
    pub fn node(&self, slot: i64, roles: &str, more: &[(&str, &str)]) -> Child {
        let database = match &self.to_database {
            Some(proxy) => proxy.through(&self.db.url),
            None => self.db.url.clone(),
        };
        let nats = self.to_nats.through(self.nats.nats().url());
        let (seed, pace) = (
            self.settings.seed.to_string(),
            self.settings.pace.to_string(),
        );
        let orders = self.settings.orders.map(|orders| orders.to_string());
        let mut envs = vec![
            ("DATABASE_URL", database.as_str()),
            ("NATS_URL", nats.as_str()),
            (SEED, seed.as_str()),
            (PACE, pace.as_str()),
            ("RUST_LOG", "warn"),
        ];
        envs.extend(orders.as_deref().map(|orders| (ORDERS, orders)));
        envs.extend(more);
        Child::spawn(&self.settings.program, &[&slot.to_string(), roles], &envs)
    }

    /// What is not done yet; nothing, if all is quiet.
    async fn unrest(
        &self,
        broker: &JetStream,
        bus: &Bus<SeaOrm>,
        operate: bool,
    ) -> Result<(), String> {
        let count = async |what: &str| {
            let sql = format!("SELECT COUNT(*) AS number FROM {what}");
            let found = numbers(&self.db.connection, &sql).await;
            found
                .map(|found| found.first().copied().unwrap_or_default())
                .map_err(|error| error.to_string())
        };
        let orders = count("orders").await?;
        let distinct = |table| format!("(SELECT DISTINCT number FROM {table}) AS each_once");
        let state = async {
            for (what, expected) in [
                (distinct("effects"), orders),
                (distinct("bills"), orders),
                (distinct("bookings"), orders),
                // Last: a row is published, and its message handled, before it leaves. It goes from one
                // table to the other only in this direction.
                ("outbox".to_owned(), 0),
                ("outbox_held".to_owned(), 0),
            ] {
                let found = count(&what).await?;
                if found != expected {
                    return Err(format!("{found} rows in {what}, {expected} expected"));
                }
            }
            Ok(())
        };
        let Err(unrest) = state.await else {
            return Ok(());
        };
        if operate {
            replay(bus, broker, &self.db.connection).await;
        }
        Err(format!(
            "{unrest}; undelivered: {:?}",
            self.undelivered().await
        ))
    }

    /// How many messages each consumer has still to get.
    async fn undelivered(&self) -> Vec<u64> {
        let jetstream = self.nats.nats().jetstream().await;
        let mut undelivered = Vec::new();
        for consumer in CONSUMERS {
            let info = match jetstream.get_stream("SHOP").await {
                Ok(stream) => stream.consumer_info(consumer).await.ok(),
                Err(_) => None,
            };
            undelivered.extend(info.map(|info| info.num_pending));
        }
        undelivered
    }

    /// Waits until all is quiet and says what is wrong then. Replays what is dead meanwhile if it is
    /// to `operate`.
    ///
    /// However much is left to do, for example because a new durable delivers a whole stream again, it
    /// has to get on.
    ///
    /// # Panics
    ///
    /// When nothing gets on for a minute.
    pub async fn come_to_rest(&self, operate: bool) -> Findings {
        let broker = JetStream::builder()
            .stream(StreamSpec::new("SHOP", ["shop.>"]))
            .wait_for_server()
            .connect(self.nats.nats().url())
            .await
            .expect("connect to NATS");
        let bus = Bus::new(SeaOrm::new(self.db.connection.clone()));
        let mut last = String::new();
        let mut changed = Instant::now();
        while let Err(unrest) = self.unrest(&broker, &bus, operate).await {
            if unrest != last {
                (last, changed) = (unrest, Instant::now());
            }
            let still = changed.elapsed();
            assert!(still < STANDSTILL, "nothing gets on for {still:?}: {last}");
            tokio::time::sleep(LOOK).await;
        }
        let plan = Plan::new(self.settings.seed);
        check(&self.db, self.nats.nats(), plan, self.settings.slots).await
    }
}
