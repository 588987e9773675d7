//! Three servers, of which any may go.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use outbox_core::broker::{Broker, DeliveryHandle, Publisher, Subscription};
use outbox_nats::{JetStream, JetStreamSubscription, StreamSpec};
use outbox_tests::{NatsServer, eventually, nats_cluster};

use super::{RECOVERY, SOON, message, publish_at_last, publisher, pull, spec, text};

/// A broker that is told of one server only; it learns of the others.
async fn broker(servers: &[NatsServer]) -> JetStream {
    let spec = StreamSpec::new("SHOP", ["shop.>"]).replicas(3);
    eventually("a cluster that works", RECOVERY, async || {
        JetStream::builder()
            .stream(spec.clone())
            .dead_letter_replicas(3)
            .connect(servers[0].nats().url())
            .await
    })
    .await
}

async fn next(subscription: &mut JetStreamSubscription, broker: &JetStream) -> String {
    loop {
        match tokio::time::timeout(RECOVERY, subscription.pull(1))
            .await
            .expect("in time")
        {
            Ok(pulled) => {
                let delivered = pulled.into_iter().next().expect("a delivery");
                let text = text(&delivered).to_owned();
                eventually("an acknowledgement", RECOVERY, async || {
                    delivered.handle.ack().await
                })
                .await;
                return text;
            }
            Err(_) => {
                *subscription = eventually("a subscription", RECOVERY, async || {
                    broker.subscribe(&spec("c", &["shop.a"])).await
                })
                .await;
            }
        }
    }
}

/// Each server in turn is killed while a consumer waits; delivery and publishing go on.
#[tokio::test]
async fn any_server_may_be_replaced() {
    let servers = nats_cluster().await;
    let broker = broker(&servers).await;
    let publisher = publisher(&broker).await;
    let mut subscription = eventually("a subscription", RECOVERY, async || {
        broker.subscribe(&spec("c", &["shop.a"])).await
    })
    .await;
    publish_at_last(&publisher, "shop.a", "before").await;
    let before = pull(&mut subscription, SOON).await;
    assert_eq!(text(&before), "before");
    // It would come again, in place of a later one, when its time to acknowledge is over.
    before.handle.ack().await.expect("acknowledged");
    for (number, server) in servers.iter().enumerate() {
        // A request is open when the server goes.
        let idle = tokio::time::timeout(Duration::from_millis(500), subscription.pull(1)).await;
        assert!(idle.is_err(), "{idle:?}");
        server.kill();
        let start = Instant::now();
        let sent = format!("without {number}");
        let (got, ()) = tokio::join!(
            next(&mut subscription, &broker),
            publish_at_last(&publisher, "shop.a", &sent),
        );
        eprintln!("{sent}: delivered after {:?}", start.elapsed());
        assert_eq!(got, sent);
        assert!(start.elapsed() < RECOVERY, "{:?}", start.elapsed());
        server.restart().await;
        // The others must not go before this one has caught up.
        eventually("a cluster that works", RECOVERY, async || {
            let direct = JetStream::connect(server.nats().url()).await?;
            direct.dead_letter_count().await
        })
        .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Messages that are retried while leaders change are stored once each.
#[tokio::test]
async fn a_change_of_leaders_loses_and_doubles_nothing() {
    let servers = nats_cluster().await;
    let broker = broker(&servers).await;
    let publisher = publisher(&broker).await;
    publish_at_last(&publisher, "shop.a", "before").await;
    let publishing = async {
        let mut ids = BTreeSet::new();
        for number in 0..2_000 {
            let message = message("shop.a", &number.to_string());
            ids.insert(message.id.expect("an id").to_string());
            eventually("a confirmation", RECOVERY, async || {
                publisher.publish(message.clone()).await
            })
            .await;
        }
        ids
    };
    let breaking = async {
        for server in &servers {
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.kill();
            tokio::time::sleep(Duration::from_millis(500)).await;
            server.restart().await;
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
    };
    let (ids, ()) = tokio::join!(publishing, breaking);
    let jetstream = servers[0].nats().jetstream().await;
    // A server was restarted just now: nobody answers until the leaders are elected.
    eventually("a leader of the stream", RECOVERY, async || {
        let info = jetstream.get_stream("SHOP").await.ok()?;
        info.cached_info().cluster.as_ref()?.leader.clone()
    })
    .await;
    let stored = outbox_tests::read_stream(&jetstream, "SHOP").await;
    let stored: Vec<_> = stored
        .iter()
        .filter(|message| message.text() != "before")
        .map(|message| message.header("Nats-Msg-Id").expect("an id").to_owned())
        .collect();
    assert_eq!(stored.len(), ids.len());
    assert_eq!(stored.into_iter().collect::<BTreeSet<_>>(), ids);
}

/// The durable's leader freezes while we are connected to another server: nothing is heard of the
/// open request any more, and it is made again.
#[tokio::test]
async fn a_frozen_leader_is_noticed() {
    let servers = nats_cluster().await;
    let setup = broker(&servers).await;
    eventually("a durable", RECOVERY, async || {
        setup.subscribe(&spec("c", &["shop.a"])).await
    })
    .await;
    let jetstream = servers[0].nats().jetstream().await;
    let leader = eventually("a leader", RECOVERY, async || {
        let stream = jetstream.get_stream("SHOP").await.ok()?;
        let info = stream.consumer_info("c").await.ok()?;
        info.cluster?.leader
    })
    .await;
    let (frozen, other) = match leader.as_str() {
        "n0" => (0, 1),
        "n1" => (1, 2),
        _ => (2, 0),
    };
    let broker = JetStream::connect(servers[other].nats().url())
        .await
        .expect("connect");
    let publisher = publisher(&broker).await;
    let mut subscription = broker
        .subscribe(&spec("c", &["shop.a"]))
        .await
        .expect("subscribe");
    let idle = tokio::time::timeout(Duration::from_millis(500), subscription.pull(1)).await;
    assert!(idle.is_err(), "{idle:?}");
    servers[frozen].freeze();
    let start = Instant::now();
    let (got, ()) = tokio::join!(
        next(&mut subscription, &broker),
        publish_at_last(&publisher, "shop.a", "a"),
    );
    eprintln!("frozen leader: delivered after {:?}", start.elapsed());
    assert_eq!(got, "a");
    assert!(start.elapsed() < RECOVERY, "{:?}", start.elapsed());
    servers[frozen].thaw();
}
