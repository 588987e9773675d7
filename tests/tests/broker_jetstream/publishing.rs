//! Publishing: what is not confirmed is told apart.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use outbox_core::broker::{FailureKind, PublishFailure, Publisher};
use outbox_nats::{JetStream, JetStreamPublisher, StreamSpec, Topology};
use outbox_tests::{
    NatsConfig, NatsServer, Proxy, count_messages, create_stream, eventually, read_stream,
};

use super::{RECOVERY, SOON, message, publish, publisher, shop};

async fn failure(publisher: &JetStreamPublisher, subject: &str, text: &str) -> PublishFailure {
    let start = Instant::now();
    let failure = publisher
        .publish(message(subject, text))
        .await
        .expect_err("refused");
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}: {failure}",
        start.elapsed()
    );
    failure
}

#[tokio::test]
async fn a_subject_without_stream_is_named_until_there_is_one() {
    let server = NatsServer::start().await;
    let broker = JetStream::connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    let failure = failure(&publisher, "shop.a", "a").await;
    assert_eq!(failure.kind(), FailureKind::NoStream);
    assert!(failure.to_string().contains("shop.a"), "{failure}");
    assert_eq!(
        publisher
            .probe("shop.a")
            .await
            .expect_err("no stream")
            .kind(),
        FailureKind::NoStream
    );

    create_stream(&server.nats().jetstream().await, "SHOP", &["shop.>"]).await;
    publish(&publisher, "shop.a", "a").await;
    publisher.probe("shop.a").await.expect("it answers");
}

#[tokio::test]
async fn a_configured_stream_comes_back() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    server.wipe().await;
    super::publish_at_last(&publisher, "shop.a", "b").await;
    assert_eq!(
        count_messages(&server.nats().jetstream().await, "SHOP").await,
        1
    );
}

#[tokio::test]
async fn a_verified_stream_is_not_made_again() {
    let server = NatsServer::start().await;
    let jetstream = server.nats().jetstream().await;
    create_stream(&jetstream, "SHOP", &["shop.>"]).await;
    let broker = shop()
        .topology(Topology::Verify)
        .connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    jetstream.delete_stream("SHOP").await.expect("deleted");
    for _ in 0..5 {
        assert_eq!(
            failure(&publisher, "shop.a", "a").await.kind(),
            FailureKind::NoStream
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_full_stream_is_not_the_fault_of_the_message() {
    let server = NatsServer::start().await;
    let stream = StreamSpec::new("SHOP", ["shop.>"]).max_messages(2);
    let broker = JetStream::builder()
        .stream(stream)
        .connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    publish(&publisher, "shop.a", "b").await;
    let failure = failure(&publisher, "shop.a", "c").await;
    assert_eq!(failure.kind(), FailureKind::Unavailable);
    assert!(failure.to_string().contains("10077"), "{failure}");

    let jetstream = server.nats().jetstream().await;
    let stream = jetstream.get_stream("SHOP").await.expect("the stream");
    stream.delete_message(1).await.expect("deleted");
    publish(&publisher, "shop.a", "c").await;
}

/// A stream that keeps one message a subject refuses that subject, not the others.
#[tokio::test]
async fn a_full_subject_is_not_a_full_stream() {
    let server = NatsServer::start().await;
    let stream = StreamSpec::new("SHOP", ["shop.>"])
        .setting("max_msgs_per_subject", 1.into())
        .setting("discard_new_per_subject", true.into());
    let broker = JetStream::builder()
        .stream(stream)
        .connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    let failure = failure(&publisher, "shop.a", "b").await;
    assert_eq!(failure.kind(), FailureKind::Rejected, "{failure}");
    publish(&publisher, "shop.b", "b").await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_rejected_alone() {
    let server = NatsServer::start_with(NatsConfig::default().max_payload(10_000)).await;
    let stream = StreamSpec::new("SHOP", ["shop.>"]).setting("max_msg_size", 5_000.into());
    let broker = JetStream::builder()
        .stream(stream)
        .connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    for size in [5_000, 9_900, 10_000, 20_000] {
        let failure = failure(&publisher, "shop.a", &"x".repeat(size)).await;
        assert_eq!(failure.kind(), FailureKind::Rejected, "{size}: {failure}");
    }
    publish(&publisher, "shop.a", "small").await;

    let mut long = message("shop.a", "a");
    for number in 0..70 {
        long.headers.append(format!("h{number}"), "x".repeat(1_000));
    }
    let failure = publisher.publish(long).await.expect_err("refused");
    assert_eq!(failure.kind(), FailureKind::Rejected, "{failure}");
}

#[tokio::test]
async fn headers_over_the_limit_are_rejected() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let mut long = message("shop.a", "a");
    for number in 0..70 {
        long.headers.append(format!("h{number}"), "x".repeat(1_000));
    }
    let failure = publisher.publish(long).await.expect_err("refused");
    assert_eq!(failure.kind(), FailureKind::Rejected, "{failure}");
    assert!(failure.to_string().contains("10097"), "{failure}");
}

#[tokio::test]
async fn headers_that_cannot_be_sent_are_rejected_alone() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    for (name, value) in [
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x\r\n", "a"),
        ("", "a"),
        ("a:b", "c"),
        ("ä", "a"),
    ] {
        let mut bad = message("shop.a", "a");
        bad.headers.append(name, value);
        let failure = publisher.publish(bad).await.expect_err("refused");
        assert_eq!(failure.kind(), FailureKind::Rejected, "{name:?}");
        assert!(!failure.to_string().contains('\n'));
    }
    publish(&publisher, "shop.a", "good").await;
}

/// Something that answers on a subject is not taken for a stream.
#[tokio::test]
async fn a_foreign_answer_is_no_confirmation() {
    use futures_util::StreamExt;
    let server = NatsServer::start().await;
    let broker = JetStream::connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    let foreign = server.nats().connect().await;
    let mut questions = foreign.subscribe("shop.a").await.expect("subscribe");
    foreign.flush().await.expect("flush");
    tokio::spawn(async move {
        while let Some(question) = questions.next().await {
            let reply = question.reply.expect("a reply subject");
            foreign
                .publish(reply, "thanks".into())
                .await
                .expect("published");
        }
    });
    eventually("a foreign answer", SOON, async || {
        let failure = publisher
            .publish(message("shop.a", "a"))
            .await
            .expect_err("no stream");
        if failure.kind() == FailureKind::NoStream {
            Err("not yet")
        } else {
            Ok(failure)
        }
    })
    .await;
    let failure = failure(&publisher, "shop.a", "a").await;
    assert_eq!(failure.kind(), FailureKind::TimedOut);
    assert!(
        failure.to_string().contains("other than a stream"),
        "{failure}"
    );
}

/// When the server dies, what is under way ends at once, and nothing waits for a time-out.
#[tokio::test]
async fn a_dying_server_ends_what_is_under_way() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    server.freeze();
    let under_way: Vec<_> = (0..200)
        .map(|_| tokio::spawn(publisher.publish(message("shop.a", "b"))))
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = Instant::now();
    server.kill();
    for result in join_all(under_way).await {
        let failure = result.expect("no panic").expect_err("the server is dead");
        assert_eq!(failure.kind(), FailureKind::Disconnected, "{failure}");
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    eventually("the loss is seen", SOON, async || !publisher.connected()).await;
    assert_eq!(
        failure(&publisher, "shop.a", "c").await.kind(),
        FailureKind::Disconnected
    );
    assert_eq!(
        publisher.probe("shop.a").await.expect_err("down").kind(),
        FailureKind::Disconnected
    );

    server.restart().await;
    super::publish_at_last(&publisher, "shop.a", "d").await;
}

/// A server that does not answer is given up after the time-out, and counts as lost later.
#[tokio::test]
async fn a_silent_server_times_out() {
    let server = NatsServer::start().await;
    let broker = shop()
        .ack_timeout(Duration::from_secs(1))
        .ping_interval(Duration::from_secs(1))
        .connect(server.nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    server.freeze();
    let start = Instant::now();
    let failure = publisher
        .publish(message("shop.a", "b"))
        .await
        .expect_err("no answer");
    assert_eq!(failure.kind(), FailureKind::TimedOut);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    eventually("the loss is seen", SOON, async || !publisher.connected()).await;
    server.thaw();
    super::publish_at_last(&publisher, "shop.a", "c").await;
}

/// What had not left when the connection broke is not sent by the next one.
#[tokio::test]
async fn nothing_is_sent_late() {
    let server = NatsServer::start().await;
    let proxy = Proxy::start(server.nats().url()).await;
    let broker = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    proxy.pause();
    let large = "x".repeat(500_000);
    let under_way: Vec<_> = (0..200)
        .map(|_| tokio::spawn(publisher.publish(message("shop.a", &large))))
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.cut().await;
    for result in join_all(under_way).await {
        let failure = result.expect("no panic").expect_err("the link is cut");
        assert_eq!(failure.kind(), FailureKind::Disconnected, "{failure}");
    }
    // Nor is anything kept that is published while the link is down.
    for _ in 0..20 {
        assert_eq!(
            failure(&publisher, "shop.a", "late").await.kind(),
            FailureKind::Disconnected
        );
    }
    proxy.restore().await;
    super::publish_at_last(&publisher, "shop.a", "last").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stored = read_stream(&server.nats().jetstream().await, "SHOP").await;
    assert_eq!(
        stored.len(),
        2,
        "{:?}",
        stored
            .iter()
            .map(|message| message.payload.len())
            .collect::<Vec<_>>()
    );
}

/// The same when the next connection is made at once: what was queued does not wait for it.
#[tokio::test]
async fn nothing_queued_survives_a_reconnect() {
    let server = NatsServer::start().await;
    let proxy = Proxy::start(server.nats().url()).await;
    let broker = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    publish(&publisher, "shop.a", "a").await;
    proxy.pause();
    let large = "x".repeat(500_000);
    let under_way: Vec<_> = (0..200)
        .map(|_| tokio::spawn(publisher.publish(message("shop.a", &large))))
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.reset().await;
    proxy.restore().await;
    for result in join_all(under_way).await {
        let failure = result.expect("no panic").expect_err("the link was cut");
        assert_eq!(failure.kind(), FailureKind::Disconnected, "{failure}");
    }
    super::publish_at_last(&publisher, "shop.a", "last").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stored = count_messages(&server.nats().jetstream().await, "SHOP").await;
    assert_eq!(stored, 2);
}

/// A publisher has a connection of its own, which closes when it is dropped, futures or not.
#[tokio::test]
async fn dropping_a_publisher_closes_its_connection() {
    let server = NatsServer::start().await;
    let proxy = Proxy::start(server.nats().url()).await;
    let broker = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    assert_eq!(proxy.connections(), 1);
    let publisher = publisher(&broker).await;
    assert_eq!(proxy.connections(), 2);
    let unpolled = publisher.publish(message("shop.a", "unpolled"));
    drop(publisher);
    eventually("its connection is closed", SOON, async || {
        proxy.connections() == 1
    })
    .await;
    let failure = unpolled.await.expect_err("closed");
    assert_eq!(failure.kind(), FailureKind::Disconnected);

    // Also while there is no connection: it does not come back.
    let publisher = super::publisher(&broker).await;
    proxy.cut().await;
    eventually("the loss is seen", SOON, async || !publisher.connected()).await;
    drop(publisher);
    proxy.restore().await;
    eventually("the broker's connection is back", RECOVERY, async || {
        broker.is_connected()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(proxy.connections(), 1);
    drop(broker);
    eventually("all is closed", SOON, async || proxy.connections() == 0).await;
    assert_eq!(
        count_messages(&server.nats().jetstream().await, "SHOP").await,
        0
    );
}

/// Messages are handed over in the order of the first polls, however many there are.
#[tokio::test]
async fn the_order_of_first_polls_is_kept() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let texts: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    let published = join_all(
        texts
            .iter()
            .map(|text| publisher.publish(message("shop.a", text))),
    )
    .await;
    assert!(published.iter().all(Result::is_ok));
    let stored = read_stream(&server.nats().jetstream().await, "SHOP").await;
    let stored: Vec<_> = stored
        .iter()
        .map(|message| message.text().to_owned())
        .collect();
    assert_eq!(stored, texts);
}

/// The id goes along under the name that JetStream's duplicate window reads.
#[tokio::test]
async fn the_id_is_the_message_id() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let publisher = publisher(&broker).await;
    let message = message("shop.a", "a");
    let id = message.id.expect("an id");
    publisher.publish(message).await.expect("published");
    let stored = read_stream(&server.nats().jetstream().await, "SHOP").await;
    assert_eq!(
        stored[0].header("Nats-Msg-Id"),
        Some(id.hyphenated().to_string().as_str())
    );
}

/// Links that break every moment: it always ends, and the stream is complete.
#[tokio::test]
async fn a_link_that_breaks_all_the_time_loses_nothing() {
    let server = NatsServer::start().await;
    let proxy = Proxy::start(server.nats().url()).await;
    let broker = shop()
        .connect(proxy.through(server.nats().url()))
        .await
        .expect("connect");
    let breaking = async {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            proxy.reset().await;
        }
    };
    let publishing = async {
        let mut number = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            // A new publisher now and then, as a relay that starts and stops.
            let publisher = super::publisher(&broker).await;
            for _ in 0..20 {
                super::publish_at_last(&publisher, "shop.a", &number.to_string()).await;
                number += 1;
            }
        }
        number
    };
    let (published, ()) = tokio::join!(publishing, breaking);
    let stored = read_stream(&server.nats().jetstream().await, "SHOP").await;
    assert_eq!(stored.len(), published);
}
