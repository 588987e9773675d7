//! Delivering: subscriptions outlive whatever happens to server, link and durable.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull;
use outbox_core::broker::{
    Broker, BrokerErrorKind, ConsumerSpec, DeliveryHandle, Publisher, Subscription,
};
use outbox_nats::{JetStream, JetStreamSubscription};
use outbox_tests::{Direction, NatsConfig, NatsServer, Proxy, eventually};

use super::{
    RECOVERY, SOON, publish, publish_at_last, publisher, pull as pull_one, shop, spec, text,
};

/// Leaves a pull request at the server, as a consumer that has been idle.
async fn idle(subscription: &mut JetStreamSubscription) {
    let pulled = tokio::time::timeout(Duration::from_millis(500), subscription.pull(4)).await;
    assert!(pulled.is_err());
}

/// Publishes past whatever is broken and waits for the delivery.
async fn resumes(server: &NatsServer, subscription: &mut JetStreamSubscription, what: &str) {
    let direct = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&direct).await;
    let start = Instant::now();
    let publishing = publish_at_last(&publisher, "shop.a", what);
    let (delivered, ()) = tokio::join!(pull_one(subscription, RECOVERY), publishing);
    assert_eq!(text(&delivered), what);
    eprintln!("{what}: delivered after {:?}", start.elapsed());
    // The old connection of a handle does not matter.
    eventually("an acknowledgement", RECOVERY, async || {
        delivered.handle.ack().await
    })
    .await;
}

#[tokio::test]
async fn delivery_resumes_after_a_restart_of_the_server() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    idle(&mut subscription).await;
    server.kill();
    server.restart().await;
    resumes(&server, &mut subscription, "after a kill").await;
    idle(&mut subscription).await;
    server.stop().await;
    server.restart().await;
    resumes(&server, &mut subscription, "after a stop").await;
    server.freeze();
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.thaw();
    resumes(&server, &mut subscription, "after a pause").await;
}

#[tokio::test]
async fn delivery_resumes_after_the_network_was_cut() {
    let server = NatsServer::start().await;
    let proxy = Proxy::start(server.nats().url()).await;
    let broker = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    idle(&mut subscription).await;
    proxy.cut().await;
    idle(&mut subscription).await;
    proxy.restore().await;
    resumes(&server, &mut subscription, "after a cut").await;
}

/// A link that swallows everything without closing is noticed by its silence.
#[tokio::test]
async fn delivery_resumes_when_a_link_goes_silent() {
    for direction in [Direction::Upstream, Direction::Downstream] {
        let server = NatsServer::start().await;
        let proxy = Proxy::start(server.nats().url()).await;
        let broker = shop()
            .connect(proxy.through(server.nats().url()))
            .await
            .expect("connect");
        let mut subscription = broker
            .subscribe(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe");
        idle(&mut subscription).await;
        proxy.drop_direction(direction);
        // What the server sends now on an old request is lost until the ack wait; so let it expire.
        tokio::time::sleep(Duration::from_secs(9)).await;
        let watching = async {
            // The link is silent until we have noticed; only then does the network come back.
            eventually("the loss is seen", RECOVERY, async || {
                !broker.is_connected()
            })
            .await;
            proxy.restore().await;
        };
        let start = Instant::now();
        tokio::join!(
            resumes(&server, &mut subscription, "after silence"),
            watching
        );
        assert!(start.elapsed() < RECOVERY);
    }
}

#[tokio::test]
async fn a_deleted_durable_is_an_error_and_subscribing_makes_it_again() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let spec = spec("c", &["shop.a"]);
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    idle(&mut subscription).await;
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    stream.delete_consumer("c").await.expect("deleted");
    let error = tokio::time::timeout(SOON, subscription.pull(1))
        .await
        .expect("at once")
        .expect_err("deleted");
    assert!(
        error.to_string().contains("consumer `c` of stream `SHOP`"),
        "{error}"
    );

    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    publish(&publisher, "shop.a", "a").await;
    assert_eq!(text(&pull_one(&mut subscription, SOON).await), "a");

    // The same if nobody waited while it was deleted.
    stream.delete_consumer("c").await.expect("deleted");
    let error = tokio::time::timeout(SOON, subscription.pull(1))
        .await
        .expect("at once")
        .expect_err("gone");
    assert!(
        error.to_string().contains("gone") || error.to_string().contains("deleted"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_comes_back_empty_is_set_up_again() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let spec = spec("c", &["shop.a"]);
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    idle(&mut subscription).await;
    server.wipe().await;
    let error = tokio::time::timeout(RECOVERY, subscription.pull(1))
        .await
        .expect("in time")
        .expect_err("gone");
    assert!(error.to_string().contains("is gone"), "{error}");
    let mut subscription = eventually("a subscription", SOON, async || {
        broker.subscribe(&spec).await
    })
    .await;
    resumes(&server, &mut subscription, "after a wipe").await;
}

/// An answer through a connection that is gone goes over the next one.
#[tokio::test]
async fn an_acknowledgement_survives_a_reconnect() {
    let server = NatsServer::start().await;
    let proxy = Proxy::start(server.nats().url()).await;
    let broker = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    publish(&publisher, "shop.a", "a").await;
    let delivered = pull_one(&mut subscription, SOON).await;
    proxy.pause();
    let acknowledging = tokio::spawn(async move { delivered.handle.ack().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.restore().await;
    proxy.reset().await;
    acknowledging
        .await
        .expect("no panic")
        .expect("acknowledged");
    let pending = subscription.pending().await.expect("pending");
    assert_eq!(pending.unsettled, 0);
}

#[tokio::test]
async fn an_acknowledgement_that_fails_is_an_error() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    publish(&publisher, "shop.a", "a").await;
    let delivered = pull_one(&mut subscription, SOON).await;
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    stream.delete_consumer("c").await.expect("deleted");
    let error = delivered.handle.ack().await.expect_err("nobody listens");
    assert_eq!(error.kind(), BrokerErrorKind::Unavailable);
    server.kill();
    let start = Instant::now();
    delivered
        .handle
        .ack()
        .await
        .expect_err("the server is dead");
    delivered
        .handle
        .in_progress()
        .await
        .expect_err("the server is dead");
    assert!(
        start.elapsed() < Duration::from_secs(7),
        "{:?}",
        start.elapsed()
    );
}

/// What lay here unread for longer than the ack wait belongs to others.
#[tokio::test]
async fn messages_that_waited_too_long_here_are_dropped() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(1),
        ..spec("c", &["shop.a"])
    };
    let mut first = broker.subscribe(&spec).await.expect("subscribe");
    let mut second = broker.subscribe(&spec).await.expect("subscribe");
    // One request for one message: a second delivery goes to the second.
    let waiting = tokio::time::timeout(Duration::from_millis(300), first.pull(1)).await;
    assert!(waiting.is_err());
    publish(&publisher, "shop.a", "a").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // The second gets it after the ack wait; the first must not bring it up as well.
    let delivered = pull_one(&mut second, SOON).await;
    assert_eq!(delivered.deliveries, 2);
    delivered.handle.ack().await.expect("acknowledged");
    let again = tokio::time::timeout(Duration::from_secs(2), first.pull(1)).await;
    assert!(again.is_err(), "{again:?}");
}

/// An operator's limits on requests are kept.
#[tokio::test]
async fn limits_of_the_durable_are_kept() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    let config = pull::Config {
        durable_name: Some("c".to_owned()),
        filter_subject: "shop.a".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_batch: 2,
        max_expires: Duration::from_secs(3),
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.expect("created");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    // Longer than a request may live.
    let waited = tokio::time::timeout(Duration::from_secs(5), subscription.pull(10)).await;
    assert!(waited.is_err(), "{waited:?}");
    let publisher = publisher(&broker).await;
    for number in 0..20 {
        publish(&publisher, "shop.a", &number.to_string()).await;
    }
    let mut seen = 0;
    while seen < 20 {
        let pulled = tokio::time::timeout(SOON, subscription.pull(10))
            .await
            .expect("in time")
            .expect("deliveries");
        seen += pulled.len();
    }
}

/// A request that expires is asked again, for as long as it takes; nothing leaks, nothing doubles.
#[tokio::test]
async fn an_idle_subscription_stays_exact() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    // Beyond the life of two requests, which is 8 s.
    let waited = tokio::time::timeout(Duration::from_secs(18), subscription.pull(8)).await;
    assert!(waited.is_err(), "{waited:?}");
    let publisher = publisher(&broker).await;
    for number in 0..20 {
        publish(&publisher, "shop.a", &number.to_string()).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (12, 8));
}

/// Many deliveries are acknowledged at once, over one inbox.
#[tokio::test]
async fn many_acknowledgements_at_once() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let publishing = futures_util::future::join_all(
        (0..2_000).map(|number| publisher.publish(super::message("shop.a", &number.to_string()))),
    );
    assert!(publishing.await.iter().all(Result::is_ok));
    let mut held = Vec::new();
    while held.len() < 2_000 {
        let demand = 2_000 - held.len();
        held.extend(
            tokio::time::timeout(SOON, subscription.pull(demand))
                .await
                .expect("in time")
                .expect("deliveries"),
        );
    }
    let start = Instant::now();
    let acknowledged =
        futures_util::future::join_all(held.iter().map(|delivered| delivered.handle.ack())).await;
    assert!(acknowledged.iter().all(Result::is_ok));
    eprintln!("2000 acknowledgements: {:?}", start.elapsed());
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (0, 0));
    let _: JetStream = broker;
}

/// Somebody swallows the request, so that neither a message nor a status ever comes.
#[tokio::test]
async fn silence_about_a_request_is_noticed() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let foreign = server.nats().connect().await;
    let _swallowed = foreign
        .subscribe("$JS.API.CONSUMER.MSG.NEXT.SHOP.c")
        .await
        .expect("subscribe");
    foreign.flush().await.expect("flush");
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    stream.delete_consumer("c").await.expect("deleted");
    let pulled = tokio::time::timeout(Duration::from_secs(15), subscription.pull(1)).await;
    let error = pulled.expect("in time").expect_err("gone");
    assert!(error.to_string().contains("is gone"), "{error}");
}

/// Messages that the server sends while it is being told that nobody listens any more arrive, and do
/// not lie there until the ack wait.
#[tokio::test]
async fn what_is_under_way_at_the_end_is_not_lost() {
    tokio::join!(
        ends_while_messages_are_under_way(NatsServer::start().await),
        ends_while_messages_are_under_way(
            NatsServer::start_with(NatsConfig::default().oldest()).await
        ),
    );
}

async fn ends_while_messages_are_under_way(server: NatsServer) {
    let proxy = Proxy::start(server.nats().url()).await;
    proxy.delay(Duration::from_millis(60));
    let far = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    let near = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&near).await;
    // What else the connection does makes it forget what it has unsubscribed from.
    let others = far.clone();
    let others = tokio::spawn(async move {
        loop {
            let _ = others.dead_letter_count().await;
        }
    });
    let spec = spec("c", &["shop.a"]);
    for moment in (0..200).step_by(10) {
        let mut subscription = far.subscribe(&spec).await.expect("subscribe");
        idle(&mut subscription).await;
        let publishing = async {
            tokio::time::sleep(Duration::from_millis(moment)).await;
            for number in 0..3 {
                publish(&publisher, "shop.a", &number.to_string()).await;
            }
        };
        let (rest, ()) = tokio::join!(subscription.close(), publishing);
        let mut seen = rest.len();
        for delivered in rest {
            delivered.handle.ack().await.expect("acknowledged");
        }
        let mut other = near.subscribe(&spec).await.expect("subscribe");
        while seen < 3 {
            let delivered = pull_one(&mut other, SOON).await;
            delivered.handle.ack().await.expect("acknowledged");
            seen += 1;
        }
        other.close().await;
    }
    others.abort();
}
