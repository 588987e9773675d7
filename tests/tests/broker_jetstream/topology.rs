//! Streams and durables: made, compared, changed with notice, or only verified.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use outbox_core::broker::{
    Broker, BrokerError, BrokerErrorKind, ConsumerSpec, DeliveryHandle, StartAt, Subscription,
};
use outbox_nats::{JetStream, StreamSpec, Topology};
use outbox_tests::{Log, NatsServer, create_stream};
use tracing_subscriber::filter::LevelFilter;

use super::{SOON, publish, publisher, pull as pull_one, shop, spec, text};

async fn consumer(server: &NatsServer, name: &str) -> async_nats::jetstream::consumer::Config {
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    stream
        .consumer_info(name)
        .await
        .expect("the consumer")
        .config
}

fn configuration(error: &BrokerError, parts: &[&str]) {
    assert_eq!(error.kind(), BrokerErrorKind::Configuration, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

async fn subscribe_error(broker: &JetStream, spec: &ConsumerSpec) -> BrokerError {
    broker.subscribe(spec).await.map(drop).expect_err("refused")
}

#[tokio::test]
async fn what_the_framework_creates_loses_nothing() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    drop(
        broker
            .subscribe(&spec("c", &["shop.a", "shop.b"]))
            .await
            .expect("subscribe"),
    );
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    let config = &stream.cached_info().config;
    assert_eq!(config.storage, StorageType::File);
    assert_eq!(config.retention, RetentionPolicy::Limits);
    assert_eq!(config.discard, DiscardPolicy::New);
    assert_eq!(
        (config.max_messages, config.max_bytes, config.max_age),
        (-1, -1, Duration::ZERO)
    );

    let config = consumer(&server, "c").await;
    assert_eq!(config.ack_policy, AckPolicy::Explicit);
    assert_eq!(config.deliver_policy, DeliverPolicy::All);
    assert_eq!((config.max_deliver, config.max_ack_pending), (-1, -1));
    assert!(config.backoff.is_empty());
    assert_eq!(config.inactive_threshold, Duration::ZERO);
    assert_eq!(config.filter_subjects, ["shop.a", "shop.b"]);
}

#[tokio::test]
async fn a_stream_is_changed_only_when_that_is_asked_for() {
    let server = NatsServer::start().await;
    let day = Duration::from_secs(86_400);
    shop().connect(server.nats().url()).await.expect("created");
    let wanted = || StreamSpec::new("SHOP", ["shop.>", "mall.>"]).max_age(day);
    let connect = |topology| {
        JetStream::builder()
            .stream(wanted())
            .topology(topology)
            .connect(server.nats().url())
    };
    let settings = async || {
        let jetstream = server.nats().jetstream().await;
        let stream = jetstream.get_stream("SHOP").await.expect("the stream");
        let config = stream.cached_info().config.clone();
        let mut subjects = config.subjects;
        subjects.sort();
        (subjects, config.max_age)
    };

    let error = connect(Topology::Verify)
        .await
        .map(drop)
        .expect_err("differs");
    configuration(
        &error,
        &[
            "stream `SHOP`",
            "`max_age` is not set on the server and 86400s in the code",
            "`subjects`",
            "mall.>",
        ],
    );
    assert_eq!(
        settings().await,
        (vec!["shop.>".to_owned()], Duration::ZERO)
    );

    connect(Topology::Ensure).await.expect("connect");
    assert_eq!(
        settings().await,
        (
            vec!["mall.>".to_owned(), "shop.>".to_owned()],
            Duration::ZERO
        )
    );

    connect(Topology::Apply).await.expect("connect");
    assert_eq!(
        settings().await,
        (vec!["mall.>".to_owned(), "shop.>".to_owned()], day)
    );
    connect(Topology::Verify).await.expect("agrees");

    // Subjects that the code no longer names go only with `Apply`.
    shop().connect(server.nats().url()).await.expect("connect");
    assert_eq!(settings().await.0.len(), 2);
    shop()
        .topology(Topology::Apply)
        .connect(server.nats().url())
        .await
        .expect("connect");
    assert_eq!(settings().await, (vec!["shop.>".to_owned()], day));
}

#[tokio::test]
async fn what_is_missing_is_an_error_when_only_verified() {
    let server = NatsServer::start().await;
    let verify = || {
        shop()
            .topology(Topology::Verify)
            .connect(server.nats().url())
    };
    let error = verify().await.map(drop).expect_err("no stream");
    configuration(&error, &["stream `SHOP` does not exist"]);
    shop().connect(server.nats().url()).await.expect("created");
    let broker = verify().await.expect("connect");
    let error = subscribe_error(&broker, &spec("c", &["shop.a"])).await;
    configuration(&error, &["consumer `c` of stream `SHOP` does not exist"]);
}

#[tokio::test]
async fn overlapping_streams_are_named() {
    let server = NatsServer::start().await;
    create_stream(
        &server.nats().jetstream().await,
        "EVENTS",
        &["shop.orders.>", "other"],
    )
    .await;
    let error = shop()
        .connect(server.nats().url())
        .await
        .map(drop)
        .expect_err("overlap");
    configuration(
        &error,
        &[
            "stream `SHOP`",
            "stream `EVENTS` already carries",
            "shop.orders.>",
        ],
    );
    // Using the existing one works.
    let broker = JetStream::connect(server.nats().url())
        .await
        .expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.orders.placed"]))
        .await
        .expect("subscribe");
    publish(&publisher(&broker).await, "shop.orders.placed", "a").await;
    assert_eq!(text(&pull_one(&mut subscription, SOON).await), "a");
}

#[tokio::test]
async fn a_consumer_needs_one_stream_for_all_its_subjects() {
    let server = NatsServer::start().await;
    let jetstream = server.nats().jetstream().await;
    create_stream(&jetstream, "MALL", &["mall.>"]).await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let error = subscribe_error(&broker, &spec("c", &["shop.a", "street.a"])).await;
    configuration(
        &error,
        &["no stream carries subject `street.a`", "`SHOP` (shop.>)"],
    );
    let error = subscribe_error(&broker, &spec("c", &["shop.a", "mall.a"])).await;
    configuration(
        &error,
        &[
            "`shop.a`",
            "`SHOP`",
            "`mall.a`",
            "`MALL`",
            "different consumer names",
        ],
    );
    let error = subscribe_error(&broker, &spec("a.b", &["shop.a"])).await;
    configuration(&error, &["a.b"]);
}

/// A work-queue stream serves one consumer a subject; the second is told so.
#[tokio::test]
async fn a_work_queue_explains_its_limit() {
    let server = NatsServer::start().await;
    let jetstream = server.nats().jetstream().await;
    let config = Config {
        name: "SHOP".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        retention: RetentionPolicy::WorkQueue,
        ..Config::default()
    };
    jetstream.create_stream(config).await.expect("created");
    let broker = JetStream::connect(server.nats().url())
        .await
        .expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    publish(&publisher(&broker).await, "shop.a", "a").await;
    let delivered = pull_one(&mut subscription, SOON).await;
    delivered.handle.ack().await.expect("acknowledged");
    let error = subscribe_error(&broker, &spec("d", &["shop.a"])).await;
    configuration(&error, &["consumer `d`", "work-queue"]);
    let now = ConsumerSpec {
        start: StartAt::Now,
        ..spec("e", &["shop.b"])
    };
    let error = subscribe_error(&broker, &now).await;
    configuration(&error, &["consumer `e`", "work-queue"]);
}

/// Settings that would strand messages are put right, whoever set them, or named.
#[tokio::test]
async fn a_durable_that_would_strand_messages_is_put_right() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    let config = pull::Config {
        durable_name: Some("c".to_owned()),
        filter_subject: "shop.a".to_owned(),
        max_deliver: 3,
        backoff: vec![Duration::from_secs(1), Duration::from_secs(2)],
        inactive_threshold: Duration::from_secs(3_600),
        max_ack_pending: 500,
        description: Some("made by hand".to_owned()),
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.expect("created");

    let verifying = shop()
        .topology(Topology::Verify)
        .connect(server.nats().url())
        .await
        .expect("connect");
    let error = subscribe_error(&verifying, &spec("c", &["shop.a"])).await;
    configuration(
        &error,
        &[
            "`max_deliver` is 3 on the server and -1 in the code",
            "`backoff`",
            "`inactive_threshold` is 3600s on the server and not set in the code",
        ],
    );
    assert_eq!(consumer(&server, "c").await.max_deliver, 3);

    drop(
        broker
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    let config = consumer(&server, "c").await;
    assert_eq!(
        (config.max_deliver, config.inactive_threshold),
        (-1, Duration::ZERO)
    );
    assert!(config.backoff.is_empty());
    assert_eq!(config.ack_wait, Duration::from_secs(30));
    // What strands nothing is left to the operator.
    assert_eq!(config.max_ack_pending, 500);
    assert_eq!(config.description.as_deref(), Some("made by hand"));
    drop(
        verifying
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("agrees"),
    );
}

/// A message that was delivered more often than a limit allows still comes when the limit is gone.
#[tokio::test]
async fn a_message_beyond_a_former_limit_is_not_forgotten() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let spec = spec("c", &["shop.a"]);
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    publish(&publisher(&broker).await, "shop.a", "a").await;
    for _ in 0..3 {
        let delivered = pull_one(&mut subscription, SOON).await;
        delivered
            .handle
            .nak(Duration::ZERO)
            .await
            .expect("handed back");
    }
    drop(subscription);
    let mut subscription = broker
        .subscribe(&ConsumerSpec {
            ack_wait: Duration::from_secs(5),
            ..spec
        })
        .await
        .expect("subscribe");
    assert_eq!(pull_one(&mut subscription, SOON).await.deliveries, 4);
    assert_eq!(
        consumer(&server, "c").await.ack_wait,
        Duration::from_secs(5)
    );
}

/// New subjects are added; old ones go only when that is asked for, since messages that no filter
/// matches are passed over for good.
#[tokio::test]
async fn filters_grow_and_shrink_only_on_demand() {
    let server = NatsServer::start().await;
    let ensure = shop().connect(server.nats().url()).await.expect("connect");
    let filters = async || {
        let config = consumer(&server, "c").await;
        let mut filters = config.filter_subjects;
        filters.extend(Some(config.filter_subject).filter(|filter| !filter.is_empty()));
        filters.sort();
        filters
    };
    drop(
        ensure
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    drop(
        ensure
            .subscribe(&spec("c", &["shop.b"]))
            .await
            .expect("subscribe"),
    );
    assert_eq!(filters().await, ["shop.a", "shop.b"]);
    let mut subscription = ensure
        .subscribe(&spec("c", &["shop.b"]))
        .await
        .expect("subscribe");
    publish(&publisher(&ensure).await, "shop.a", "a").await;
    assert_eq!(text(&pull_one(&mut subscription, SOON).await), "a");

    let verify = shop()
        .topology(Topology::Verify)
        .connect(server.nats().url())
        .await
        .expect("connect");
    let error = subscribe_error(&verify, &spec("c", &["shop.b"])).await;
    configuration(&error, &["`filter_subjects`", "shop.a"]);

    let apply = shop()
        .topology(Topology::Apply)
        .connect(server.nats().url())
        .await
        .expect("connect");
    drop(
        apply
            .subscribe(&spec("c", &["shop.b"]))
            .await
            .expect("subscribe"),
    );
    assert_eq!(filters().await, ["shop.b"]);
}

/// A subject that is added later begins where the durable stands: what it has passed over is not
/// delivered.
#[tokio::test]
async fn an_added_subject_begins_where_the_durable_stands() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.b", "early").await;
    publish(&publisher, "shop.a", "a").await;
    let delivered = pull_one(&mut subscription, SOON).await;
    delivered.handle.ack().await.expect("acknowledged");
    publish(&publisher, "shop.b", "late").await;
    drop(subscription);
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a", "shop.b"]))
        .await
        .expect("subscribe");
    assert_eq!(text(&pull_one(&mut subscription, SOON).await), "late");
    let pending = subscription.pending().await.expect("pending");
    assert_eq!(pending.waiting, 0);
}

#[tokio::test]
async fn what_cannot_be_changed_is_said() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    drop(
        broker
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    let now = ConsumerSpec {
        start: StartAt::Now,
        ..spec("c", &["shop.a"])
    };
    let error = subscribe_error(&broker, &now).await;
    configuration(
        &error,
        &[
            "consumer `c`",
            "start at the beginning",
            "`StartAt::Now`",
            "cannot be changed",
        ],
    );

    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    let none = pull::Config {
        durable_name: Some("d".to_owned()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    stream.create_consumer(none).await.expect("created");
    let error = subscribe_error(&broker, &spec("d", &["shop.a"])).await;
    configuration(&error, &["consumer `d`", "`ack_policy`"]);
}

#[tokio::test]
async fn a_stream_that_never_confirms_is_refused() {
    let server = NatsServer::start().await;
    let jetstream = server.nats().jetstream().await;
    let config = Config {
        name: "SHOP".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        no_ack: true,
        ..Config::default()
    };
    jetstream.create_stream(config).await.expect("created");
    let broker = JetStream::connect(server.nats().url())
        .await
        .expect("connect");
    let error = subscribe_error(&broker, &spec("c", &["shop.a"])).await;
    configuration(&error, &["stream `SHOP`", "`no_ack`"]);
}

/// Once each, when a consumer takes it.
#[tokio::test]
async fn what_a_stream_can_lose_is_warned_of() {
    let server = NatsServer::start().await;
    let jetstream = server.nats().jetstream().await;
    let config = |name: &str| Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        ..Config::default()
    };
    let streams = [
        (
            Config {
                max_messages: 1_000,
                discard: DiscardPolicy::Old,
                ..config("messages")
            },
            vec!["drops its oldest messages", "`max_msgs`"],
        ),
        (
            Config {
                max_bytes: 1_000_000,
                discard: DiscardPolicy::Old,
                ..config("bytes")
            },
            vec!["drops its oldest messages", "`max_bytes`"],
        ),
        (
            Config {
                max_messages_per_subject: 1,
                discard: DiscardPolicy::Old,
                ..config("subjects")
            },
            vec!["drops the oldest message of a subject"],
        ),
        (
            // Of a subject it drops them all the same.
            Config {
                max_messages_per_subject: 1,
                discard: DiscardPolicy::New,
                ..config("dropping")
            },
            vec!["drops the oldest message of a subject"],
        ),
        (
            Config {
                max_messages_per_subject: 1,
                discard: DiscardPolicy::New,
                discard_new_per_subject: true,
                ..config("strict")
            },
            vec![],
        ),
        (
            Config {
                storage: StorageType::Memory,
                ..config("memory")
            },
            vec!["is kept in memory"],
        ),
        (
            Config {
                retention: RetentionPolicy::Interest,
                ..config("interest")
            },
            vec!["only for consumers that exist"],
        ),
        (
            Config {
                max_messages: 1_000,
                discard: DiscardPolicy::New,
                ..config("refusing")
            },
            vec![],
        ),
        (
            Config {
                discard: DiscardPolicy::Old,
                ..config("boundless")
            },
            vec![],
        ),
        (
            Config {
                retention: RetentionPolicy::WorkQueue,
                ..config("queue")
            },
            vec![],
        ),
    ];
    let (log, _guard) = Log::of_this_thread(LevelFilter::INFO);
    let warnings = || {
        let mut lines = log.lines();
        lines.retain(|line| line.contains("WARN") || line.contains("ERROR"));
        lines
    };
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    drop(
        broker
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    drop(
        broker
            .subscribe_replays(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    assert_eq!(warnings(), [""; 0], "of what the framework made");
    for (config, expected) in streams {
        let (name, before) = (config.name.clone(), warnings().len());
        jetstream.create_stream(config).await.expect("created");
        for _ in 0..2 {
            let subject = format!("{name}.a");
            drop(
                broker
                    .subscribe(&spec("c", &[&subject]))
                    .await
                    .expect("subscribe"),
            );
        }
        let found = &warnings()[before..];
        assert_eq!(found.len(), usize::from(!expected.is_empty()), "{found:?}");
        for part in [&[format!("`{name}`").as_str()], &expected[..]].concat() {
            assert!(found.iter().all(|line| line.contains(part)), "{found:?}");
        }
    }
}

#[tokio::test]
async fn the_horizon_is_the_age_of_the_stream() {
    let server = NatsServer::start().await;
    let week = Duration::from_secs(7 * 86_400);
    let broker = JetStream::builder()
        .stream(StreamSpec::new("SHOP", ["shop.>"]).max_age(week))
        .connect(server.nats().url())
        .await
        .expect("connect");
    let horizon = broker.redelivery_horizon(&spec("c", &["shop.a"])).await;
    assert_eq!(horizon.expect("a horizon"), Some(week));
}

/// Processes that start at the same time agree.
#[tokio::test]
async fn many_may_start_at_once() {
    let server = NatsServer::start().await;
    let start = async || {
        let broker = shop().connect(server.nats().url()).await.expect("connect");
        let subscription = broker
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe");
        drop(
            broker
                .subscribe_replays(&spec("c", &["shop.a"]))
                .await
                .expect("subscribe"),
        );
        subscription.pending().await.expect("pending");
    };
    futures_util::future::join_all((0..8).map(|_| start())).await;
}
