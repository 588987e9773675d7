//! R4, R5 and R6.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use outbox_core::{
    Bus, Consumer, Context, HandlerError, IntegrationEvent, State, error::PublishErrorKind, handler,
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, Direction, Log, Proxy, TestDatabase, eventually, on_every_database};
use sea_orm::{
    ConnectOptions, ConnectionTrait, DatabaseConnection, DatabaseTransaction, TransactionTrait,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::LevelFilter;

use crate::shop::{Act, DEADLINE, OrderPlaced, OrderShipped, Running, Script, Shop, shipping};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.cancelled")]
struct OrderCancelled {
    number: i64,
}

/// Another consumer of placed orders; its effects have numbers from 100.
#[handler(consumer = "billing", backoff = fixed("50ms"))]
async fn bill(
    order: OrderPlaced,
    tx: &DatabaseTransaction,
    script: State<Script>,
) -> Result<(), HandlerError> {
    if script.start(order.number) == Act::Reject {
        return Err(HandlerError::reject("nobody knows the price"));
    }
    let insert = format!(
        "INSERT INTO effects (number) VALUES ({})",
        100 + order.number
    );
    tx.execute_unprepared(&insert).await?;
    Ok(())
}

/// Takes a second connection while it holds one.
#[handler(consumer = "shipping", max_attempts = 1, concurrency = 5)]
async fn ship_greedily(
    order: OrderPlaced,
    tx: &DatabaseTransaction,
    db: State<DatabaseConnection>,
) -> Result<(), HandlerError> {
    let insert = format!("INSERT INTO effects (number) VALUES ({})", order.number);
    tx.execute_unprepared(&insert).await?;
    db.execute_unprepared("SELECT 1").await?;
    Ok(())
}

/// When which order was tried.
#[derive(Clone, Default)]
struct Tries(Arc<Mutex<Vec<(i64, Instant)>>>);

const BACKOFF: Duration = Duration::from_millis(600);
const RETRY_AFTER: Duration = Duration::from_millis(900);

/// Fails with the backoff of the consumer, and every second order with a delay of its own.
#[handler(consumer = "trying", backoff = fixed("600ms"), max_attempts = 3)]
async fn try_again(order: OrderPlaced, tries: State<Tries>) -> Result<(), HandlerError> {
    tries
        .0
        .0
        .lock()
        .unwrap()
        .push((order.number, Instant::now()));
    if order.number % 2 == 0 {
        return Err(HandlerError::retry_after("come back later", RETRY_AFTER));
    }
    Err(HandlerError::retry("not now"))
}

/// Contexts that outlive their handlers.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Context>>>);

#[handler(consumer = "keeping")]
async fn keep_context(
    order: OrderPlaced,
    tx: &DatabaseTransaction,
    cx: Context,
    kept: State<Kept>,
) -> Result<(), HandlerError> {
    let insert = format!("INSERT INTO effects (number) VALUES ({})", order.number);
    tx.execute_unprepared(&insert).await?;
    cx.publish(&OrderShipped {
        number: order.number,
    })?;
    kept.0.0.lock().unwrap().push(cx);
    Ok(())
}

#[handler(consumer = "keeping-without-inbox")]
async fn keep_context_without_inbox(
    order: OrderPlaced,
    cx: Context,
    kept: State<Kept>,
) -> Result<(), HandlerError> {
    let _ = order;
    kept.0.0.lock().unwrap().push(cx);
    Ok(())
}

/// What a newer build of the consumer `shipping` handles as well.
#[handler(consumer = "shipping", backoff = fixed("50ms"), concurrency = 8)]
async fn cancel(
    order: OrderCancelled,
    tx: &DatabaseTransaction,
    script: State<Script>,
) -> Result<(), HandlerError> {
    script.start(order.number);
    let insert = format!(
        "INSERT INTO effects (number) VALUES ({})",
        100 + order.number
    );
    tx.execute_unprepared(&insert).await?;
    Ok(())
}

on_every_database! {
    /// R4: failures before and after the effect leave nothing behind; in the end there is one effect,
    /// one inbox row, and one follow-up event.
    async fn effect_inbox_row_and_events_commit_together_or_not_at_all(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|number, before| match (number, before) {
            (1, 0) => Act::FailAfterTheEffect,
            (1, 1) => Act::Fail,
            (2, 0) => Act::Panic,
            (3, 0) => Act::Hang,
            _ => Act::Ship,
        });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().timeout(Duration::from_millis(500)));
        for number in 1..=4 {
            shop.order(number).await;
        }
        shop.await_effects([1, 2, 3, 4]).await;
        eventually("all follow-ups", DEADLINE, async || shop.stream().await.len() == 8).await;
        assert_eq!(shop.count("inbox").await, 4);
        shop.await_empty("inbox_attempt").await;
        assert_eq!(script.starts(1), 3);
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(shop.stream().await.len(), 8, "four orders and one follow-up each");
    }

    /// R4: the same message several times in the stream, handled by two processes at once.
    async fn a_message_has_its_effect_once_however_often_it_is_delivered(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Take(Duration::from_millis(50)));
        let relay = shop.relay();
        shop.order(1).await;
        shop.await_published([1]).await;
        relay.stop().await;
        let original = shop.stream().await.remove(0);
        let client = shop.nats.nats().connect().await;
        for _ in 0..9 {
            let mut headers = async_nats::HeaderMap::new();
            for (name, values) in original.headers.iter().filter(|(name, _)| name.to_string() != "Nats-Msg-Id") {
                headers.append(name.clone(), values[0].clone());
            }
            client.publish_with_headers("shop.orders.placed", headers, original.payload.clone()).await.unwrap();
        }
        client.flush().await.unwrap();
        let first = shop.consumer(&script, shipping());
        let second = shop.consumer(&script, shipping());
        eventually("all ten copies settled", DEADLINE, async || settled(&shop).await).await;
        assert_eq!(shop.effects().await, [1]);
        assert_eq!(shop.count("outbox").await, 1, "one follow-up, and none for a copy");
        assert!(shop.dead_letters().await.is_empty());
        first.stop().await;
        second.stop().await;
    }

    /// R4: a handler that takes longer than the ack wait is not started a second time beside itself.
    async fn a_handler_slower_than_the_ack_wait_starts_once(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Take(Duration::from_millis(3500)));
        let relay = shop.relay();
        let slow = || shipping().ack_wait(Duration::from_secs(1));
        let first = shop.consumer(&script, slow());
        let second = shop.consumer(&script, slow());
        shop.order(1).await;
        shop.await_effects([1]).await;
        eventually("it is settled", DEADLINE, async || settled(&shop).await).await;
        assert_eq!(script.starts(1), 1);
        // It was not even delivered again: signs of life were sent.
        let jetstream = shop.nats.nats().jetstream().await;
        let info = jetstream.get_stream("SHOP").await.unwrap().consumer_info("shipping").await.unwrap();
        assert_eq!(info.delivered.consumer_sequence, 1);
        first.stop().await;
        second.stop().await;
        relay.stop().await;
    }

    /// R4 and R6: two consumers of one event succeed, fail, and are replayed apart from each other.
    async fn consumers_of_one_event_are_apart(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let reject_once = || Script::new(|_, before| if before == 0 { Act::Reject } else { Act::Ship });
        let (shipping_script, billing_script) = (reject_once(), reject_once());
        let relay = shop.relay();
        let shipping = shop.consumer(&shipping_script, shipping());
        let billing = shop.consumer(&billing_script, Consumer::of(bill {}));
        shop.order(1).await;
        let dead = shop.await_dead_letters(2).await;
        let of = |name: &str| {
            let letter = dead.iter().find(|letter| letter.consumer.as_deref() == Some(name));
            letter.unwrap_or_else(|| panic!("no letter of {name}: {dead:?}"))
        };
        assert!(of("shipping").error.contains("the carrier never goes there"), "{dead:?}");
        assert!(of("billing").error.contains("nobody knows the price"), "{dead:?}");
        let letters = shop.bus.dead_letters(shop.broker.clone());
        assert!(letters.replay(of("shipping").id).await.unwrap());
        shop.await_effects([1]).await;
        let left = shop.await_dead_letters(1).await;
        assert_eq!(left[0], *of("billing"), "the other one's letter is untouched");
        assert!(letters.replay(of("billing").id).await.unwrap());
        shop.await_effects([1, 101]).await;
        shop.await_dead_letters(0).await;
        assert_eq!((shipping_script.starts(1), billing_script.starts(1)), (2, 2));
        assert_eq!(shop.count("inbox").await, 2);
        shipping.stop().await;
        billing.stop().await;
        relay.stop().await;
    }

    /// R6: a limit that is lowered holds for messages that have failed more often already.
    async fn a_lower_limit_strands_nothing(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Fail);
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(1000));
        shop.order(1).await;
        eventually("three starts", DEADLINE, async || script.starts(1) >= 3).await;
        consumer.stop().await;
        let starts = script.starts(1);
        let consumer = shop.consumer(&script, shipping().max_attempts(2));
        let dead = shop.await_dead_letters(1).await;
        assert_eq!((dead[0].reason.as_str(), dead[0].attempts), ("out-of-attempts", starts), "{dead:?}");
        assert_eq!(script.starts(1), starts, "it is not started beyond its limit");
        consumer.stop().await;
        relay.stop().await;
    }

    /// R6 and R8: bodies made to break a reader are given up at once, and stop nobody.
    async fn hostile_bodies_are_given_up_at_once(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::always_ship();
        let keys: Vec<String> = (0..80_000).map(|key| format!("\"k{key}\":0")).collect();
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let hostile: Vec<Vec<u8>> = vec![
            Vec::new(),
            b"null".to_vec(),
            vec![b'['; 900_000],
            format!("{{\"number\":1,\"customer\":{}}}", deep(100_000)).into(),
            format!("{{\"number\":{}}}", "1".repeat(100_000)).into(),
            format!("{{{}}}", keys.join(",")).into(),
            b"{\"number\":1,\"number\":2}".to_vec(),
            b"{\"number\":1,\"customer\":\"\xff\xfe\"}".to_vec(),
            b"{\"number\":1,\"customer\":null}}".to_vec(),
        ];
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping());
        let client = shop.nats.nats().connect().await;
        for (number, body) in (1..).zip(&hostile) {
            shop.order(number).await;
            let mut headers = async_nats::HeaderMap::new();
            let id = format!("hostile {number}");
            for (name, value) in
                [("ce-specversion", "1.0"), ("ce-id", &id), ("ce-source", "y"), ("ce-type", "shop.orders.placed")]
            {
                headers.append(name, value);
            }
            client.publish_with_headers("shop.orders.placed", headers, body.clone().into()).await.unwrap();
        }
        // Depth in a field that nobody reads is no reason to refuse the rest.
        let mut headers = async_nats::HeaderMap::new();
        for (name, value) in
            [("ce-specversion", "1.0"), ("ce-id", "deep"), ("ce-source", "y"), ("ce-type", "shop.orders.placed")]
        {
            headers.append(name, value);
        }
        let body = format!("{{\"number\":50,\"customer\":null,\"unread\":{}}}", deep(100_000));
        client.publish_with_headers("shop.orders.placed", headers, body.into()).await.unwrap();
        client.flush().await.unwrap();
        let good = i64::try_from(hostile.len()).unwrap();
        shop.await_effects((1..=good).chain([50])).await;
        let dead = shop.await_dead_letters(hostile.len()).await;
        for letter in &dead {
            assert_eq!((letter.reason.as_str(), letter.attempts), ("undecodable", 1), "{letter:?}");
        }
        // Headers that end the connection of whoever reads them.
        let headers = b"NATS/1.0\r\nce-id: \xff\xfe\r\n\r\n";
        publish_raw(shop.nats.nats().url(), "shop.orders.placed", headers, b"raw").await;
        shop.order(100).await;
        shop.await_effects((1..=good).chain([50, 100])).await;
        let with_raw = shop.await_dead_letters(hostile.len() + 1).await;
        let raw = with_raw.iter().find(|letter| letter.size == 3).expect("the raw one");
        assert_eq!((raw.reason.as_str(), raw.deliveries), ("undecodable", Some(2)), "{raw:?}");
        let letters = shop.bus.dead_letters(shop.broker.clone());
        let shown = letters.show(raw.id).await.unwrap().expect("the letter");
        assert!(shown.headers.get("outbox-raw-headers").is_some(), "{shown:?}");
        let mut sizes: Vec<_> = dead.iter().map(|letter| letter.size).collect();
        let mut sent: Vec<_> = hostile.iter().map(Vec::len).collect();
        sizes.sort_unstable();
        sent.sort_unstable();
        assert_eq!(sizes, sent, "the bodies are kept whole");
        consumer.stop().await;
        relay.stop().await;
    }

    /// R2 and R4: answers of the broker that are lost cost a second publish under the same id, and no
    /// second effect.
    async fn lost_answers_of_the_broker_double_no_effect(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let url = shop.nats.nats().url();
        let proxy = Proxy::start(url).await;
        let broker = JetStream::builder()
            .stream(StreamSpec::new("SHOP", ["shop.>"]))
            .ack_timeout(Duration::from_secs(1))
            .ping_interval(Duration::from_secs(1))
            .connect(proxy.through(url))
            .await
            .unwrap();
        let stop = CancellationToken::new();
        let relaying = tokio::spawn(shop.bus.runtime(broker).relay(crate::shop::relay()).run(stop.clone()));
        shop.order(1).await;
        shop.await_empty("outbox").await;
        let ids: Vec<_> = {
            proxy.drop_direction(Direction::Downstream);
            let tx = shop.db.connection.begin().await.unwrap();
            let mut ids = Vec::new();
            for number in 2..=20 {
                ids.push(shop.order_in(&tx, number, None).await.to_string());
            }
            tx.commit().await.unwrap();
            ids
        };
        shop.await_published(1..=20).await;
        assert_eq!(shop.count("outbox").await + shop.count("outbox_held").await, 19, "unconfirmed rows stay");
        proxy.restore().await;
        shop.await_empty("outbox").await;
        shop.await_empty("outbox_held").await;
        for message in shop.stream().await.iter().skip(1) {
            let id = message.header("Nats-Msg-Id").expect("an id").to_owned();
            assert!(ids.contains(&id), "{id}");
        }
        let consumer = shop.consumer(&Script::always_ship(), shipping());
        shop.await_effects(1..=20).await;
        eventually("all settled", DEADLINE, async || settled(&shop).await).await;
        assert_eq!(shop.effects().await.len(), 20);
        consumer.stop().await;
        stop.cancel();
        relaying.await.unwrap().unwrap();
    }

    /// R5 and R8: handlers that want more connections than there are spend no attempts, and get on.
    async fn handlers_that_exhaust_their_pool_get_on(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let mut options = ConnectOptions::new(&shop.db.url);
        options.max_connections(5).acquire_timeout(Duration::from_millis(300)).sqlx_logging(false);
        let pool = sea_orm::Database::connect(options).await.unwrap();
        let store = SeaOrm::builder(pool.clone()).share_connections().build().unwrap();
        let relay = shop.relay();
        for number in 1..=30 {
            shop.order(number).await;
        }
        shop.await_published(1..=30).await;
        let stop = CancellationToken::new();
        let runtime = Bus::new(store)
            .runtime(shop.broker.clone())
            .state(pool)
            .consumer(Consumer::of(ship_greedily {}));
        let running = tokio::spawn(runtime.run(stop.clone()));
        shop.await_effects(1..=30).await;
        assert!(shop.dead_letters().await.is_empty());
        stop.cancel();
        running.await.unwrap().unwrap();
        relay.stop().await;
    }

    /// R5: while builds with and without a handler share a durable, a message that only the newer one
    /// takes waits for it, with no attempt spent; it is given up if no such build comes.
    async fn a_message_for_a_newer_build_waits_for_its_deploy(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::always_ship();
        let older = || shipping().max_attempts(1).newer_version_delay(Duration::from_millis(400));
        let newer = || older().handler(cancel {});
        let relay = shop.relay();
        let cancel = async |number: i64| {
            let tx = shop.db.connection.begin().await.unwrap();
            shop.bus.publish(&tx, &OrderCancelled { number }).await.unwrap();
            tx.commit().await.unwrap();
        };
        // The first process of the newer build widens the durable.
        let deploying = shop.consumer(&script, newer());
        cancel(1).await;
        shop.await_effects([101]).await;
        deploying.stop().await;
        let old = shop.consumer(&script, older());
        cancel(2).await;
        eventually("the older build has met it", DEADLINE, async || shop.count("inbox_attempt").await == 1).await;
        let new = shop.consumer(&script, newer());
        old.stop().await;
        shop.await_effects([101, 102]).await;
        shop.await_empty("inbox_attempt").await;
        assert!(shop.dead_letters().await.is_empty());
        new.stop().await;
        // A build that was rolled back for good.
        let old = shop.consumer(&script, older());
        cancel(3).await;
        let dead = shop.await_dead_letters(1).await;
        assert_eq!((dead[0].reason.as_str(), dead[0].attempts), ("unknown-type", 0), "{dead:?}");
        assert!(dead[0].error.contains("shop.orders.cancelled"), "{dead:?}");
        old.stop().await;
        relay.stop().await;
    }

    /// R6: whatever a message does, it ends in the dead letters with its reason and history, and the
    /// others are handled.
    async fn a_message_that_cannot_be_handled_ends_in_the_dead_letters(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|number, _| match number {
            1 => Act::Fail,
            2 => Act::Reject,
            3 => Act::Panic,
            4 => Act::Hang,
            _ => Act::Ship,
        });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(3).timeout(Duration::from_secs(1)));
        for number in 1..=20 {
            shop.order(number).await;
        }
        let client = shop.nats.nats().connect().await;
        client.publish("shop.orders.placed", "no CloudEvent at all".into()).await.unwrap();
        let mut headers = async_nats::HeaderMap::new();
        for (name, value) in [("ce-specversion", "1.0"), ("ce-id", "x"), ("ce-source", "y"), ("ce-type", "shop.orders.placed")] {
            headers.append(name, value);
        }
        client.publish_with_headers("shop.orders.placed", headers, "{\"number\":".into()).await.unwrap();
        client.flush().await.unwrap();
        shop.await_effects(5..=20).await;
        let dead = shop.await_dead_letters(6).await;
        let of = |reason: &str| dead.iter().filter(|letter| letter.reason == reason).count();
        assert_eq!(of("out-of-attempts"), 3, "{dead:#?}");
        assert_eq!(of("rejected"), 1, "{dead:#?}");
        assert_eq!(of("undecodable"), 2, "{dead:#?}");
        let letters = shop.bus.dead_letters(shop.broker.clone());
        for letter in dead.iter().filter(|letter| letter.reason == "out-of-attempts") {
            assert_eq!(letter.attempts, 3, "{letter:?}");
            assert_eq!(letter.consumer.as_deref(), Some("shipping"));
            assert_eq!(letter.event_type.as_deref(), Some("shop.orders.placed"));
            assert!(letter.deliveries >= Some(3) && letter.first_failed_at.is_some(), "{letter:?}");
            let origin = letter.origin.as_ref().expect("where it is stored");
            let message_id = letter.message_id.expect("its id").to_string();
            let original = shop.stream().await.remove(usize::try_from(origin.sequence).unwrap() - 1);
            assert_eq!(original.header("ce-id"), Some(message_id.as_str()));
            let shown = letters.show(letter.id).await.unwrap().expect("the letter");
            assert_eq!(shown.payload, original.payload);
        }
        assert!(dead.iter().any(|letter| letter.error.contains("lost its head")));
        assert_eq!((script.starts(1), script.starts(2), script.starts(3), script.starts(4)), (3, 1, 3, 3));
        shop.await_empty("inbox_attempt").await;
        assert!(settled(&shop).await, "every original is settled");
        consumer.stop().await;
        relay.stop().await;
    }

    /// R6: replay reaches the handler, at once and inside the duplicate window; repeating it is
    /// harmless.
    async fn a_dead_letter_is_replayed_to_its_consumer(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|number, before| match (number, before) {
            (1, 0..=3) => Act::Reject,
            _ => Act::Ship,
        });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping());
        shop.order(1).await;
        let letters = shop.bus.dead_letters(shop.broker.clone());
        for round in 1..=3 {
            let dead = shop.await_dead_letters(1).await;
            assert_eq!(dead[0].replays, round - 1, "{dead:?}");
            assert!(letters.replay(dead[0].id).await.unwrap());
            assert!(!letters.replay(dead[0].id).await.unwrap(), "the letter is gone");
            eventually("the next start", DEADLINE, async || script.starts(1) == round + 1).await;
        }
        let dead = shop.await_dead_letters(1).await;
        assert!(letters.replay(dead[0].id).await.unwrap());
        shop.await_effects([1]).await;
        shop.await_dead_letters(0).await;
        // A letter that is discarded is gone.
        consumer.stop().await;
        relay.stop().await;
        assert_eq!(script.starts(1), 5);
    }

    /// R6: a replay may fail as often as the message could.
    async fn a_replay_has_all_its_attempts_again(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, _| Act::Fail);
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(3));
        shop.order(1).await;
        let letters = shop.bus.dead_letters(shop.broker.clone());
        for replays in 0..=2 {
            let dead = eventually("the letter", DEADLINE, async || {
                let dead = shop.dead_letters().await;
                match dead.first() {
                    Some(letter) if letter.replays == replays => Ok(letter.clone()),
                    _ => Err(format!("{dead:?}")),
                }
            })
            .await;
            assert_eq!((dead.attempts, script.starts(1)), (3, 3 * (replays + 1)));
            shop.await_empty("inbox_attempt").await;
            if replays < 2 {
                assert!(letters.replay(dead.id).await.unwrap());
            }
        }
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: a failure that counts comes again after the backoff, or after as long as the handler says.
    async fn a_failure_waits_as_long_as_it_is_told(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let tries = Tries::default();
        let runtime = shop
            .bus
            .runtime(shop.broker.clone())
            .relay(crate::shop::relay())
            .state(tries.clone())
            .consumer(Consumer::of(try_again {}));
        let running = Running::start(runtime);
        shop.order(1).await;
        shop.order(2).await;
        shop.await_dead_letters(2).await;
        running.stop().await;
        let tries = tries.0.lock().unwrap().clone();
        for (number, least) in [(1, BACKOFF / 2), (2, RETRY_AFTER)] {
            let of_it: Vec<_> = tries.iter().filter(|(tried, _)| *tried == number).map(|(_, at)| *at).collect();
            assert_eq!(of_it.len(), 3, "{tries:?}");
            for pair in of_it.windows(2) {
                assert!(pair[1] - pair[0] >= least, "order {number}: {:?}", pair[1] - pair[0]);
            }
        }
    }

    /// R4: what is published too late to be committed is refused, and not lost in silence.
    async fn what_is_published_after_the_commit_is_refused(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let kept = Kept::default();
        let runtime = shop
            .bus
            .runtime(shop.broker.clone())
            .relay(crate::shop::relay())
            .state(kept.clone())
            .consumer(Consumer::of(keep_context {}))
            .consumer(Consumer::without_inbox(keep_context_without_inbox {}));
        let running = Running::start(runtime);
        shop.order(1).await;
        shop.await_effects([1]).await;
        eventually("both have it", DEADLINE, async || kept.0.lock().unwrap().len() == 2).await;
        eventually("the event of the handler", DEADLINE, async || shop.stream().await.len() == 2).await;
        for cx in kept.0.lock().unwrap().iter() {
            let error = cx.publish(&OrderCancelled { number: 1 }).expect_err("too late");
            assert_eq!(error.kind(), PublishErrorKind::Closed, "{error}");
            assert!(error.to_string().contains("shop.orders.cancelled"), "{error}");
        }
        running.stop().await;
        assert_eq!(shop.count("outbox").await, 0);
        assert_eq!(shop.stream().await.len(), 2, "the order and what came of it");
    }

    /// R4 and R6: a transaction that the handler has broken or ended is never acknowledged as done.
    async fn work_that_was_not_committed_is_never_acknowledged(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let postgres = shop.db.kind == outbox_tests::Database::Postgres;
        let script = Script::new(|number, before| match (number, before) {
            (1, 0) => Act::BreakTheTransaction,
            (2, _) => Act::CommitItself,
            _ => Act::Ship,
        });
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping());
        for number in 1..=3 {
            shop.order(number).await;
        }
        shop.await_effects([1, 2, 3]).await;
        // Only PostgreSQL dooms a transaction with an error in it; the others go on.
        eventually("the broken one was tried again", DEADLINE, async || script.starts(1) == if postgres { 2 } else { 1 }).await;
        let dead = shop.await_dead_letters(1).await;
        assert_eq!(dead[0].reason, "transaction-ended", "{dead:?}");
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: a stop in the middle of a handler is no attempt, however often.
    async fn a_deploy_spends_no_attempt(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let script = Script::new(|_, before| if before < 4 { Act::Hang } else { Act::Ship });
        let relay = shop.relay();
        shop.order(1).await;
        shop.await_published([1]).await;
        for round in 1..=4 {
            let consumer = shop.consumer_within(&script, shipping().max_attempts(1), Duration::from_millis(200));
            eventually("the handler's start", DEADLINE, async || script.starts(1) == round).await;
            let stopped = consumer.stop().await;
            assert_eq!(stopped.abandoned, 1);
        }
        let consumer = shop.consumer(&script, shipping().max_attempts(1));
        shop.await_effects([1]).await;
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }

    /// R5: the broker is killed while messages are handled.
    async fn a_broker_outage_spends_no_attempt(db: TestDatabase) {
        let shop = Shop::open(db).await;
        // Some take so long that they are delivered again before they are handled.
        let script = Script::new(|number, _| Act::Take(Duration::from_millis(if number % 10 == 5 { 2000 } else { 100 })));
        // Before the handlers: on SQLite they hold the only writer for long.
        for number in 1..=30 {
            shop.order(number).await;
        }
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(1).ack_wait(Duration::from_secs(1)));
        eventually("some are handled", DEADLINE, async || shop.effects().await.len() >= 4).await;
        for _ in 0..2 {
            shop.nats.kill();
            tokio::time::sleep(Duration::from_millis(1200)).await;
            shop.nats.restart().await;
        }
        shop.await_effects(1..=30).await;
        eventually("all settled", DEADLINE, async || settled(&shop).await).await;
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }
}

#[handler(consumer = "shipping")]
async fn reject_all(order: OrderPlaced, cx: Context) -> Result<(), HandlerError> {
    let _ = order;
    Err(HandlerError::reject(format!(
        "no\r\n2026-01-01 INFO all is well \u{1b}[2J\u{202e}{}",
        cx.correlation_id()
    )))
}

/// Copies of a handled message are no news.
#[tokio::test]
async fn copies_are_no_news_in_the_log() {
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let (log, guard) = Log::of_this_thread(LevelFilter::INFO);
    let client = shop.nats.nats().connect().await;
    for _ in 0..100 {
        let mut headers = async_nats::HeaderMap::new();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", "the same"),
            ("ce-source", "y"),
            ("ce-type", "shop.orders.placed"),
        ] {
            headers.append(name, value);
        }
        let body = r#"{"number":1,"customer":null}"#;
        client
            .publish_with_headers("shop.orders.placed", headers, body.into())
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    let consumer = shop.consumer(&Script::always_ship(), shipping());
    shop.await_effects([1]).await;
    eventually("all copies settled", DEADLINE, async || {
        settled(&shop).await
    })
    .await;
    consumer.stop().await;
    drop(guard);
    for line in log.lines() {
        assert!(!line.contains("WARN") && !line.contains("ERROR"), "{line}");
    }
}

/// Whatever others write into a message, a record of the log stays one line without control characters
/// and of a limited length, payloads stay out of it, and so it is in a listing of dead letters.
#[tokio::test]
async fn what_others_write_forges_no_log_line() {
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let (log, guard) = Log::of_this_thread(LevelFilter::INFO);
    let client = shop.nats.nats().connect().await;
    let hostile = "x%0D%0A2026-01-01T00:00:00Z%20ERROR%20forged%1B%5B2J%E2%80%AE";
    let long = "y".repeat(20_000);
    let known = "shop.orders.placed";
    let (good, bad) = (r#"{"number":1,"customer":null}"#, r#"{"number":"a mark"}"#);
    for (id, event_type, correlation, body) in [
        (hostile, hostile, hostile, good),
        (long.as_str(), "z", "1", good),
        ("2%0A", known, hostile, good),
        ("3", known, long.as_str(), good),
        ("4", known, "2", bad),
    ] {
        let mut headers = async_nats::HeaderMap::new();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", id),
            ("ce-source", hostile),
            ("ce-type", event_type),
            ("ce-correlationid", correlation),
            ("ce-traceparent", correlation),
            ("tenant", "a mark"),
        ] {
            headers.append(name, value);
        }
        client
            .publish_with_headers(known, headers, body.into())
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    let stop = CancellationToken::new();
    let consumer = Consumer::of(reject_all {}).newer_version_delay(Duration::from_millis(10));
    let runtime = shop.bus.runtime(shop.broker.clone()).consumer(consumer);
    let running = tokio::spawn(runtime.run(stop.clone()));
    let dead = shop.await_dead_letters(5).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    drop(guard);
    let strange =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let lines = log.lines();
    let about = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!(about("dead-lettered"), 5, "{lines:#?}");
    assert!(
        about("handling failed") >= 3 && about("waits for a build") >= 2,
        "{lines:#?}"
    );
    for line in &lines {
        assert!(line.starts_with("20"), "a forged line: {line}");
        assert!(!line.contains(strange), "{line:?}");
        assert!(line.len() < 4000, "{} bytes: {line}", line.len());
        assert!(
            !line.contains("a mark"),
            "a value of a payload or header: {line}"
        );
    }
    for letter in &dead {
        let texts = [
            Some(&letter.subject),
            Some(&letter.error),
            Some(&letter.reason),
            letter.event_type.as_ref(),
            letter.key.as_ref(),
        ];
        for text in texts.into_iter().flatten() {
            assert!(
                !text.contains(strange) && text.chars().count() <= 1001,
                "{text:?}"
            );
        }
        assert!(!format!("{letter:?}").contains("a mark"), "{letter:?}");
    }
}

/// Publishes without any client library in the way.
async fn publish_raw(url: &str, subject: &str, headers: &[u8], payload: &[u8]) {
    let address = url.strip_prefix("nats://").expect("a NATS URL");
    let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let (head, total) = (headers.len(), headers.len() + payload.len());
    let mut out = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    out.extend(format!("HPUB {subject} {head} {total}\r\n").bytes());
    out.extend(headers);
    out.extend(payload);
    out.extend(b"\r\nPING\r\n");
    stream.write_all(&out).await.unwrap();
    line.clear();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "PONG\r\n");
}

/// Whether the consumer has settled everything in the stream.
async fn settled(shop: &Shop) -> bool {
    let js = shop.nats.nats().jetstream().await;
    let stream = js.get_stream("SHOP").await.unwrap();
    let Ok(mut consumer) = stream
        .get_consumer::<async_nats::jetstream::consumer::pull::Config>("shipping")
        .await
    else {
        return false;
    };
    let info = consumer.info().await.unwrap();
    info.num_pending == 0 && info.num_ack_pending == 0
}

/// The next message is on its way while the one before it is committed, and no further one; it begins after
/// the commit. A stop meanwhile hands it back at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_message_comes_while_one_is_committed_and_begins_after() {
    let shop = Shop::open(Database::Postgres.fresh().await).await;
    for sql in [
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION wait()",
    ] {
        shop.db.connection.execute_unprepared(sql).await.unwrap();
    }
    let relay = shop.relay();
    for number in 1..=5 {
        shop.order(number).await;
    }
    shop.await_published(1..=5).await;
    relay.stop().await;
    let held_up = shop.db.connection.begin().await.unwrap();
    held_up
        .execute_unprepared("SELECT pg_advisory_xact_lock(7)")
        .await
        .unwrap();
    let one_by_one = || shipping().concurrency(1).ack_wait(Duration::from_secs(600));
    let script = Script::always_ship();
    let first = shop.consumer(&script, one_by_one());
    let jetstream = shop.nats.nats().jetstream().await;
    let on_their_way = async |expected: usize| {
        eventually(
            "the next message, and no further one",
            DEADLINE,
            async || {
                let stream = jetstream.get_stream("SHOP").await.unwrap();
                let Ok(info) = stream.consumer_info("shipping").await else {
                    return Err("no durable".to_owned());
                };
                let seen = (info.num_ack_pending, info.num_waiting);
                if seen == (expected, 0) {
                    Ok(())
                } else {
                    Err(format!("{seen:?}"))
                }
            },
        )
        .await;
    };
    on_their_way(2).await;
    let started = |script: &Script| (1..=5).filter(|number| script.starts(*number) > 0).count();
    assert_eq!(
        started(&script),
        1,
        "the second one waits for the commit of the first"
    );

    first.stop.cancel();
    let other = Script::always_ship();
    let second = shop.consumer(&other, one_by_one());
    eventually(
        "another process begins with what was handed back",
        DEADLINE,
        async || other.starts(2) == 1,
    )
    .await;
    assert_eq!(started(&script), 1);
    held_up.rollback().await.unwrap();
    first.stop().await;
    shop.await_effects(1..=5).await;
    assert_eq!(
        started(&other),
        4,
        "the first one was committed and not handled again"
    );
    second.stop().await;
}
