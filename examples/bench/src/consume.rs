//! How fast messages are handled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::jetstream::{AckKind, consumer::pull};
use futures_util::{StreamExt, TryStreamExt, future::try_join_all};
use outbox_core::{Consumer, HandlerError, Relay, State, handler, store::InboxStore};
use outbox_seaorm::SeaOrm;
use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Outcome, Plan,
    event::{PLAIN, Placed},
    report::{Figure, Report},
    usage::CpuTime,
    world::{STREAM, World},
};

const INSERT: &str = "INSERT INTO effects (number) VALUES (1)";
const LOOK: Duration = Duration::from_millis(5);
/// Messages of a measurement, a message at a time and many at a time.
const FEW: usize = 2_000;

/// Counts what was handled.
#[derive(Debug, Clone, Default)]
struct Handled(Arc<AtomicUsize>);

impl Handled {
    fn add(&self, messages: usize) {
        self.0.fetch_add(messages, Ordering::Relaxed);
    }
}

#[handler(consumer = "nothing")]
async fn nothing(_: Placed, handled: State<Handled>) -> Result<(), HandlerError> {
    handled.add(1);
    Ok(())
}

#[handler(consumer = "insert")]
async fn insert(
    _: Placed,
    tx: &DatabaseTransaction,
    handled: State<Handled>,
) -> Result<(), HandlerError> {
    tx.execute_unprepared(INSERT).await?;
    handled.add(1);
    Ok(())
}

#[handler(consumer = "insert-batches", batch = 100)]
async fn insert_batches(
    placed: Vec<Placed>,
    tx: &DatabaseTransaction,
    handled: State<Handled>,
) -> Result<(), HandlerError> {
    let rows = vec!["(1)"; placed.len()].join(", ");
    tx.execute_unprepared(&format!("INSERT INTO effects (number) VALUES {rows}"))
        .await?;
    handled.add(placed.len());
    Ok(())
}

#[handler(consumer = "insert-batches-singly", batch = 100)]
async fn insert_batches_singly(
    placed: Vec<Placed>,
    tx: &DatabaseTransaction,
    handled: State<Handled>,
) -> Result<(), HandlerError> {
    for _ in &placed {
        tx.execute_unprepared(INSERT).await?;
    }
    handled.add(placed.len());
    Ok(())
}

/// Messages a second until all are handled and acknowledged.
async fn ours(
    world: &World,
    consumer: Consumer<SeaOrm, Handled>,
    name: &str,
    messages: usize,
) -> Outcome<f64> {
    world.empty("inbox").await?;
    world.empty("effects").await?;
    let jetstream = world.jetstream().await;
    let stream = jetstream.get_stream(STREAM).await?;
    let _ = stream.delete_consumer(name).await;
    let handled = Handled::default();
    let runtime = world
        .bus
        .runtime(world.broker.clone())
        .state(handled.clone())
        .consumer(consumer);
    let stop = CancellationToken::new();
    let began = Instant::now();
    let running = tokio::spawn(runtime.run(stop.clone()));
    while handled.0.load(Ordering::Relaxed) < messages {
        if running.is_finished() {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let rate = messages as f64 / began.elapsed().as_secs_f64();
    stop.cancel();
    running.await??;
    let recorded = world.count("inbox").await?;
    if usize::try_from(recorded)? < messages {
        return Err(format!("{messages} messages were handled, and {recorded} recorded").into());
    }
    Ok(rate)
}

/// Messages a second of pulling and acknowledging alone, each acknowledgement confirmed.
async fn pull_and_ack(world: &World, concurrency: usize, messages: usize) -> Outcome<f64> {
    let stream = world.jetstream().await.get_stream(STREAM).await?;
    let _ = stream.delete_consumer("raw").await;
    let config = pull::Config {
        durable_name: Some("raw".to_owned()),
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    tokio::spawn(async move {
        let began = Instant::now();
        let pulled = consumer
            .stream()
            .max_messages_per_batch(concurrency.max(2))
            .messages()
            .await?;
        pulled
            .take(messages)
            .map_err(|error| Box::new(error) as Box<dyn std::error::Error + Send + Sync>)
            .try_for_each_concurrent(concurrency, |message| async move {
                message.double_ack_with(AckKind::Ack).await
            })
            .await?;
        Outcome::Ok(messages as f64 / began.elapsed().as_secs_f64())
    })
    .await?
}

/// Transactions a second with the handler's insert, and before it a row in the inbox if `recorded`: what
/// an inbox that is written by hand reaches without a broker.
async fn bare(world: &World, concurrency: usize, messages: usize, recorded: bool) -> Outcome<f64> {
    world.empty("inbox").await?;
    let began = Instant::now();
    let workers = concurrency.min(10);
    let working = (0..workers).map(|_| {
        let (db, store) = (world.db.clone(), world.store.clone());
        // Each in a task of its own, as the handlers are.
        tokio::spawn(async move {
            for _ in 0..messages / workers {
                let tx = db.begin().await?;
                if recorded {
                    store.record(&tx, "by hand", &[Uuid::now_v7()]).await?;
                }
                tx.execute_unprepared(INSERT).await?;
                tx.commit().await?;
            }
            Outcome::Ok(())
        })
    });
    for done in try_join_all(working).await? {
        done?;
    }
    Ok((messages / workers * workers) as f64 / began.elapsed().as_secs_f64())
}

/// Fills the stream with `rows` messages.
async fn fill(world: &World, rows: usize) -> Outcome {
    world.fill(rows, PLAIN).await?;
    let relay = Relay::new(world.bus.clone(), world.broker.clone());
    while world.exists("SELECT 1 FROM outbox LIMIT 1").await? {
        relay.dispatch_batch().await?;
    }
    Ok(())
}

/// Nothing but handlers with one insert, for a profiler, and what they are compared with.
pub(crate) async fn alone(world: &World, plan: &Plan) -> Outcome {
    fill(world, plan.rows).await?;
    for concurrency in [1, 16] {
        for _ in 0..plan.rounds {
            let before = CpuTime::now();
            let rate = bare(world, concurrency, plan.rows, false).await?;
            let cpu = CpuTime::now().each(&before, plan.rows);
            println!(
                "{concurrency} at once, transaction alone: {rate:.0}/s, us of own, database, broker: {cpu:.1?}"
            );
            println!("handlers begin, {concurrency} at once");
            let consumer = Consumer::of(insert {}).concurrency(u32::try_from(concurrency)?);
            let before = CpuTime::now();
            let rate = ours(world, consumer, "insert", plan.rows).await?;
            let cpu = CpuTime::now().each(&before, plan.rows);
            println!("{rate:.0}/s, us of own, database, broker: {cpu:.1?}");
        }
    }
    Ok(())
}

pub(crate) async fn measure(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    fill(world, plan.rows).await?;
    for concurrency in [1_u32, 16, 64] {
        let messages = plan.rows.min(if concurrency == 1 { FEW } else { 4 * FEW });
        let many = concurrency as usize;
        let (mut raw, mut alone, mut recorded) = (vec![], vec![], vec![]);
        let (mut noop, mut one) = (vec![], vec![]);
        let (mut batches, mut singly) = (vec![], vec![]);
        let mut cpu = [vec![], vec![], vec![]];
        for _ in 0..plan.rounds {
            raw.push(pull_and_ack(world, many, messages).await?);
            alone.push(bare(world, many, messages, false).await?);
            recorded.push(bare(world, many, messages, true).await?);
            let consumer = Consumer::of(nothing {}).concurrency(concurrency);
            noop.push(ours(world, consumer, "nothing", messages).await?);
            let consumer = Consumer::of(insert {}).concurrency(concurrency);
            let before = CpuTime::now();
            one.push(ours(world, consumer, "insert", messages).await?);
            for (all, one) in cpu.iter_mut().zip(CpuTime::now().each(&before, messages)) {
                all.push(one);
            }
            if concurrency == 16 {
                let consumer = Consumer::of(insert_batches {});
                batches.push(ours(world, consumer, "insert-batches", plan.rows).await?);
                let consumer = Consumer::of(insert_batches_singly {});
                singly.push(ours(world, consumer, "insert-batches-singly", plan.rows).await?);
            }
        }
        let scenario = format!("consume, {concurrency} at once");
        let figure = |name: &str| Figure::new(world.name(), &scenario, name, "/s");
        report.add(figure("pull and acknowledge alone").of(raw.clone()));
        report.add(figure("one transaction with one insert alone").of(alone.clone()));
        let by_hand = figure("one transaction with an inbox row and one insert, no broker");
        report.add(by_hand.of(recorded.clone()).against("transaction", &alone));
        let noop = figure("no-op handler, inbox").of(noop);
        report.add(noop.against("transaction", &alone).against("pull", &raw));
        let inserting = figure("handler with one insert, inbox").of(one.clone());
        report.add(
            inserting
                .against("transaction", &alone)
                .against("transaction with an inbox row", &recorded)
                .against("pull", &raw),
        );
        for (name, values) in ["own", "database", "broker"].into_iter().zip(cpu) {
            let name = format!("handler with one insert: CPU, {name}");
            report.add(Figure::new(world.name(), &scenario, &name, "us").of(values));
        }
        if concurrency == 16 {
            let together = figure("batches of 100, one insert a batch").of(batches);
            report.add(
                together
                    .against("single handler", &one)
                    .against("pull", &raw),
            );
            let singly = figure("batches of 100, one insert a message").of(singly);
            report.add(singly.against("single handler", &one).against("pull", &raw));
        }
    }
    Ok(())
}
