//! JetStream as a broker, on real servers that break, refuse, and hold strange things.

mod cluster;
mod connecting;
mod dead_letters;
mod delivering;
mod hostile;
mod publishing;
mod rights;
mod topology;

use std::time::Duration;

use outbox_core::broker::{
    Broker, ConsumerSpec, Delivered, Publisher, StartAt, Subscription, WireMessage,
};
use outbox_nats::{
    JetStream, JetStreamBuilder, JetStreamDelivery, JetStreamPublisher, JetStreamSubscription,
    StreamSpec,
};
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(10);
/// Until a broken connection is noticed and replaced.
const RECOVERY: Duration = Duration::from_secs(30);

/// A broker with a stream `SHOP` for `shop.>`.
fn shop() -> JetStreamBuilder {
    JetStream::builder().stream(StreamSpec::new("SHOP", ["shop.>"]))
}

fn message(subject: &str, text: &str) -> WireMessage {
    WireMessage {
        id: Some(Uuid::new_v4()),
        subject: subject.to_owned(),
        payload: text.to_owned().into(),
        ..WireMessage::default()
    }
}

fn spec(name: &str, subjects: &[&str]) -> ConsumerSpec {
    ConsumerSpec {
        name: name.to_owned(),
        subjects: subjects.iter().map(|&subject| subject.to_owned()).collect(),
        ack_wait: Duration::from_secs(30),
        start: StartAt::Beginning,
    }
}

async fn publisher(broker: &JetStream) -> JetStreamPublisher {
    broker.publisher().await.expect("a publisher")
}

async fn publish(publisher: &JetStreamPublisher, subject: &str, text: &str) {
    publisher
        .publish(message(subject, text))
        .await
        .expect("published");
}

/// Publishes one message, trying for as long as it takes.
async fn publish_at_last(publisher: &JetStreamPublisher, subject: &str, text: &str) {
    let message = message(subject, text);
    outbox_tests::eventually("a confirmation", RECOVERY, async || {
        publisher.publish(message.clone()).await
    })
    .await;
}

async fn pull(
    subscription: &mut JetStreamSubscription,
    within: Duration,
) -> Delivered<JetStreamDelivery> {
    let mut pulled = tokio::time::timeout(within, subscription.pull(1))
        .await
        .expect("a delivery in time")
        .expect("a delivery");
    assert_eq!(pulled.len(), 1);
    pulled.remove(0)
}

fn text<H>(delivered: &Delivered<H>) -> &str {
    std::str::from_utf8(&delivered.message.payload).expect("a payload in UTF-8")
}
