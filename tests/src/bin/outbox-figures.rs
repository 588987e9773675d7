//! First figures, measured in one run on servers of its own.
//!
//! `cargo run --release -p outbox-tests --bin outbox-figures` prints the drain of the outbox against
//! its two limits, the cost of a publish, memory, and the time to stop. Ratios are what counts:
//! database, broker and framework share one machine.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use outbox_core::{
    Broker, Bus, Consumer, HandlerError, IntegrationEvent, Relay, RelayOptions,
    broker::{Publisher, WireMessage},
    handler,
    store::{OutboxStore, ReadQuery, SeqRuns, Settled},
    wire,
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::{NatsServer, Postgres, PostgresConfig, connect, eventually};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, Statement, TransactionTrait,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

const ROWS: usize = 100_000;
const MEMORY_ROWS: usize = 200_000;
const ROUNDS: usize = 5;
const KEYS: usize = 1000;
const LONG: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "bench.placed", key = key)]
struct Placed {
    key: Option<String>,
    body: String,
}

#[handler(consumer = "bench", concurrency = 16)]
async fn count(_event: Placed, tx: &DatabaseTransaction) -> Result<(), HandlerError> {
    tx.execute_unprepared("INSERT INTO effects (number) VALUES (1)")
        .await?;
    Ok(())
}

struct Bench {
    db: DatabaseConnection,
    store: SeaOrm,
    bus: Bus<SeaOrm>,
    broker: JetStream,
    nats: NatsServer,
    _postgres: Postgres,
}

fn event(number: usize, keyed: bool) -> Placed {
    Placed {
        key: keyed.then(|| format!("key-{}", fastrand::usize(..KEYS))),
        body: format!("{number:0>224}"),
    }
}

impl Bench {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let postgres = Postgres::start_with(
            PostgresConfig::default()
                .durable()
                .setting("shared_buffers", "512MB"),
        )
        .await;
        let db = connect(&postgres.create_database().await, 10).await?;
        db.execute_unprepared("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, note TEXT NOT NULL)")
            .await?;
        db.execute_unprepared("CREATE TABLE effects (number BIGINT NOT NULL)")
            .await?;
        let store = SeaOrm::new(db.clone());
        store.migrate().await?;
        let nats = NatsServer::start().await;
        let broker = JetStream::builder()
            .stream(StreamSpec::new("BENCH", ["bench.>"]))
            .connect(nats.nats().url())
            .await?;
        // The first subscription creates the stream.
        Ok(Self {
            bus: Bus::new(store.clone()),
            db,
            store,
            broker,
            nats,
            _postgres: postgres,
        })
    }

    async fn fill(&self, rows: usize, keyed: bool) -> Result<(), Box<dyn Error>> {
        self.db.execute_unprepared("TRUNCATE outbox").await?;
        let mut left = rows;
        while left > 0 {
            let batch: Vec<_> = (0..left.min(1000))
                .map(|number| event(number, keyed))
                .collect();
            left -= batch.len();
            let tx = self.db.begin().await?;
            self.bus.publish_all(&tx, &batch).await?;
            tx.commit().await?;
        }
        self.db.execute_unprepared("VACUUM ANALYZE outbox").await?;
        self.db.execute_unprepared("CHECKPOINT").await?;
        let js = self.nats.nats().jetstream().await;
        js.get_stream("BENCH").await?.purge().await?;
        Ok(())
    }

    /// The limit of the broker: the same messages with the same headers, from memory.
    async fn publish_only(&self) -> Result<f64, Box<dyn Error>> {
        let rows = self.read_all().await?;
        let messages: Vec<WireMessage> = rows
            .iter()
            .map(|row| wire::outgoing(row, "bench"))
            .collect::<Result<_, _>>()?;
        let publisher = Arc::new(self.broker.publisher().await?);
        while !publisher.connected() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let began = Instant::now();
        let count = messages.len();
        let task = tokio::spawn(async move {
            let mut window = FuturesUnordered::new();
            for message in messages {
                if window.len() >= 512 {
                    let _ = window.next().await;
                }
                window.push(publisher.publish(message));
            }
            while window.next().await.is_some() {}
        });
        task.await?;
        Ok(rate(count, began))
    }

    async fn read_all(&self) -> Result<Vec<outbox_core::store::OutboxRow>, Box<dyn Error>> {
        let query = |floor| ReadQuery {
            floor,
            exclude: SeqRuns::default(),
            limit: 1000,
            max_bytes: 8 << 20,
        };
        let mut rows = Vec::new();
        let mut floor = 0;
        loop {
            let batch = self.store.read("default", &query(floor)).await?;
            let Some(last) = batch.last() else {
                return Ok(rows);
            };
            floor = last.seq;
            rows.extend(batch);
        }
    }

    /// The limit of the database: reading and deleting in batches, with a broker that does nothing.
    async fn delete_only(&self) -> Result<f64, Box<dyn Error>> {
        let store = self.store.clone();
        let began = Instant::now();
        let task = tokio::spawn(async move {
            let stream: Arc<str> = Arc::from("none");
            loop {
                let query = ReadQuery {
                    floor: 0,
                    exclude: SeqRuns::default(),
                    limit: 1000,
                    max_bytes: 8 << 20,
                };
                let rows = store.read("default", &query).await?;
                if rows.is_empty() {
                    return Ok::<_, outbox_core::error::StoreError>(());
                }
                let settled: Vec<_> = rows
                    .iter()
                    .map(|row| Settled {
                        seq: row.seq,
                        id: row.id,
                        stream: Arc::clone(&stream),
                        stream_seq: 1,
                    })
                    .collect();
                store.settle("default", &settled).await?;
            }
        });
        task.await??;
        Ok(rate(ROWS, began))
    }

    /// The relay.
    async fn drain(&self, rows: usize) -> Result<f64, Box<dyn Error>> {
        let relay =
            Relay::new(self.bus.clone(), self.broker.clone()).options(RelayOptions::default());
        let stop = CancellationToken::new();
        let began = Instant::now();
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { relay.run(stop).await }
        });
        while self.exists("SELECT 1 FROM outbox LIMIT 1").await? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let rate = rate(rows, began);
        stop.cancel();
        running.await?;
        let js = self.nats.nats().jetstream().await;
        let stored = js
            .get_stream("BENCH")
            .await?
            .get_info()
            .await?
            .state
            .messages;
        assert_eq!(stored, rows as u64, "every row is in the stream");
        Ok(rate)
    }

    async fn exists(&self, sql: &str) -> Result<bool, Box<dyn Error>> {
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        Ok(self.db.query_one_raw(statement).await?.is_some())
    }

    /// One order transaction, with and without an event.
    async fn transactions(
        &self,
        count: usize,
        how: Publishing,
    ) -> Result<Duration, Box<dyn Error>> {
        let began = Instant::now();
        for number in 0..count {
            const ORDER: &str = "INSERT INTO orders (note) VALUES ('a customer''s order')";
            match how {
                Publishing::Not => {
                    let tx = self.db.begin().await?;
                    tx.execute_unprepared(ORDER).await?;
                    tx.commit().await?;
                }
                Publishing::InTheTransaction => {
                    let tx = self.db.begin().await?;
                    tx.execute_unprepared(ORDER).await?;
                    self.bus.publish(&tx, &event(number, false)).await?;
                    tx.commit().await?;
                }
                Publishing::WithAUnit => {
                    let unit = self.bus.begin().await?;
                    unit.tx().execute_unprepared(ORDER).await?;
                    unit.publish(&event(number, false))?;
                    unit.commit().await?;
                }
            }
        }
        Ok(began.elapsed() / u32::try_from(count)?)
    }
}

#[derive(Debug, Clone, Copy)]
enum Publishing {
    Not,
    InTheTransaction,
    WithAUnit,
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    format!("{:.2} [{low:.2}..{high:.2}]", median(values))
}

/// The resident memory of this process in MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or_default()
        / 1024
}

async fn drain_figures(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let (mut broker, mut database, mut plain, mut keyed) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        bench.fill(ROWS, false).await?;
        broker.push(bench.publish_only().await?);
        bench.fill(ROWS, false).await?;
        database.push(bench.delete_only().await?);
        bench.fill(ROWS, false).await?;
        plain.push(bench.drain(ROWS).await?);
        bench.fill(ROWS, true).await?;
        keyed.push(bench.drain(ROWS).await?);
    }
    let thousands =
        |values: &[f64]| spread(&values.iter().map(|rate| rate / 1000.0).collect::<Vec<_>>());
    let limit = |round: usize| 1.0 / (1.0 / broker[round] + 1.0 / database[round]);
    let against = |values: &[f64]| {
        spread(
            &(0..ROUNDS)
                .map(|round| values[round] / limit(round))
                .collect::<Vec<_>>(),
        )
    };
    println!("drain of {ROWS} rows, thousands a second, median [range] of {ROUNDS} rounds");
    println!("  P  publishing alone           {}", thousands(&broker));
    println!("  D  reading and deleting alone {}", thousands(&database));
    println!(
        "  relay, no keys                {}   to 1/(1/P+1/D): {}",
        thousands(&plain),
        against(&plain)
    );
    println!(
        "  relay, {KEYS} keys              {}   to 1/(1/P+1/D): {}",
        thousands(&keyed),
        against(&keyed)
    );
    Ok(())
}

async fn publish_figures(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let (mut direct, mut unit, mut bare) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let without = bench
            .transactions(1000, Publishing::Not)
            .await?
            .as_secs_f64();
        bare.push(without * 1e6);
        direct.push(
            bench
                .transactions(1000, Publishing::InTheTransaction)
                .await?
                .as_secs_f64()
                / without,
        );
        unit.push(
            bench
                .transactions(1000, Publishing::WithAUnit)
                .await?
                .as_secs_f64()
                / without,
        );
    }
    println!(
        "an order's transaction without an event {} us; with one, as a multiple of that:",
        spread(&bare)
    );
    println!("  bus.publish(&tx, ..)  {}", spread(&direct));
    println!("  unit of work          {}", spread(&unit));
    Ok(())
}

async fn memory_figures(bench: &Bench) -> Result<(), Box<dyn Error>> {
    bench.fill(MEMORY_ROWS, false).await?;
    println!("memory (MiB resident): before {}", resident());
    let relay = Relay::new(bench.bus.clone(), bench.broker.clone());
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { relay.run(stop).await }
    });
    let mut seen = Vec::new();
    while bench.exists("SELECT 1 FROM outbox LIMIT 1").await? {
        seen.push(resident());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    running.await?;
    println!(
        "  relay draining {MEMORY_ROWS} rows, over time:      {}",
        every_tenth(&seen)
    );
    let runtime = bench
        .bus
        .runtime(bench.broker.clone())
        .consumer(Consumer::of(count {}));
    let stop = CancellationToken::new();
    let began = Instant::now();
    let running = tokio::spawn(runtime.run(stop.clone()));
    let mut seen = Vec::new();
    loop {
        seen.push(resident());
        let done = format!("SELECT 1 FROM effects HAVING COUNT(*) >= {MEMORY_ROWS}");
        if bench.exists(&done).await? {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!(
        "  consumer with inbox, {MEMORY_ROWS} messages:        {}",
        every_tenth(&seen)
    );
    println!(
        "  ({:.0} messages a second, 16 at once)",
        rate(MEMORY_ROWS, began)
    );
    stop.cancel();
    running.await??;
    Ok(())
}

fn every_tenth(values: &[u64]) -> String {
    let step = (values.len() / 10).max(1);
    values
        .iter()
        .step_by(step)
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

async fn stop_figures(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        bench.fill(ROWS, false).await?;
        let runtime = bench
            .bus
            .runtime(bench.broker.clone())
            .relay(RelayOptions::default())
            .consumer(Consumer::of(count {}));
        let stop = CancellationToken::new();
        let running = tokio::spawn(runtime.run(stop.clone()));
        let js = bench.nats.nats().jetstream().await;
        eventually("load", LONG, async || {
            let stream = js.get_stream("BENCH").await.ok()?;
            (stream.cached_info().state.messages > 2000).then_some(())
        })
        .await;
        let began = Instant::now();
        stop.cancel();
        running.await??;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    println!(
        "from the stop signal to the end under load: {} ms",
        spread(&times)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let bench = Bench::start().await?;
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let run = |name: &str| wanted.is_empty() || wanted == name;
    if run("drain") {
        drain_figures(&bench).await?;
    }
    if run("publish") {
        publish_figures(&bench).await?;
    }
    if run("stop") {
        stop_figures(&bench).await?;
    }
    if run("memory") {
        memory_figures(&bench).await?;
    }
    Ok(())
}
