//! What is refused at the start, and what is waited for.

use std::time::{Duration, Instant};

use outbox_core::{
    BuildError, Bus, Consumer, HandlerError, IntegrationEvent, RuntimeError,
    broker::BrokerErrorKind, handler,
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, Log, Postgres, Proxy, TestDatabase, eventually, on_every_database};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::LevelFilter;

use crate::shop::{DEADLINE, Script, Shop, shipping};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "elsewhere.things.happened")]
struct Elsewhere {}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.things.happened")]
struct Happened {}

#[handler(consumer = "things")]
async fn first(_: Happened) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "things", max_attempts = 3)]
async fn second(_: Happened) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "things", max_attempts = 7)]
async fn of_elsewhere(_: Elsewhere) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "things")]
async fn several_of_elsewhere(_: Vec<Elsewhere>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "others")]
async fn of_another_consumer(_: Elsewhere) -> Result<(), HandlerError> {
    Ok(())
}

async fn refused(shop: &Shop, consumers: Vec<Consumer<SeaOrm, ()>>) -> RuntimeError {
    let mut runtime = shop.bus.runtime(shop.broker.clone());
    for consumer in consumers {
        runtime = runtime.consumer(consumer);
    }
    runtime
        .run(CancellationToken::new())
        .await
        .expect_err("it must not start")
}

/// Consumers that are put together wrongly are refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_consumer_is_refused_at_the_start() {
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let error = refused(&shop, vec![Consumer::of(first {}).handler(second {})]).await;
    assert!(
        matches!(
            error,
            RuntimeError::Build(BuildError::SameEvent {
                event: "shop.things.happened",
                ..
            })
        ),
        "{error}"
    );
    let error = refused(
        &shop,
        vec![Consumer::of(second {}).handler(of_elsewhere {})],
    )
    .await;
    assert!(
        matches!(
            error,
            RuntimeError::Build(BuildError::Conflict {
                option: "max_attempts",
                ..
            })
        ),
        "{error}"
    );
    let error = refused(
        &shop,
        vec![Consumer::of(first {}).handler(of_another_consumer {})],
    )
    .await;
    assert!(
        matches!(
            error,
            RuntimeError::Build(BuildError::OtherConsumer {
                other: "others",
                ..
            })
        ),
        "{error}"
    );
    let error = refused(&shop, vec![Consumer::of(first {}), Consumer::of(second {})]).await;
    assert!(
        matches!(
            error,
            RuntimeError::Build(BuildError::Twice { consumer: "things" })
        ),
        "{error}"
    );
    let mixed = Consumer::of(first {}).handler(several_of_elsewhere {});
    let error = refused(&shop, vec![mixed]).await;
    assert!(
        matches!(error, RuntimeError::Build(BuildError::Mixed { .. })),
        "{error}"
    );
    let error = refused(&shop, vec![Consumer::of(first {}).batch(10)]).await;
    assert!(
        matches!(
            error,
            RuntimeError::Build(BuildError::NoBatches {
                option: "batch",
                ..
            })
        ),
        "{error}"
    );
    let inner = Consumer::without_inbox(first {}).layer_inside(tower::layer::util::Identity::new());
    let error = refused(&shop, vec![inner]).await;
    assert!(
        matches!(error, RuntimeError::Build(BuildError::InnerLayer { .. })),
        "{error}"
    );
}

/// A subject that no stream carries is refused with its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_no_stream_carries_is_refused_at_the_start() {
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let error = refused(&shop, vec![Consumer::of(of_another_consumer {})]).await;
    let RuntimeError::Broker(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.kind(), BrokerErrorKind::Configuration, "{error}");
    assert!(
        error.to_string().contains("elsewhere.things.happened"),
        "{error}"
    );
}

/// A runtime that cannot start says why, in the log and in its health, to who does not await it, too.
#[tokio::test]
async fn a_runtime_that_cannot_start_says_why_in_log_and_health() {
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let empty = Database::Sqlite.fresh().await;
    let (log, _guard) = Log::of_this_thread(LevelFilter::INFO);
    let bus_without_tables = Bus::new(SeaOrm::new(empty.connection.clone()));
    let twice = || Consumer::of(first {});
    let runtimes = [
        (
            bus_without_tables.runtime(shop.broker.clone()),
            "SeaOrm::migrate",
        ),
        (
            shop.bus
                .runtime(shop.broker.clone())
                .consumer(Consumer::of(of_another_consumer {})),
            "elsewhere.things.happened",
        ),
        (
            shop.bus
                .runtime(shop.broker.clone())
                .consumer(twice())
                .consumer(twice()),
            "mounted twice",
        ),
    ];
    for (runtime, why) in runtimes {
        let health = runtime.health();
        assert_eq!(health.report().problems, ["the runtime is not running"]);
        let runtime = runtime.relay(crate::shop::relay());
        tokio::spawn(runtime.run(CancellationToken::new()))
            .await
            .unwrap()
            .expect_err("it must not start");
        let report = health.report();
        assert!(!report.live && !report.ready);
        let problem = report.problems.join("; ");
        assert!(
            problem.contains("the runtime could not start: ") && problem.contains(why),
            "{problem}"
        );
        assert!(
            log.lines().iter().any(|line| line.contains("ERROR")
                && line.contains("the runtime could not start")
                && line.contains(why)),
            "{why}: {:#?}",
            log.lines()
        );
    }
}

/// A runtime that was dropped is not called alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_was_dropped_does_not_live() {
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let runtime = shop.bus.runtime(shop.broker.clone());
    let health = runtime.health();
    let running = tokio::spawn(runtime.run(CancellationToken::new()));
    eventually("it runs", DEADLINE, async || health.report().live).await;
    running.abort();
    assert!(running.await.expect_err("aborted").is_cancelled());
    assert!(!health.report().live);
}

on_every_database! {
    /// Missing tables are refused with what to run.
    async fn missing_tables_are_refused_with_what_to_run(db: TestDatabase) {
        let nats = outbox_tests::NatsServer::start().await;
        let broker = crate::shop::connect(&nats).await;
        let bus = Bus::new(SeaOrm::new(db.connection.clone()));
        let error = bus.runtime(broker).run(CancellationToken::new()).await.unwrap_err();
        let RuntimeError::Store(error) = error else { panic!("{error}") };
        let text = format!("{error}: {:?}", std::error::Error::source(&error));
        assert!(text.contains("migrat"), "{text}");
    }

    /// A consumer that is mounted without an inbox handles its messages, without inbox rows.
    async fn a_consumer_without_an_inbox_handles_its_messages(db: TestDatabase) {
        use sea_orm::TransactionTrait;
        let shop = Shop::open(db).await;
        let stop = CancellationToken::new();
        let runtime = shop
            .bus
            .runtime(shop.broker.clone())
            .relay(crate::shop::relay())
            .consumer(Consumer::without_inbox(first {}));
        let running = tokio::spawn(runtime.run(stop.clone()));
        let tx = shop.db.connection.begin().await.unwrap();
        shop.bus.publish_all(&tx, &[Happened {}, Happened {}]).await.unwrap();
        tx.commit().await.unwrap();
        let js = shop.nats.nats().jetstream().await;
        eventually("both settled", DEADLINE, async || {
            let Ok(stream) = js.get_stream("SHOP").await else { return false };
            let Ok(mut durable) = stream.get_consumer::<async_nats::jetstream::consumer::pull::Config>("things").await
            else {
                return false;
            };
            let info = durable.info().await.unwrap();
            info.ack_floor.stream_sequence == 2 && info.num_ack_pending == 0
        })
        .await;
        assert_eq!(shop.count("inbox").await, 0);
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    /// R5: a process that starts while its broker is away waits for it, and stops when it is asked to.
    async fn a_start_without_a_broker_waits_for_it(db: TestDatabase) {
        let shop = Shop::open(db).await;
        shop.order(1).await;
        shop.nats.kill();
        let script = Script::always_ship();
        let in_vain = shop.consumer_within(&script, shipping(), Duration::from_secs(2));
        in_vain.stop().await;
        let consumer = shop.consumer(&script, shipping());
        let relay = shop.relay();
        shop.nats.restart().await;
        shop.await_effects([1]).await;
        consumer.stop().await;
        relay.stop().await;
    }
}

/// R9: a database that does not answer holds up the start, and not a stop during it.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_frozen_database_can_be_stopped() {
    let server = Postgres::start().await;
    let db = TestDatabase::on(Database::Postgres, server.create_database().await).await;
    let shop = Shop::open(db).await;
    server.freeze();
    let stop = CancellationToken::new();
    let runtime = shop
        .bus
        .runtime(shop.broker.clone())
        .relay(crate::shop::relay());
    let health = runtime.health();
    let running = tokio::spawn(runtime.run(stop.clone()));
    eventually("it has begun", DEADLINE, async || health.report().live).await;
    let began = Instant::now();
    stop.cancel();
    running.await.unwrap().unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

/// R2, R4 and R9: processes start and stop on a link that breaks all the time. Each stop ends in its
/// time, and nothing is lost or done twice.
#[tokio::test(flavor = "multi_thread")]
async fn starts_and_stops_on_a_link_that_breaks_all_the_time_end() {
    const ROUNDS: i64 = 12;
    let shop = Shop::open(Database::Postgres.fresh().await).await;
    let url = shop.nats.nats().url().to_owned();
    let proxy = Proxy::start(&url).await;
    let through = proxy.through(&url);
    let breaking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            proxy.reset().await;
        }
    });
    let start = async |url: &str| {
        let broker = JetStream::builder()
            .stream(StreamSpec::new("SHOP", ["shop.>"]))
            .ack_timeout(Duration::from_secs(2))
            .wait_for_server()
            .connect(url)
            .await
            .unwrap();
        let stop = CancellationToken::new();
        let runtime = shop
            .bus
            .runtime(broker)
            .state(Script::always_ship())
            .stop_timeout(Duration::from_secs(5))
            .relay(crate::shop::relay())
            .consumer(shipping().ack_wait(Duration::from_secs(1)));
        (stop.clone(), tokio::spawn(runtime.run(stop)))
    };
    for round in 1..=ROUNDS {
        let (stop, running) = start(&through).await;
        shop.order(round).await;
        // Every third process gets on with its work, the others stop at once.
        if round % 3 == 0 {
            shop.await_effects(1..=round).await;
        }
        let began = Instant::now();
        stop.cancel();
        running.await.unwrap().unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "round {round}: {:?}",
            began.elapsed()
        );
    }
    breaking.abort();
    let (stop, running) = start(&url).await;
    shop.await_effects(1..=ROUNDS).await;
    shop.await_empty("outbox").await;
    assert!(shop.dead_letters().await.is_empty());
    stop.cancel();
    running.await.unwrap().unwrap();
}
