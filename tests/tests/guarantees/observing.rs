//! What operators see: health, backlog, metrics, and where a message comes from.

use std::time::Duration;

use outbox_core::{
    Bus, DeadHead, DeadLetterFilter, DeadLetterId, MemoryBroker, TraceContext,
    store::{HeldReason, InboxStore, Pool, Store},
};
use outbox_seaorm::{Clock, ManualClock, SeaOrm};
use outbox_tests::{Database, TestDatabase, eventually, on_every_database};

use crate::recorder::Metrics;
use crate::server::Server;
use crate::shop::{Act, DEADLINE, Running, Script, Shop, shipping};

on_every_database! {
    /// A broker outage makes the backlog and its age visible and leaves a producer ready.
    async fn a_broker_outage_is_seen_and_leaves_a_producer_ready(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let runtime = shop.bus.runtime(shop.broker.clone()).relay(crate::shop::relay());
        let health = runtime.health();
        assert!(!health.report().live, "not started");
        let stop = tokio_util::sync::CancellationToken::new();
        let running = tokio::spawn(runtime.run(stop.clone()));
        eventually("an active relay", DEADLINE, async || {
            let report = health.report();
            let active = report.relay.as_ref().is_some_and(|relay| relay.state == outbox_core::RelayState::Active);
            if active && report.problems.is_empty() { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        shop.nats.kill();
        shop.order(1).await;
        eventually("the outage in the report", DEADLINE, async || {
            let report = health.report();
            let backlog = report.backlog.clone().unwrap_or_default();
            let seen = report.live
                && report.ready
                && report.problems.iter().any(|problem| problem.contains("broker"))
                && backlog.waiting == 1
                && backlog.oldest_age.is_some();
            if seen { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        shop.nats.restart().await;
        shop.await_published([1]).await;
        eventually("a report without problems", DEADLINE, async || {
            let report = health.report();
            let well = report.problems.is_empty() && report.backlog.as_ref().is_some_and(|backlog| backlog.waiting == 0);
            if well { Ok(()) } else { Err(format!("{report:?}")) }
        })
        .await;
        stop.cancel();
        running.await.unwrap().unwrap();
        assert!(!health.report().live);
    }

    /// A relay that has given its lease up says so before another one can be active.
    async fn a_relay_that_stands_back_does_not_say_that_it_is_active(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let options = crate::shop::relay().lease(Duration::from_secs(2));
        let runtime = shop.bus.runtime(shop.broker.clone()).relay(options);
        let health = runtime.health();
        let stop = tokio_util::sync::CancellationToken::new();
        let running = tokio::spawn(runtime.run(stop.clone()));
        eventually("an active relay", DEADLINE, async || {
            health.report().relay.is_some_and(|relay| relay.state == outbox_core::RelayState::Active)
        })
        .await;
        shop.nats.kill();
        eventually("a lease that is given up", DEADLINE, async || {
            shop.count("outbox_lease WHERE owner IS NULL").await == 1
        })
        .await;
        let report = health.report();
        let relay = report.relay.clone().unwrap();
        assert_eq!(relay.state, outbox_core::RelayState::Standby, "{report:?}");
        assert!(report.problems.iter().any(|problem| problem.contains("broker")), "{report:?}");
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    /// The runtime prunes what the inbox has remembered for long enough, unasked.
    async fn the_inbox_shrinks_by_itself(db: TestDatabase) {
        let clock = ManualClock::default();
        let store = SeaOrm::builder(db.connection.clone()).clock(Clock::Manual(clock.clone())).build().unwrap();
        store.migrate().await.unwrap();
        for days in [2, 6, 0] {
            let tx = store.begin(Pool::Consumer).await.unwrap();
            let ids: Vec<_> = (0..1500).map(|_| uuid::Uuid::now_v7()).collect();
            store.record(&tx, "shipping", &ids).await.unwrap();
            store.commit(tx).await.unwrap();
            store.open_start("shipping", ids[0], false).await.unwrap();
            clock.advance(Duration::from_secs(86_400) * days);
        }
        let stop = tokio_util::sync::CancellationToken::new();
        let runtime = Bus::new(store).runtime(MemoryBroker::new());
        let running = tokio::spawn(runtime.run(stop.clone()));
        let count = async |table: &str| {
            let sql = format!("SELECT COUNT(*) AS number FROM {table}");
            crate::shop::numbers(&db.connection, &sql).await[0]
        };
        eventually("the rows of the last week alone", DEADLINE, async || {
            let left = (count("inbox").await, count("inbox_attempt").await);
            if left == (3000, 2) { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    /// Held rows are listed by reason, with their errors.
    async fn held_rows_are_counted_and_listed_by_reason(db: TestDatabase) {
        use sea_orm::ConnectionTrait;
        let shop = Shop::open(db).await;
        shop.order_for(1, Some("k")).await;
        shop.db.connection.execute_unprepared("UPDATE outbox SET headers = 'nonsense'").await.unwrap();
        let relay = shop.relay_with(crate::shop::relay().dead_head(DeadHead::Park));
        let dead = eventually("a dead row", DEADLINE, async || {
            let rows = shop.bus.held(&[HeldReason::Dead], 0, 10).await.unwrap();
            (!rows.is_empty()).then_some(rows)
        })
        .await;
        assert!(dead[0].last_error.as_deref().is_some_and(|error| error.contains("headers")), "{dead:?}");
        let backlog = shop.bus.backlog().await.unwrap();
        assert_eq!(backlog.held, [(HeldReason::Dead, 1)]);
        assert_eq!(backlog.oldest_age, None, "a dead row is no late one");
        for number in 2..=4 {
            shop.order_for(number, Some("k")).await;
        }
        let backlog = eventually("its followers parked", DEADLINE, async || {
            let backlog = shop.bus.backlog().await.unwrap();
            let parked = backlog.held.contains(&(HeldReason::Parked, 3)) && backlog.held.contains(&(HeldReason::Dead, 1));
            if parked { Ok(backlog) } else { Err(format!("{backlog:?}")) }
        })
        .await;
        assert!(backlog.oldest_age.is_some(), "they are late: {backlog:?}");
        let parked = shop.bus.held(&[HeldReason::Parked], 0, 10).await.unwrap();
        assert!(parked.len() == 3 && parked.iter().all(|row| row.last_error.is_none()), "{parked:?}");
        assert!(shop.bus.dead_letters(shop.broker.clone()).discard(DeadLetterId::Outbox(dead[0].id)).await.unwrap());
        shop.await_published(2..=4).await;
        shop.await_empty("outbox_held").await;
        relay.stop().await;
    }

    /// However large the rows are that it looks through.
    async fn a_listing_of_large_dead_rows_is_complete(db: TestDatabase) {
        use sea_orm::ConnectionTrait;
        let shop = Shop::open(db).await;
        for number in 1..=25 {
            shop.order(number).await;
        }
        let large = match shop.db.kind {
            Database::Postgres => "convert_to(repeat('x', 900000), 'UTF8')",
            Database::MariaDb => "REPEAT('x', 900000)",
            Database::Sqlite => "zeroblob(900000)",
        };
        let sql = format!("UPDATE outbox SET headers = 'nonsense', payload = {large}");
        shop.db.connection.execute_unprepared(&sql).await.unwrap();
        let relay = shop.relay();
        shop.await_empty("outbox").await;
        let letters = shop.dead_letters().await;
        assert_eq!(letters.len(), 25);
        let after_outbox = match letters[9].id {
            DeadLetterId::Outbox(id) => id,
            other => panic!("{other}"),
        };
        let filter = DeadLetterFilter { after_outbox, limit: 12, ..DeadLetterFilter::default() };
        let page = shop.bus.dead_letters(shop.broker.clone()).list(&filter).await.unwrap();
        assert_eq!(page, letters[10..22]);
        relay.stop().await;
    }

    /// Correlation, causation and trace flow from a handled message to what its handler publishes.
    async fn an_event_tells_what_caused_it(db: TestDatabase) {
        use sea_orm::TransactionTrait;
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        let consumer = shop.consumer(&Script::always_ship(), shipping());
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let tx = shop.db.connection.begin().await.unwrap();
        let trace = TraceContext::new(Some(parent.to_owned()), Some("vendor=1".to_owned()));
        let order = crate::shop::OrderPlaced { number: 1, customer: None };
        let id = shop.bus.publish_with(&tx, &order, outbox_core::Publish::new().trace(trace)).await.unwrap();
        tx.commit().await.unwrap();
        eventually("the follow-up", DEADLINE, async || shop.stream().await.len() == 2).await;
        let id = id.to_string();
        let messages = shop.stream().await;
        let follow_up = messages.iter().find(|message| message.subject == "shop.orders.shipped").unwrap();
        assert_eq!(follow_up.header("ce-correlationid"), Some(id.as_str()));
        assert_eq!(follow_up.header("ce-causationid"), Some(id.as_str()));
        assert_eq!(follow_up.header("ce-traceparent"), Some(parent));
        assert_eq!(follow_up.header("ce-tracestate"), Some("vendor=1"));
        consumer.stop().await;
        relay.stop().await;
    }
}

/// The metrics that the alerts are made of tell what happened, each message by how it ended.
#[tokio::test]
async fn the_documented_metrics_tell_what_happened() {
    let metrics = Metrics::default();
    let _guard = metrics::set_default_local_recorder(&metrics);
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let script = Script::new(|number, before| match (number, before) {
        (2, _) => Act::Reject,
        (3, 0) => Act::Fail,
        _ => Act::Ship,
    });
    let runtime = shop
        .bus
        .runtime(shop.broker.clone())
        .state(script)
        .relay(crate::shop::relay())
        .consumer(shipping());
    let running = Running::start(runtime);
    let id = shop.order(1).await.to_string();
    shop.order(2).await;
    shop.order(3).await;
    shop.await_effects([1, 3]).await;
    // A copy that JetStream does not know as one.
    let mut headers = async_nats::HeaderMap::new();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", id.as_str()),
        ("ce-source", "a replay by hand"),
        ("ce-type", "shop.orders.placed"),
    ] {
        headers.append(name, value);
    }
    let body = r#"{"number":1,"customer":null}"#;
    let jetstream = shop.nats.nats().jetstream().await;
    let copy = jetstream.publish_with_headers("shop.orders.placed", headers, body.into());
    copy.await.unwrap().await.unwrap();
    let [ok, duplicate, retry, dead] = ["ok", "duplicate", "retry", "dead"].map(|result| {
        format!(r#"inbox_handled_total{{consumer="shipping",result="{result}",type="shop.orders.placed"}}"#)
    });
    let expected = [
        (ok.as_str(), 2.0),
        (duplicate.as_str(), 1.0),
        (retry.as_str(), 1.0),
        (dead.as_str(), 1.0),
        (
            r#"inbox_handler_duration_seconds{consumer="shipping",type="shop.orders.placed"}"#,
            5.0,
        ),
        (
            r#"inbox_dead_letters_total{consumer="shipping",reason="rejected"}"#,
            1.0,
        ),
        (r#"message_critical_time_seconds{consumer="shipping"}"#, 2.0),
        (r#"consumer_pending{consumer="shipping"}"#, 0.0),
        (r#"consumer_ack_pending{consumer="shipping"}"#, 0.0),
        ("dead_letters", 1.0),
        // Three orders, and what the handler published.
        (r#"outbox_publish_total{result="ok",target="default"}"#, 5.0),
        (r#"outbox_publish_lag_seconds{target="default"}"#, 5.0),
        (r#"outbox_relay_leader{target="default"}"#, 1.0),
        (r#"outbox_pending{target="default"}"#, 0.0),
        (
            r#"outbox_oldest_pending_age_seconds{target="default"}"#,
            0.0,
        ),
        (r#"outbox_held{reason="parked",target="default"}"#, 0.0),
    ];
    eventually("all metrics", DEADLINE, async || metrics.are(&expected)).await;
    running.stop().await;
    let over = [(r#"outbox_relay_leader{target="default"}"#, 0.0)];
    metrics.are(&over).unwrap();
}

/// Rows that are held are counted by why, until they go.
#[tokio::test]
async fn the_metrics_tell_how_many_rows_are_held_and_why() {
    use sea_orm::ConnectionTrait;
    let metrics = Metrics::default();
    let _guard = metrics::set_default_local_recorder(&metrics);
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    shop.order_for(1, Some("k")).await;
    let spoil = "UPDATE outbox SET headers = 'nonsense'";
    shop.db.connection.execute_unprepared(spoil).await.unwrap();
    shop.order_for(2, Some("k")).await;
    shop.order_for(3, Some("k")).await;
    let relay = shop.relay_with(crate::shop::relay().dead_head(DeadHead::Park));
    let held = |dead, parked| {
        [
            (r#"outbox_held{reason="dead",target="default"}"#, dead),
            (r#"outbox_held{reason="parked",target="default"}"#, parked),
        ]
    };
    eventually("held rows", DEADLINE, async || metrics.are(&held(1.0, 2.0))).await;
    let dead = shop.await_dead_letters(1).await;
    let letters = shop.bus.dead_letters(shop.broker.clone());
    assert!(letters.discard(dead[0].id).await.unwrap());
    eventually("no held rows", DEADLINE, async || {
        metrics.are(&held(0.0, 0.0))
    })
    .await;
    shop.await_published([2, 3]).await;
    relay.stop().await;
}

/// A consumer tells that it is paused for as long as its database is away, and no longer.
#[tokio::test]
async fn the_metrics_tell_that_a_consumer_is_paused() {
    for kind in [Database::Postgres, Database::MariaDb] {
        let metrics = Metrics::default();
        let _guard = metrics::set_default_local_recorder(&metrics);
        let (server, db) = Server::start(kind).await;
        let shop = Shop::open(db).await;
        let consumer = shop.consumer(&Script::always_ship(), shipping());
        let paused = |value| [(r#"consumer_paused{consumer="shipping"}"#, value)];
        let runs = [(r#"consumer_pending{consumer="shipping"}"#, 0.0)];
        eventually("a consumer", DEADLINE, async || metrics.are(&runs)).await;
        server.kill();
        eventually("a pause", DEADLINE, async || metrics.are(&paused(1.0))).await;
        server.restart().await;
        eventually("no pause", DEADLINE, async || metrics.are(&paused(0.0))).await;
        consumer.stop().await;
    }
}
