//! The dead-letter stream: sizes, limits, and what is left over.

use std::time::Duration;

use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy, StorageType};
use outbox_core::{
    Bus, DeadLetterFilter, DeadLetterId,
    broker::{Broker, BrokerErrorKind, DeadLetter, DeadReason, Delivered, DeliveryHandle},
};
use outbox_nats::{JetStream, JetStreamSubscription};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, NatsConfig, NatsServer, count_messages, read_stream};
use time::OffsetDateTime;

use super::{SOON, message, publisher, pull, shop, spec};
use outbox_core::broker::Publisher;

const MAX_PAYLOAD: usize = 65_536;

fn letter<H>(delivered: &Delivered<H>) -> DeadLetter {
    let mut message = delivered.message.clone();
    message.headers = message
        .headers
        .iter()
        .filter(|(name, _)| *name != "Nats-Msg-Id")
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    DeadLetter {
        consumer: "c".to_owned(),
        origin: delivered.origin.clone(),
        message,
        reason: DeadReason::OutOfAttempts,
        error: "x".repeat(5_000),
        first_error: Some("first\r\nNats-Rollup: all\r\n\r\n".to_owned()),
        attempts: 5,
        deliveries: delivered.deliveries,
        replays: delivered.replay.unwrap_or_default(),
        first_failed_at: None,
        dead_at: OffsetDateTime::from_unix_timestamp(1_700_000_000).expect("a time"),
    }
}

async fn server() -> NatsServer {
    NatsServer::start_with(NatsConfig::default().max_payload(MAX_PAYLOAD)).await
}

async fn give_up(
    broker: &JetStream,
    subscription: &mut JetStreamSubscription,
    size: usize,
) -> DeadLetter {
    let mut large = message("shop.a", &"x".repeat(size));
    large.headers.append("ce-id", "1");
    large.headers.append("tenant", "acme");
    publisher(broker)
        .await
        .publish(large)
        .await
        .expect("published");
    let delivered = pull(subscription, SOON).await;
    let letter = letter(&delivered);
    broker.dead_letter(&letter).await.expect("stored");
    broker.dead_letter(&letter).await.expect("stored again");
    delivered
        .handle
        .terminate("given up")
        .await
        .expect("terminated");
    letter
}

#[tokio::test]
async fn the_stream_keeps_each_letter_once_and_drops_none() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    drop(
        broker
            .subscribe_replays(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream
        .get_stream("OUTBOX_DLQ")
        .await
        .expect("the stream");
    let config = &stream.cached_info().config;
    assert_eq!(config.retention, RetentionPolicy::Limits);
    assert_eq!(config.storage, StorageType::File);
    assert_eq!(config.discard, DiscardPolicy::New);
    assert!(config.discard_new_per_subject);
    assert_eq!(config.max_messages_per_subject, 1);
}

/// A letter that fits only without its history goes in two messages, which nobody notices.
#[tokio::test]
async fn a_letter_of_any_size_is_stored_shown_and_replayed() {
    let server = server().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let jetstream = server.nats().jetstream().await;
    let spec = spec("c", &["shop.a"]);
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    let mut replays = broker.subscribe_replays(&spec).await.expect("subscribe");
    for (size, messages) in [(60_000, 1), (65_400, 2)] {
        let sent = give_up(&broker, &mut subscription, size).await;
        assert_eq!(
            count_messages(&jetstream, "OUTBOX_DLQ").await,
            messages,
            "{size}"
        );
        assert_eq!(broker.dead_letter_count().await.expect("a count"), 1);
        let letters = broker
            .dead_letters(Some("c"), 0, 10)
            .await
            .expect("letters");
        let (number, shown) = &letters[0];
        assert!(shown.message == sent.message);
        assert_eq!(shown.origin, sent.origin);
        assert!(
            (1_000..=1_024).contains(&shown.error.len()),
            "{}",
            shown.error.len()
        );
        assert_eq!(
            shown.first_error.as_deref(),
            Some("first\\r\\nNats-Rollup: all")
        );

        // It dies again, twice; then it is handled.
        assert!(broker.replay(*number).await.expect("replayed"));
        for round in 1..=2 {
            let delivered = pull(&mut replays, SOON).await;
            assert!(delivered.message == sent.message);
            assert_eq!(delivered.replay, Some(round));
            broker
                .dead_letter(&letter(&delivered))
                .await
                .expect("stored");
            delivered
                .handle
                .terminate("given up")
                .await
                .expect("terminated");
            let letters = broker.dead_letters(None, 0, 10).await.expect("letters");
            assert_eq!((letters.len(), letters[0].1.replays), (1, round));
            assert!(broker.replay(letters[0].0).await.expect("replayed"));
        }
        let delivered = pull(&mut replays, SOON).await;
        assert!(delivered.message == sent.message);
        delivered.handle.ack().await.expect("acknowledged");
        assert_eq!(count_messages(&jetstream, "OUTBOX_DLQ").await, 0, "{size}");
    }
}

#[tokio::test]
async fn discarding_a_large_letter_leaves_nothing() {
    let server = server().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    drop(
        broker
            .subscribe_replays(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    give_up(&broker, &mut subscription, 65_400).await;
    let letters = broker.dead_letters(None, 0, 10).await.expect("letters");
    // The number of the body's message is no letter.
    assert!(!broker.discard(letters[0].0 - 1).await.expect("no letter"));
    assert!(broker.discard(letters[0].0).await.expect("discarded"));
    assert_eq!(
        count_messages(&server.nats().jetstream().await, "OUTBOX_DLQ").await,
        0
    );
}

/// Headers near the limit leave no room for the history; they move to the body's message.
#[tokio::test]
async fn headers_near_their_limit_are_kept() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    drop(
        broker
            .subscribe_replays(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    let mut large = message("shop.a", "a");
    for number in 0..64 {
        large
            .headers
            .append(format!("h{number:02}"), "x".repeat(1_000));
    }
    publisher(&broker)
        .await
        .publish(large.clone())
        .await
        .expect("published");
    let delivered = pull(&mut subscription, SOON).await;
    broker
        .dead_letter(&letter(&delivered))
        .await
        .expect("stored");
    let letters = broker.dead_letters(None, 0, 10).await.expect("letters");
    assert_eq!(letters[0].1.message.headers, large.headers);
}

/// Headers that mean something to the server or to us are not taken over from the original.
#[tokio::test]
async fn reserved_headers_are_not_taken_over() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    drop(
        broker
            .subscribe_replays(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    let mut sly = message("shop.a", "a");
    sly.headers.append("Nats-Expected-Stream", "SHOP");
    sly.headers.append("outbox-reason", "rejected");
    sly.headers.append("Outbox-Consumer", "other");
    let id = sly.id;
    publisher(&broker)
        .await
        .publish(sly)
        .await
        .expect("published");
    let delivered = pull(&mut subscription, SOON).await;
    broker
        .dead_letter(&letter(&delivered))
        .await
        .expect("stored");
    let letters = broker.dead_letters(None, 0, 10).await.expect("letters");
    let letter = &letters[0].1;
    assert_eq!(letter.reason, DeadReason::OutOfAttempts);
    assert_eq!(letter.consumer, "c");
    assert_eq!(letter.message.id, id);
    assert!(
        letter.message.headers.is_empty(),
        "{:?}",
        letter.message.headers
    );
    let stored = read_stream(&server.nats().jetstream().await, "OUTBOX_DLQ").await;
    assert!(
        stored[0]
            .headers
            .iter()
            .all(|(name, _)| !name.to_string().starts_with("Nats-"))
    );
}

/// A full queue refuses: nothing is dropped, and the caller knows.
#[tokio::test]
async fn a_full_queue_is_an_error() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    drop(
        broker
            .subscribe_replays(&spec("c", &["shop.a"]))
            .await
            .expect("subscribe"),
    );
    let jetstream = server.nats().jetstream().await;
    let stream = jetstream
        .get_stream("OUTBOX_DLQ")
        .await
        .expect("the stream");
    let mut config = stream.cached_info().config.clone();
    config.max_messages = 1;
    jetstream.update_stream(config).await.expect("limited");
    let kept = give_up(&broker, &mut subscription, 10).await;
    publisher(&broker)
        .await
        .publish(message("shop.a", "b"))
        .await
        .expect("published");
    let delivered = pull(&mut subscription, SOON).await;
    let error = broker
        .dead_letter(&letter(&delivered))
        .await
        .expect_err("full");
    assert_eq!(error.kind(), BrokerErrorKind::Unavailable, "{error}");
    // The one that is there is still recognised.
    broker.dead_letter(&kept).await.expect("stored before");
    let letters = broker.dead_letters(None, 0, 10).await.expect("letters");
    let error = broker
        .replay(letters[0].0)
        .await
        .expect_err("no room for the copy");
    assert_eq!(error.kind(), BrokerErrorKind::Unavailable, "{error}");
    assert_eq!(broker.dead_letter_count().await.expect("a count"), 1);
}

/// A crash between the copy and the end of the letter is mended by asking again.
#[tokio::test]
async fn a_replay_that_was_interrupted_is_finished() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let spec = spec("c", &["shop.a"]);
    let mut subscription = broker.subscribe(&spec).await.expect("subscribe");
    let mut replays = broker.subscribe_replays(&spec).await.expect("subscribe");
    let sent = give_up(&broker, &mut subscription, 10).await;
    let jetstream = server.nats().jetstream().await;
    let number = broker.dead_letters(None, 0, 10).await.expect("letters")[0].0;
    let stored = read_stream(&jetstream, "OUTBOX_DLQ").await;
    // As a process that died after it had published the copy.
    let copy = format!(
        "{}.{number}",
        stored[0].subject.replace(".letter.", ".replay.")
    );
    let ack =
        jetstream.publish_with_headers(copy, stored[0].headers.clone(), stored[0].payload.clone());
    ack.await.expect("published").await.expect("stored");
    assert!(broker.replay(number).await.expect("replayed"));
    let delivered = pull(&mut replays, SOON).await;
    assert!(delivered.message == sent.message);
    delivered.handle.ack().await.expect("acknowledged");
    assert_eq!(count_messages(&jetstream, "OUTBOX_DLQ").await, 0);
    tokio::time::timeout(Duration::from_millis(300), pull(&mut replays, SOON))
        .await
        .expect_err("only once");
}

/// The queue is put back where it may be.
#[tokio::test]
async fn a_missing_queue_is_made() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    assert_eq!(broker.dead_letters(None, 0, 10).await.expect("none"), []);
    give_up(&broker, &mut subscription, 10).await;
    assert_eq!(broker.dead_letter_count().await.expect("a count"), 1);
}

/// A letter is known by its message, not by a sequence that may be used again.
#[tokio::test]
async fn a_used_again_sequence_is_another_letter() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let first = give_up(&broker, &mut subscription, 10).await;
    let mut second = first.clone();
    second.origin.stored_at += Duration::from_nanos(1);
    second.message.payload = "other".into();
    broker.dead_letter(&second).await.expect("stored");
    let letters = broker.dead_letters(None, 0, 10).await.expect("letters");
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[1].1.message.payload, "other");
}

/// What a page holds in memory is limited. A listing goes on after a short page.
#[tokio::test(flavor = "multi_thread")]
async fn large_letters_come_in_short_pages_and_none_is_missing() {
    let server = NatsServer::start().await;
    let broker = shop().connect(server.nats().url()).await.expect("connect");
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    for _ in 0..20 {
        give_up(&broker, &mut subscription, 950_000).await;
    }
    let mut numbers = Vec::new();
    loop {
        let after = numbers.last().copied().unwrap_or_default();
        let page = broker.dead_letters(None, after, 100).await.expect("a page");
        if page.is_empty() {
            break;
        }
        let bytes: usize = page
            .iter()
            .map(|(_, letter)| letter.message.payload.len())
            .sum();
        assert!(bytes < 18_000_000, "{bytes}");
        numbers.extend(page.into_iter().map(|(number, _)| number));
    }
    assert_eq!(numbers.len(), 20);

    let db = Database::Sqlite.fresh().await;
    let store = SeaOrm::new(db.connection.clone());
    store.migrate().await.expect("migrate");
    let listed = Bus::new(store)
        .dead_letters(broker)
        .list(&DeadLetterFilter::default())
        .await;
    let listed = listed
        .expect("a listing")
        .into_iter()
        .map(|letter| letter.id);
    let expected: Vec<_> = numbers.into_iter().map(DeadLetterId::Consumer).collect();
    assert_eq!(listed.collect::<Vec<_>>(), expected);
}
