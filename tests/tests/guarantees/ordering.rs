//! R7.

use std::time::{Duration, Instant};

use outbox_core::{Backoff, DeadHead};
use outbox_tests::{Database, TestDatabase, eventually, on_every_database};
use sea_orm::ConnectionTrait;

use crate::shop::{DEADLINE, Shop, relay};

/// Makes the relay refuse an order's row until [`mend`] repairs it: its subject is not allowed.
async fn spoil(shop: &Shop, sequence: i64) {
    let sql = format!(
        "UPDATE outbox SET subject = 'shop.orders.*' WHERE seq = (SELECT s FROM (SELECT MIN(seq) + {sequence} AS s FROM outbox) AS m)"
    );
    shop.db.connection.execute_unprepared(&sql).await.unwrap();
}

async fn mend(shop: &Shop) {
    shop.db
        .connection
        .execute_unprepared("UPDATE outbox_held SET subject = 'shop.orders.placed'")
        .await
        .unwrap();
}

/// The numbers of one customer's orders, in the order of the stream.
async fn of(shop: &Shop, from: i64, to: i64) -> Vec<i64> {
    shop.published()
        .await
        .into_iter()
        .filter(|number| (from..=to).contains(number))
        .collect()
}

on_every_database! {
    /// R7, with relays that die on the way and outages.
    async fn events_of_one_key_are_published_in_the_order_of_their_rows(db: TestDatabase) {
        let shop = Shop::open(db).await;
        for number in 0..200 {
            let customer = format!("c{}", number % 4);
            shop.order_for(number, Some(&customer)).await;
        }
        for round in 0..5_u64 {
            let relay = shop.relay_with(relay().batch(30).window(20));
            tokio::time::sleep(Duration::from_millis(30 + 20 * round)).await;
            if round == 2 {
                shop.nats.kill();
                shop.nats.restart().await;
            }
            relay.abort().await;
        }
        let relay = shop.relay();
        shop.await_published(0..200).await;
        relay.stop().await;
        let published = shop.published().await;
        for customer in 0..4 {
            let of_customer: Vec<i64> = published.iter().copied().filter(|number| number % 4 == customer).collect();
            assert!(of_customer.is_sorted(), "customer {customer}: {of_customer:?}");
        }
    }

    /// R7: the followers of a row that fails for a while wait for it, and leave with it; other keys go on.
    async fn followers_of_a_failing_row_wait_and_leave_with_it(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let js = shop.nats.nats().jetstream().await;
        let mut config = js.get_stream("SHOP").await.unwrap().cached_info().config.clone();
        config.max_message_size = 2_000;
        js.update_stream(config.clone()).await.unwrap();
        for number in 1..=3 {
            shop.order_for(number, Some("k")).await;
        }
        // Blanks around a JSON value say nothing, but they are too large for the stream.
        let blanks = "20".repeat(5_000);
        let larger = match shop.db.kind {
            Database::Postgres => format!("payload || decode('{blanks}', 'hex')"),
            Database::MariaDb => format!("CONCAT(payload, X'{blanks}')"),
            Database::Sqlite => format!("CAST(payload || X'{blanks}' AS BLOB)"),
        };
        let sql = format!(
            "UPDATE outbox SET payload = {larger} WHERE seq = (SELECT s FROM (SELECT MIN(seq) AS s FROM outbox) AS m)"
        );
        shop.db.connection.execute_unprepared(&sql).await.unwrap();
        for number in 4..=5 {
            shop.order_for(number, Some("l")).await;
        }
        let backoff = Backoff::fixed(Duration::from_secs(4));
        let relay = shop.relay_with(relay().backoff(backoff));
        shop.await_published([4, 5]).await;
        eventually("a row that fails and two that wait", DEADLINE, async || {
            shop.count("outbox_held WHERE reason = 'failing'").await == 1
                && shop.count("outbox_held WHERE reason = 'parked'").await == 2
        })
        .await;
        config.max_message_size = -1;
        js.update_stream(config).await.unwrap();
        eventually("the row that failed", DEADLINE, async || shop.published().await.contains(&1)).await;
        let began = Instant::now();
        shop.await_published(1..=5).await;
        assert!(began.elapsed() < Duration::from_secs(1), "they waited for {:?}", began.elapsed());
        assert_eq!(of(&shop, 1, 3).await, [1, 2, 3]);
        shop.await_empty("outbox_held").await;
        relay.stop().await;
    }

    /// R7: `Continue`: the followers of a dead row go on without it.
    async fn followers_of_a_dead_row_go_on(db: TestDatabase) {
        let shop = Shop::open(db).await;
        for number in 1..=5 {
            shop.order_for(number, Some("k")).await;
        }
        spoil(&shop, 1).await;
        let relay = shop.relay();
        shop.await_published([1, 3, 4, 5]).await;
        assert_eq!(of(&shop, 1, 5).await, [1, 3, 4, 5]);
        let dead = shop.await_dead_letters(1).await;
        mend(&shop).await;
        assert!(shop.bus.dead_letters(shop.broker.clone()).replay(dead[0].id).await.unwrap());
        shop.await_published([1, 2, 3, 4, 5]).await;
        relay.stop().await;
    }

    /// R7: `Park`: the followers of a dead row wait until it is replayed, with its old place.
    async fn followers_of_a_dead_row_wait_where_asked(db: TestDatabase) {
        let shop = Shop::open(db).await;
        for number in 1..=5 {
            shop.order_for(number, Some("k")).await;
        }
        spoil(&shop, 1).await;
        shop.order_for(6, Some("other")).await;
        let relay = shop.relay_with(relay().dead_head(DeadHead::Park));
        shop.await_published([1, 6]).await;
        let dead = shop.await_dead_letters(1).await;
        eventually("the followers parked", DEADLINE, async || shop.count("outbox_held WHERE reason = 'parked'").await == 3).await;
        // A late follower waits as well, also across a restart.
        relay.stop().await;
        shop.order_for(7, Some("k")).await;
        let relay = shop.relay_with(self::relay().dead_head(DeadHead::Park));
        eventually("the late follower parked", DEADLINE, async || shop.count("outbox_held WHERE reason = 'parked'").await == 4).await;
        mend(&shop).await;
        assert!(shop.bus.dead_letters(shop.broker.clone()).replay(dead[0].id).await.unwrap());
        shop.await_published([1, 2, 3, 4, 5, 6, 7]).await;
        let order: Vec<i64> = of(&shop, 1, 7).await.into_iter().filter(|number| *number != 6).collect();
        assert_eq!(order, [1, 2, 3, 4, 5, 7]);
        shop.await_empty("outbox_held").await;
        relay.stop().await;
    }

    /// R7: a discarded head lets its followers go.
    async fn a_discarded_head_lets_its_followers_go(db: TestDatabase) {
        let shop = Shop::open(db).await;
        for number in 1..=3 {
            shop.order_for(number, Some("k")).await;
        }
        spoil(&shop, 0).await;
        let relay = shop.relay_with(relay().dead_head(DeadHead::Park));
        let dead = shop.await_dead_letters(1).await;
        eventually("the followers parked", DEADLINE, async || shop.count("outbox_held WHERE reason = 'parked'").await == 2).await;
        assert!(shop.bus.dead_letters(shop.broker.clone()).discard(dead[0].id).await.unwrap());
        shop.await_published([2, 3]).await;
        shop.await_empty("outbox_held").await;
        relay.stop().await;
    }
}
