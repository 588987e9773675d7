//! What any client with the right to publish may store, and what that must not do.

use std::time::Duration;

use outbox_core::broker::{
    Broker, ConsumerSpec, DeadLetter, DeadReason, Delivered, DeliveryHandle, Subscription,
};
use outbox_nats::JetStreamDelivery;
use outbox_tests::NatsServer;
use time::OffsetDateTime;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{publish, publisher, shop, spec, text};

/// Publishes without any client library in the way.
async fn publish_raw(url: &str, subject: &[u8], headers: &[u8], payload: &[u8]) {
    let address = url.strip_prefix("nats://").expect("a NATS URL");
    let mut stream = BufReader::new(TcpStream::connect(address).await.expect("connect"));
    let mut info = String::new();
    stream.read_line(&mut info).await.expect("INFO");
    let mut out =
        b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n".to_vec();
    let total = headers.len() + payload.len();
    if headers.is_empty() {
        out.extend(b"PUB ");
        out.extend(subject);
        out.extend(format!(" {total}\r\n").bytes());
    } else {
        out.extend(b"HPUB ");
        out.extend(subject);
        out.extend(format!(" {} {total}\r\n", headers.len()).bytes());
    }
    out.extend(headers);
    out.extend(payload);
    out.extend(b"\r\nPING\r\n");
    stream.write_all(&out).await.expect("write");
    let mut answer = String::new();
    stream.read_line(&mut answer).await.expect("an answer");
    assert_eq!(answer, "PONG\r\n");
}

fn give_up(delivered: &Delivered<JetStreamDelivery>) -> DeadLetter {
    DeadLetter {
        consumer: "c".to_owned(),
        origin: delivered.origin.clone(),
        message: delivered.message.clone(),
        reason: DeadReason::Undecodable,
        error: "no CloudEvent".to_owned(),
        first_error: None,
        attempts: 1,
        deliveries: delivered.deliveries,
        replays: 0,
        first_failed_at: None,
        dead_at: OffsetDateTime::now_utc(),
    }
}

/// Headers that the client does not read end its connection; the messages after them still come,
/// and the bad ones are handed out to be given up.
#[tokio::test]
async fn unreadable_headers_stop_nothing() {
    let server = NatsServer::start().await;
    let url = server.nats().url().to_owned();
    let broker = shop().connect(&url).await.expect("connect");
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(2),
        ..spec("c", &["shop.a"])
    };
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    let mut replays = broker.subscribe_replays(&spec).await.expect("subscribe");
    let publisher = publisher(&broker).await;

    publish(&publisher, "shop.a", "good 1").await;
    let bad: [&[u8]; 5] = [
        b"NATS/1.0\r\nce-id: a\rb\r\n\r\n",
        b"NATS/1.0\r\nce-id: \xff\xfe\r\n\r\n",
        b"NATS/1.0\r\nno colon here\r\n\r\n",
        b"NATS/1.0\r\na b: c\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
    ];
    for headers in bad {
        publish_raw(&url, b"shop.a", headers, b"bad").await;
        publish(&publisher, "shop.a", "good 2").await;
    }
    let (mut good, mut strange) = (0, 0);
    while good < 1 + bad.len() || strange < bad.len() {
        let pulled = tokio::time::timeout(Duration::from_secs(40), subscription.pull(4)).await;
        for delivered in pulled.expect("in time").expect("deliveries") {
            if text(&delivered).starts_with("good") {
                good += 1;
                delivered.handle.ack().await.expect("acknowledged");
                continue;
            }
            strange += 1;
            assert_eq!(text(&delivered), "bad");
            assert_eq!(delivered.message.subject, "shop.a");
            let raw = delivered.message.headers.get("outbox-raw-headers");
            assert!(
                raw.is_some(),
                "{:?}",
                delivered.message.headers.iter().collect::<Vec<_>>()
            );
            broker
                .dead_letter(&give_up(&delivered))
                .await
                .expect("stored");
            delivered
                .handle
                .terminate("unreadable")
                .await
                .expect("terminated");
        }
    }
    let letters = broker.dead_letters(None, 0, 100).await.expect("letters");
    assert_eq!(letters.len(), bad.len());
    assert!(
        letters.iter().all(|(_, letter)| letter
            .message
            .headers
            .get("outbox-raw-headers")
            .is_some())
    );
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (0, 0));

    // A replay of one breaks nothing.
    assert!(broker.replay(letters[0].0).await.expect("replayed"));
    let again = super::pull(&mut replays, Duration::from_secs(10)).await;
    assert_eq!(text(&again), "bad");
}

/// Strange messages that can be read are delivered as they are.
#[tokio::test]
async fn strange_messages_are_delivered() {
    let server = NatsServer::start().await;
    let url = server.nats().url().to_owned();
    let broker = shop().connect(&url).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let publisher = publisher(&broker).await;
    let mut many = b"NATS/1.0\r\n".to_vec();
    for number in 0..1_000 {
        many.extend(format!("h{number}: v\r\n").bytes());
    }
    many.extend(b"\r\n");
    let strange: [(&[u8], &[u8]); 7] = [
        (b"", b"no headers"),
        (b"", b""),
        (b"", b"\xff\xfe\x00"),
        (b"NATS/1.0\r\nce-id: a\r\nce-id: b\r\n\r\n", b"twice"),
        (b"NATS/1.0 503 No Responders\r\n\r\n", b""),
        (b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b""),
        (&many, b"many"),
    ];
    for (headers, payload) in strange {
        publish_raw(&url, b"shop.a", headers, payload).await;
    }
    publish(&publisher, "shop.a", "good").await;
    let mut payloads = Vec::new();
    for _ in 0..=strange.len() {
        let delivered = super::pull(&mut subscription, Duration::from_secs(10)).await;
        assert_eq!(delivered.deliveries, 1);
        payloads.push(delivered.message.payload.clone());
        delivered.handle.ack().await.expect("acknowledged");
    }
    let expected: Vec<&[u8]> = strange
        .iter()
        .map(|(_, payload)| *payload)
        .chain([&b"good"[..]])
        .collect();
    assert_eq!(payloads, expected);
}

/// The same for a subject that is no text, which a consumer with a wildcard receives.
#[tokio::test]
async fn an_unreadable_subject_stops_nothing() {
    let server = NatsServer::start().await;
    let url = server.nats().url().to_owned();
    let broker = shop().connect(&url).await.expect("connect");
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(2),
        ..spec("c", &["shop.>"])
    };
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    publish_raw(&url, b"shop.\xff\xfe", b"", b"bad").await;
    publish(&publisher(&broker).await, "shop.a", "good").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let delivered = super::pull(&mut subscription, Duration::from_secs(40)).await;
        seen.push(text(&delivered).to_owned());
        delivered.handle.ack().await.expect("acknowledged");
    }
    seen.sort();
    assert_eq!(seen, ["bad", "good"]);
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (0, 0));
}

/// It is found when it breaks the connection for the first time, long before it would be delivered
/// again and break the next; and so is one that follows.
#[tokio::test]
async fn an_unreadable_message_breaks_one_connection() {
    let server = NatsServer::start().await;
    let url = server.nats().url().to_owned();
    let broker = shop().connect(&url).await.expect("connect");
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(600),
        ..spec("c", &["shop.a"])
    };
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    for number in 1..=3 {
        publish_raw(
            &url,
            b"shop.a",
            b"NATS/1.0\r\nno colon here\r\n\r\n",
            b"bad",
        )
        .await;
        let delivered = super::pull(&mut subscription, Duration::from_secs(10)).await;
        assert_eq!(delivered.origin.sequence, number);
        delivered
            .handle
            .terminate("unreadable")
            .await
            .expect("terminated");
    }
    let pending = subscription.pending().await.expect("pending");
    assert_eq!((pending.waiting, pending.unsettled), (0, 0));
}
