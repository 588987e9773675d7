//! A small service: orders are placed, and a consumer ships them as a script says.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use outbox_core::{
    Backoff, Bus, Consumer, Context, DeadLetterFilter, DeadLetterSummary, HandlerError, Health,
    IntegrationEvent, RelayOptions, Runtime, RuntimeError, State, Stopped, handler,
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::{NatsServer, StoredMessage, TestDatabase, eventually, read_stream};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement,
    TransactionTrait,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", key = customer)]
pub(crate) struct OrderPlaced {
    pub(crate) number: i64,
    pub(crate) customer: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.shipped")]
pub(crate) struct OrderShipped {
    pub(crate) number: i64,
}

/// What the handler does with an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Ship,
    Fail,
    FailAfterTheEffect,
    Reject,
    Panic,
    Hang,
    BreakTheTransaction,
    CommitItself,
    KillTheConnection,
    Take(Duration),
}

type Plan = dyn Fn(i64, u32) -> Act + Send + Sync;

/// Decides by the order's number and by how often its handler has started before.
#[derive(Clone)]
pub(crate) struct Script {
    plan: Arc<Plan>,
    starts: Arc<Mutex<HashMap<i64, u32>>>,
}

impl Script {
    pub(crate) fn new(plan: impl Fn(i64, u32) -> Act + Send + Sync + 'static) -> Self {
        Self {
            plan: Arc::new(plan),
            starts: Arc::default(),
        }
    }

    pub(crate) fn always_ship() -> Self {
        Self::new(|_, _| Act::Ship)
    }

    /// Counts a start, and says what to do.
    pub(crate) fn start(&self, number: i64) -> Act {
        let mut starts = self.starts.lock().unwrap();
        let before = starts.entry(number).or_default();
        *before += 1;
        (self.plan)(number, *before - 1)
    }

    pub(crate) fn starts(&self, number: i64) -> u32 {
        self.starts
            .lock()
            .unwrap()
            .get(&number)
            .copied()
            .unwrap_or_default()
    }
}

#[handler(consumer = "shipping", backoff = fixed("50ms"), concurrency = 8)]
async fn ship(
    order: OrderPlaced,
    tx: &DatabaseTransaction,
    script: State<Script>,
    cx: Context,
) -> Result<(), HandlerError> {
    let act = script.start(order.number);
    match act {
        Act::Fail => return Err(HandlerError::retry("the carrier is closed")),
        Act::Reject => return Err(HandlerError::reject("the carrier never goes there")),
        Act::Panic => panic!("the carrier has lost its head"),
        Act::Hang => std::future::pending::<()>().await,
        Act::KillTheConnection => {
            let kill = match tx.get_database_backend() {
                DbBackend::Postgres => "SELECT pg_terminate_backend(pg_backend_pid())",
                _ => "KILL CONNECTION_ID()",
            };
            tx.execute_unprepared(kill).await?;
        }
        Act::Take(time) => tokio::time::sleep(time).await,
        _ => {}
    }
    let insert = format!("INSERT INTO effects (number) VALUES ({})", order.number);
    tx.execute_unprepared(&insert).await?;
    cx.publish(&OrderShipped {
        number: order.number,
    })?;
    match act {
        Act::FailAfterTheEffect => Err(HandlerError::retry("the label printer is out of paper")),
        Act::BreakTheTransaction => {
            // Swallowed: on PostgreSQL the transaction is doomed from here on.
            let _ = tx.execute_unprepared("SELECT nothing FROM nowhere").await;
            Ok(())
        }
        Act::CommitItself => {
            tx.execute_unprepared("COMMIT").await?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The consumer of the script.
pub(crate) fn shipping() -> Consumer<SeaOrm, Script> {
    Consumer::of(ship {})
}

pub(crate) struct Shop {
    pub(crate) db: TestDatabase,
    pub(crate) nats: NatsServer,
    pub(crate) bus: Bus<SeaOrm>,
    pub(crate) broker: JetStream,
}

/// A runtime in the background.
pub(crate) struct Running {
    pub(crate) stop: CancellationToken,
    pub(crate) health: Health,
    task: JoinHandle<Result<Stopped, RuntimeError>>,
}

impl Running {
    pub(crate) fn start<St: Clone + Send + Sync + 'static>(
        runtime: Runtime<SeaOrm, JetStream, St>,
    ) -> Self {
        let stop = CancellationToken::new();
        Self {
            health: runtime.health(),
            task: tokio::spawn(runtime.run(stop.clone())),
            stop,
        }
    }

    /// Waits until the consumers have found out that their database is away.
    pub(crate) async fn await_pause(&self) {
        eventually("the consumers pause", DEADLINE, async || {
            let report = self.health.report();
            let paused = report.consumers.iter().any(|consumer| consumer.paused);
            if paused {
                Ok(())
            } else {
                Err(format!("{report:?}"))
            }
        })
        .await;
    }

    pub(crate) async fn stop(self) -> Stopped {
        self.stop.cancel();
        self.task
            .await
            .expect("the runtime does not panic")
            .expect("the runtime started")
    }

    /// As a crash does: nothing is settled or given up.
    pub(crate) async fn abort(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A relay for tests: short lease, short waits.
pub(crate) fn relay() -> RelayOptions {
    RelayOptions::default()
        .lease(Duration::from_secs(1))
        .idle_poll(Duration::from_millis(50))
        .standby_poll(Duration::from_millis(50))
        .backoff(Backoff::fixed(Duration::from_millis(100)))
}

impl Shop {
    pub(crate) async fn open(db: TestDatabase) -> Self {
        Self::open_with(db, NatsServer::start().await).await
    }

    pub(crate) async fn open_with(db: TestDatabase, nats: NatsServer) -> Self {
        for table in [
            "orders (number BIGINT NOT NULL)",
            "effects (number BIGINT NOT NULL)",
        ] {
            db.connection
                .execute_unprepared(&format!("CREATE TABLE {table}"))
                .await
                .unwrap();
        }
        let store = SeaOrm::new(db.connection.clone());
        store.migrate().await.unwrap();
        let broker = connect(&nats).await;
        Self {
            db,
            nats,
            bus: Bus::new(store),
            broker,
        }
    }

    /// Places an order and its event in one transaction.
    pub(crate) async fn order(&self, number: i64) -> Uuid {
        self.order_for(number, None).await
    }

    pub(crate) async fn order_for(&self, number: i64, customer: Option<&str>) -> Uuid {
        let tx = self.db.connection.begin().await.unwrap();
        let id = self.order_in(&tx, number, customer).await;
        tx.commit().await.unwrap();
        id
    }

    /// The same inside the caller's transaction.
    pub(crate) async fn order_in(
        &self,
        tx: &DatabaseTransaction,
        number: i64,
        customer: Option<&str>,
    ) -> Uuid {
        Self::write_order(&self.bus, tx, number, customer)
            .await
            .unwrap()
    }

    pub(crate) async fn write_order(
        bus: &Bus<SeaOrm>,
        tx: &DatabaseTransaction,
        number: i64,
        customer: Option<&str>,
    ) -> Result<Uuid, HandlerError> {
        tx.execute_unprepared(&format!("INSERT INTO orders (number) VALUES ({number})"))
            .await?;
        let event = OrderPlaced {
            number,
            customer: customer.map(str::to_owned),
        };
        Ok(bus.publish(tx, &event).await?)
    }

    /// Starts a relay alone.
    pub(crate) fn relay(&self) -> Running {
        self.relay_with(relay())
    }

    pub(crate) fn relay_with(&self, options: RelayOptions) -> Running {
        Running::start(self.bus.runtime(self.broker.clone()).relay(options))
    }

    /// Starts the consumer alone.
    pub(crate) fn consumer(&self, script: &Script, consumer: Consumer<SeaOrm, Script>) -> Running {
        self.consumer_within(script, consumer, Duration::from_secs(20))
    }

    pub(crate) fn consumer_within(
        &self,
        script: &Script,
        consumer: Consumer<SeaOrm, Script>,
        stop_timeout: Duration,
    ) -> Running {
        self.consumer_with(script, consumer, stop_timeout)
    }

    /// Starts a consumer with a state of its own.
    pub(crate) fn consumer_with<St: Clone + Send + Sync + 'static>(
        &self,
        state: &St,
        consumer: Consumer<SeaOrm, St>,
        stop_timeout: Duration,
    ) -> Running {
        let runtime = self
            .bus
            .runtime(self.broker.clone())
            .state(state.clone())
            .stop_timeout(stop_timeout)
            .consumer(consumer);
        Running::start(runtime)
    }

    /// All messages of the stream.
    pub(crate) async fn stream(&self) -> Vec<StoredMessage> {
        read_stream(&self.nats.nats().jetstream().await, "SHOP").await
    }

    /// The numbers of the placed orders in the stream, in its order, each once.
    pub(crate) async fn published(&self) -> Vec<i64> {
        let mut numbers = Vec::new();
        for message in self.stream().await {
            if message.subject == "shop.orders.placed" {
                let order: OrderPlaced = serde_json::from_slice(&message.payload).unwrap();
                if !numbers.contains(&order.number) {
                    numbers.push(order.number);
                }
            }
        }
        numbers
    }

    /// Waits until the stream has so many messages, without a look at the database.
    pub(crate) async fn await_messages(&self, count: i64) {
        let jetstream = self.nats.nats().jetstream().await;
        eventually("all in the stream", DEADLINE, async || {
            let stream = jetstream
                .get_stream("SHOP")
                .await
                .map_err(|error| error.to_string())?;
            match stream.cached_info().state.messages {
                stored if stored >= count as u64 => Ok(()),
                stored => Err(format!("{stored} of {count}")),
            }
        })
        .await;
    }

    /// Waits until the stream has these orders, in any order, and no others.
    pub(crate) async fn await_published(&self, expected: impl IntoIterator<Item = i64>) {
        let mut expected: Vec<i64> = expected.into_iter().collect();
        expected.sort_unstable();
        eventually(
            "exactly the committed orders in the stream",
            DEADLINE,
            async || {
                let mut found = self.published().await;
                found.sort_unstable();
                if found == expected {
                    Ok(())
                } else {
                    Err(format!("{found:?}, expected {expected:?}"))
                }
            },
        )
        .await;
    }

    /// The numbers of all effects, sorted, with repetitions.
    pub(crate) async fn effects(&self) -> Vec<i64> {
        numbers(
            &self.db.connection,
            "SELECT number FROM effects ORDER BY number",
        )
        .await
    }

    pub(crate) async fn try_effects(&self) -> Result<Vec<i64>, DbErr> {
        try_numbers(
            &self.db.connection,
            "SELECT number FROM effects ORDER BY number",
        )
        .await
    }

    pub(crate) async fn await_effects(&self, expected: impl IntoIterator<Item = i64>) {
        let expected: Vec<i64> = expected.into_iter().collect();
        eventually("exactly the expected effects", DEADLINE, async || {
            let found = self.effects().await;
            if found == expected {
                Ok(())
            } else {
                Err(format!("{found:?}, expected {expected:?}"))
            }
        })
        .await;
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT COUNT(*) AS number FROM {table}");
        numbers(&self.db.connection, &sql).await[0]
    }

    pub(crate) async fn await_empty(&self, table: &str) {
        eventually(
            &format!("an empty table {table}"),
            DEADLINE,
            async || match self.count(table).await {
                0 => Ok(()),
                left => Err(format!("{left} rows")),
            },
        )
        .await;
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetterSummary> {
        self.bus
            .dead_letters(self.broker.clone())
            .list(&DeadLetterFilter::default())
            .await
            .unwrap()
    }

    pub(crate) async fn await_dead_letters(&self, count: usize) -> Vec<DeadLetterSummary> {
        eventually("the dead letters", DEADLINE, async || {
            let found = self.dead_letters().await;
            if found.len() == count {
                Ok(found)
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await
    }
}

/// A broker with the stream of the shop.
pub(crate) async fn connect(nats: &NatsServer) -> JetStream {
    JetStream::builder()
        .stream(StreamSpec::new("SHOP", ["shop.>"]))
        .ack_timeout(Duration::from_secs(2))
        .connect(nats.nats().url())
        .await
        .unwrap()
}

/// The column `number` of a query.
pub(crate) async fn numbers(db: &DatabaseConnection, sql: &str) -> Vec<i64> {
    try_numbers(db, sql).await.unwrap()
}

async fn try_numbers(db: &DatabaseConnection, sql: &str) -> Result<Vec<i64>, DbErr> {
    let rows = db
        .query_all_raw(Statement::from_string(db.get_database_backend(), sql))
        .await?;
    rows.iter().map(|row| row.try_get("", "number")).collect()
}
