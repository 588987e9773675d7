//! What is refused at the start, and what is waited for.

use std::time::Duration;

use outbox_core::{
    BuildError, Bus, Consumer, HandlerError, IntegrationEvent, RuntimeError,
    broker::BrokerErrorKind, handler,
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, TestDatabase, eventually, on_every_database};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

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
