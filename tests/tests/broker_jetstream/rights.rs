//! Missing rights are named at once, and few are needed.

use std::time::{Duration, Instant};

use outbox_core::broker::{
    Broker, BrokerErrorKind, DeadLetter, DeadReason, DeliveryHandle, FailureKind, Publisher,
    Subscription,
};
use outbox_nats::{JetStream, StreamSpec, Topology};
use outbox_tests::{NatsConfig, NatsServer, create_stream};
use time::OffsetDateTime;

use super::{SOON, message, publish, publisher, pull, shop, spec, text};

const ALL: &str = r#"{ publish: ">", subscribe: ">" }"#;

async fn server(permissions: &str) -> NatsServer {
    let config = NatsConfig::default()
        .user_with_permissions("admin", "admin", ALL)
        .user_with_permissions("app", "app", permissions);
    NatsServer::start_with(config).await
}

fn url(server: &NatsServer, user: &str) -> String {
    server
        .nats()
        .url()
        .replace("nats://", &format!("nats://{user}:{user}@"))
}

async fn admin(server: &NatsServer) -> async_nats::jetstream::Context {
    let options =
        async_nats::ConnectOptions::with_user_and_password("admin".into(), "admin".into());
    async_nats::jetstream::new(server.nats().connect_with(options).await)
}

#[tokio::test]
async fn a_subject_that_may_not_be_published_to_is_rejected_at_once() {
    let server = server(r#"{ publish: ["shop.good"], subscribe: ["_INBOX.>"] }"#).await;
    create_stream(&admin(&server).await, "SHOP", &["shop.>"]).await;
    let broker = JetStream::connect(url(&server, "app"))
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    for _ in 0..3 {
        let start = Instant::now();
        let (bad, good) = tokio::join!(
            publisher.publish(message("shop.bad", "a")),
            publisher.publish(message("shop.good", "a")),
        );
        let failure = bad.expect_err("refused");
        assert_eq!(failure.kind(), FailureKind::Rejected);
        assert!(
            failure
                .to_string()
                .contains("Permissions Violation for Publish to \"shop.bad\""),
            "{failure}"
        );
        good.expect("published");
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    }
    // Without the right to ask, the stream is not called dead.
    publisher.probe("shop.good").await.expect("no verdict");
}

#[tokio::test]
async fn an_inbox_that_may_not_be_read_is_named() {
    let server = server(r#"{ publish: [">"], subscribe: ["_INBOX_app.>"] }"#).await;
    create_stream(&admin(&server).await, "SHOP", &["shop.>"]).await;
    let error = JetStream::connect(url(&server, "app")).await.map(drop);
    if let Err(error) = &error {
        assert!(
            error
                .to_string()
                .contains("Permissions Violation for Subscription"),
            "{error}"
        );
    }
    let broker = JetStream::builder()
        .wait_for_server()
        .connect(url(&server, "app"))
        .await;
    if let Ok(broker) = broker {
        let publisher = publisher(&broker).await;
        let failure = publisher
            .publish(message("shop.a", "a"))
            .await
            .expect_err("never confirmed");
        assert_eq!(failure.kind(), FailureKind::Unavailable);
        assert!(
            failure
                .to_string()
                .contains("Permissions Violation for Subscription"),
            "{failure}"
        );
    }
    // With the prefix that the user has, it works.
    let broker = JetStream::builder()
        .inbox_prefix("_INBOX_app")
        .connect(url(&server, "app"))
        .await
        .expect("connect");
    publish(&publisher(&broker).await, "shop.a", "a").await;
}

/// The table in the crate's documentation, as a server sees it.
#[tokio::test]
async fn the_documented_rights_are_enough() {
    let publishing = r#"{ publish: ["shop.>"], subscribe: ["_INBOX_app.>"] }"#;
    let consuming = r#"{
        publish: [
            "$JS.API.CONSUMER.INFO.SHOP.c", "$JS.API.CONSUMER.MSG.NEXT.SHOP.c", "$JS.ACK.SHOP.c.>",
            "$JS.API.CONSUMER.INFO.OUTBOX_DLQ.c-replay", "$JS.API.CONSUMER.MSG.NEXT.OUTBOX_DLQ.c-replay",
            "$JS.ACK.OUTBOX_DLQ.c-replay.>", "$JS.API.STREAM.MSG.DELETE.OUTBOX_DLQ",
            "$JS.API.STREAM.MSG.GET.OUTBOX_DLQ",
            "outbox.dlq.letter.c.>"
        ],
        subscribe: ["_INBOX_app.>"]
    }"#;
    let operating = r#"{
        publish: [
            "$JS.API.STREAM.INFO.OUTBOX_DLQ", "$JS.API.STREAM.MSG.GET.OUTBOX_DLQ",
            "$JS.API.STREAM.MSG.DELETE.OUTBOX_DLQ", "outbox.dlq.replay.>"
        ],
        subscribe: ["_INBOX_app.>"]
    }"#;
    let config = NatsConfig::default()
        .user_with_permissions("admin", "admin", ALL)
        .user_with_permissions("publisher", "publisher", publishing)
        .user_with_permissions("consumer", "consumer", consuming)
        .user_with_permissions("operator", "operator", operating);
    let server = NatsServer::start_with(config).await;
    let spec = spec("c", &["shop.a"]);
    // Somebody with all rights sets it up.
    let setup = shop()
        .connect(url(&server, "admin"))
        .await
        .expect("connect");
    drop(setup.subscribe(&spec).await.expect("subscribe"));
    drop(setup.subscribe_replays(&spec).await.expect("subscribe"));

    let bound = |user: &str| {
        let builder = JetStream::builder()
            .topology(Topology::Verify)
            .inbox_prefix("_INBOX_app")
            .stream(StreamSpec::new("SHOP", ["shop.>"]));
        builder.connect(url(&server, user))
    };
    let start = Instant::now();
    let broker = bound("publisher").await.expect("connect");
    publish(&publisher(&broker).await, "shop.a", "a").await;

    let broker = bound("consumer").await.expect("connect");
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    let mut replays = broker.subscribe_replays(&spec).await.expect("subscribe");
    let delivered = pull(&mut subscription, SOON).await;
    delivered.handle.in_progress().await.expect("sent");
    let letter = DeadLetter {
        consumer: "c".to_owned(),
        origin: delivered.origin.clone(),
        message: delivered.message.clone(),
        reason: DeadReason::Rejected,
        error: "no".to_owned(),
        first_error: None,
        attempts: 1,
        deliveries: 1,
        replays: 0,
        first_failed_at: None,
        dead_at: OffsetDateTime::now_utc(),
    };
    broker.dead_letter(&letter).await.expect("stored");
    broker.dead_letter(&letter).await.expect("stored again");
    assert_eq!(
        broker.redelivery_horizon(&spec).await.expect("a horizon"),
        None
    );
    delivered
        .handle
        .terminate("given up")
        .await
        .expect("terminated");

    let operator = bound("operator").await.expect("connect");
    assert_eq!(operator.dead_letter_count().await.expect("a count"), 1);
    let letters = operator.dead_letters(None, 0, 10).await.expect("letters");
    assert!(operator.replay(letters[0].0).await.expect("replayed"));
    let replayed = pull(&mut replays, SOON).await;
    assert_eq!(text(&replayed), "a");
    replayed.handle.ack().await.expect("acknowledged");
    assert!(
        start.elapsed() < SOON,
        "something timed out: {:?}",
        start.elapsed()
    );
    let stored = outbox_tests::count_messages(&admin(&server).await, "OUTBOX_DLQ").await;
    assert_eq!(stored, 0);
}

#[tokio::test]
async fn the_error_names_the_missing_right() {
    let all_but = |deny: &str| {
        format!(r#"{{ publish: {{ allow: ">", deny: ["{deny}"] }}, subscribe: ">" }}"#)
    };
    for (deny, topology) in [
        ("$JS.API.CONSUMER.INFO.SHOP.c", Topology::Verify),
        ("$JS.API.CONSUMER.INFO.SHOP.c", Topology::Ensure),
        ("$JS.API.CONSUMER.CREATE.>", Topology::Ensure),
    ] {
        let server = server(&all_but(deny)).await;
        create_stream(&admin(&server).await, "SHOP", &["shop.>"]).await;
        let builder = JetStream::builder().topology(topology);
        let broker = builder.connect(url(&server, "app")).await.expect("connect");
        let start = Instant::now();
        let error = broker
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect_err("refused");
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}: {error}",
            start.elapsed()
        );
        assert_eq!(error.kind(), BrokerErrorKind::Configuration);
        let right = deny.trim_end_matches('>');
        assert!(error.to_string().contains(right), "{error}");
    }
}

#[tokio::test]
async fn a_refused_pull_and_a_refused_acknowledgement_show() {
    let all_but = |deny: &str| {
        format!(r#"{{ publish: {{ allow: ">", deny: ["{deny}"] }}, subscribe: ">" }}"#)
    };

    let server = server(&all_but("$JS.API.CONSUMER.MSG.NEXT.>")).await;
    let broker = shop().connect(url(&server, "app")).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let pulled = tokio::time::timeout(Duration::from_secs(5), subscription.pull(1)).await;
    let error = pulled.expect("in time").expect_err("refused");
    assert_eq!(error.kind(), BrokerErrorKind::Configuration);
    assert!(
        error
            .to_string()
            .contains("Permissions Violation for Publish to"),
        "{error}"
    );

    let server = self::server(&all_but("$JS.ACK.>")).await;
    let broker = shop().connect(url(&server, "app")).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    publish(&publisher(&broker).await, "shop.a", "a").await;
    let delivered = pull(&mut subscription, SOON).await;
    for _ in 0..2 {
        let start = Instant::now();
        let error = delivered.handle.ack().await.expect_err("refused");
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(error.kind(), BrokerErrorKind::Configuration);
        assert!(
            error.to_string().contains("Permissions Violation"),
            "{error}"
        );
    }
    delivered
        .handle
        .in_progress()
        .await
        .expect_err("refused before");
}

/// Acknowledgements in the newer form reach the server as well.
#[tokio::test]
async fn newer_acknowledgements_work() {
    let flag = "feature_flags { js_ack_fc_v2: true }";
    let server = NatsServer::start_with(NatsConfig::default().extra(flag)).await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    publish(&publisher(&broker).await, "shop.a", "a").await;
    let delivered = pull(&mut subscription, SOON).await;
    eprintln!("{:?}", delivered.handle);
    assert_eq!(
        (delivered.origin.stream.as_str(), delivered.origin.sequence),
        ("SHOP", 1)
    );
    delivered.handle.ack().await.expect("acknowledged");
    let pending = subscription.pending().await.expect("pending");
    assert_eq!(pending.unsettled, 0);
}
