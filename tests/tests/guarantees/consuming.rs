//! R4, R5 and R6.

use std::time::Duration;

use outbox_tests::{TestDatabase, eventually, on_every_database};

use crate::shop::{Act, DEADLINE, Script, Shop, shipping};

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
        assert!(shop.dead_letters().await.is_empty());
        first.stop().await;
        second.stop().await;
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
        let consumer = shop.consumer(&script, shipping().max_attempts(3).timeout(Duration::from_millis(200)));
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
        for letter in dead.iter().filter(|letter| letter.reason == "out-of-attempts") {
            assert_eq!(letter.attempts, 3, "{letter:?}");
            assert_eq!(letter.consumer.as_deref(), Some("shipping"));
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
        let script = Script::new(|_, _| Act::Take(Duration::from_millis(100)));
        let relay = shop.relay();
        let consumer = shop.consumer(&script, shipping().max_attempts(1).ack_wait(Duration::from_secs(1)));
        for number in 1..=30 {
            shop.order(number).await;
        }
        eventually("some are handled", DEADLINE, async || shop.effects().await.len() >= 5).await;
        for _ in 0..2 {
            shop.nats.kill();
            shop.nats.restart().await;
        }
        shop.await_effects(1..=30).await;
        eventually("all settled", DEADLINE, async || settled(&shop).await).await;
        assert!(shop.dead_letters().await.is_empty());
        consumer.stop().await;
        relay.stop().await;
    }
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
