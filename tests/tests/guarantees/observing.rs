//! What operators see: health, backlog, metrics, and where a message comes from.

use std::{collections::HashMap, sync::OnceLock, time::Duration};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use outbox_core::{
    Bus, DeadLetterFilter, DeadLetterId, MemoryBroker, TraceContext,
    store::{HeldReason, InboxStore, Pool, Store},
};
use outbox_seaorm::{Clock, ManualClock, SeaOrm};
use outbox_tests::{Database, TestDatabase, eventually, on_every_database};

use crate::shop::{Act, DEADLINE, Script, Shop, shipping};

/// The metrics of this process; all tests share them.
fn metrics() -> &'static Snapshotter {
    static SNAPSHOTTER: OnceLock<Snapshotter> = OnceLock::new();
    SNAPSHOTTER.get_or_init(|| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install().expect("no other recorder is installed");
        snapshotter
    })
}

fn names() -> HashMap<String, Vec<f64>> {
    let mut names: HashMap<String, Vec<f64>> = HashMap::new();
    for (key, _, _, value) in metrics().snapshot().into_vec() {
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        names
            .entry(key.key().name().to_owned())
            .or_default()
            .push(value);
    }
    names
}

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
        shop.order(1).await;
        shop.db.connection.execute_unprepared("UPDATE outbox SET headers = 'nonsense'").await.unwrap();
        let relay = shop.relay();
        let dead = eventually("a dead row", DEADLINE, async || {
            let rows = shop.bus.held(&[HeldReason::Dead], 0, 10).await.unwrap();
            (!rows.is_empty()).then_some(rows)
        })
        .await;
        assert!(dead[0].last_error.as_deref().is_some_and(|error| error.contains("headers")), "{dead:?}");
        let backlog = shop.bus.backlog().await.unwrap();
        assert_eq!(backlog.held.iter().find(|(reason, _)| *reason == HeldReason::Dead), Some(&(HeldReason::Dead, 1)));
        assert_eq!(backlog.oldest_age, None, "a dead row is no late one");
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

/// The metrics that the alerts are made of move.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_metrics_move() {
    metrics();
    let shop = Shop::open(Database::Sqlite.fresh().await).await;
    let script = Script::new(|number, _| if number == 2 { Act::Reject } else { Act::Ship });
    let stop = tokio_util::sync::CancellationToken::new();
    let runtime = shop
        .bus
        .runtime(shop.broker.clone())
        .state(script)
        .relay(crate::shop::relay())
        .consumer(shipping());
    let running = tokio::spawn(runtime.run(stop.clone()));
    for number in 1..=3 {
        shop.order(number).await;
    }
    shop.await_effects([1, 3]).await;
    shop.await_dead_letters(1).await;
    // A snapshot takes the counters' values away, so what was seen is added up.
    let mut seen: HashMap<String, f64> = HashMap::new();
    eventually("all metrics", Duration::from_secs(30), async || {
        for (name, values) in names() {
            *seen.entry(name).or_default() += values.iter().sum::<f64>();
        }
        let missing: Vec<_> = [
            "outbox_publish_total",
            "outbox_publish_lag_seconds",
            "outbox_pending",
            "outbox_oldest_pending_age_seconds",
            "outbox_held",
            "outbox_relay_leader",
            "inbox_handled_total",
            "inbox_handler_duration_seconds",
            "inbox_dead_letters_total",
            "message_critical_time_seconds",
            "consumer_pending",
            "consumer_ack_pending",
            "dead_letters",
        ]
        .into_iter()
        .filter(|name| !seen.contains_key(*name))
        .collect();
        let counted = seen.get("inbox_handled_total").copied().unwrap_or_default() >= 3.0
            && seen
                .get("outbox_publish_total")
                .copied()
                .unwrap_or_default()
                >= 3.0
            && seen.get("dead_letters").copied().unwrap_or_default() >= 1.0;
        if missing.is_empty() && counted {
            Ok(())
        } else {
            Err(format!("missing {missing:?}, seen {seen:?}"))
        }
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();
}
