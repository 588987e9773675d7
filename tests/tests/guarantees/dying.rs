//! R2, R4 and R5 with processes that are killed at any moment.

use std::time::Duration;

use outbox_tests::{Child, NatsServer, TestDatabase, eventually, on_every_database};
use sea_orm::TransactionTrait;

use crate::shop::{Shop, numbers};

const NODE: &str = env!("CARGO_BIN_EXE_outbox-test-node");
const LONG: Duration = Duration::from_secs(120);

fn node(shop: &Shop, nats: &NatsServer, roles: &str) -> Child {
    Child::spawn(
        NODE,
        &[roles],
        &[
            ("DATABASE_URL", shop.db.url.as_str()),
            ("NATS_URL", nats.nats().url()),
        ],
    )
}

/// Places orders from several writers at once, every tenth of them rolled back. Returns those that
/// were committed.
async fn place(shop: &Shop, writers: i64, each: i64) -> Vec<i64> {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let (bus, db) = (shop.bus.clone(), shop.db.connection.clone());
        tasks.spawn(async move {
            let mut committed = Vec::new();
            for step in 0..each {
                let number = 1 + writer * each + step;
                let customer = format!("c{}", number % 50);
                loop {
                    let tx = db.begin().await.unwrap();
                    match Shop::write_order(&bus, &tx, number, Some(&customer)).await {
                        Ok(_) if number % 10 == 0 => tx.rollback().await.unwrap(),
                        Ok(_) => {
                            tx.commit().await.unwrap();
                            committed.push(number);
                        }
                        // SQLite's single writer may be busy for longer than the time-out.
                        Err(_) => {
                            let _ = tx.rollback().await;
                            continue;
                        }
                    }
                    break;
                }
            }
            committed
        });
    }
    let mut committed: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    committed.sort_unstable();
    committed
}

on_every_database! {
    /// Orders placed by eight writers with rollbacks, while the process that relays and ships is
    /// killed ten times: exactly the committed orders are shipped, each once, none dead-lettered.
    async fn killed_processes_lose_nothing_and_do_nothing_twice(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let each = if shop.db.kind == outbox_tests::Database::Sqlite { 125 } else { 1250 };
        let writing = place(&shop, 8, each);
        let killing = async {
            for round in 1..=10 {
                let node = node(&shop, &shop.nats, "relay,consumer");
                node.line_with("ready", LONG).await;
                // It gets on, and dies in the middle of it.
                let enough = 8 * each * 9 / 10 * round / 11;
                eventually("some progress", LONG, async || {
                    let shipped = shop.count("effects").await;
                    if shipped >= enough { Ok(()) } else { Err(format!("{shipped} of {enough}")) }
                })
                .await;
                node.kill();
            }
        };
        let (committed, ()) = tokio::join!(writing, killing);
        let node = node(&shop, &shop.nats, "relay,consumer");
        eventually("all committed orders shipped", LONG, async || {
            let shipped = shop.count("effects").await;
            let expected = i64::try_from(committed.len()).unwrap();
            if shipped >= expected { Ok(()) } else { Err(format!("{shipped} of {expected}")) }
        })
        .await;
        eventually("an empty outbox", LONG, async || shop.count("outbox").await == 0).await;
        node.terminate();
        node.exit(LONG).await;
        assert_eq!(shop.effects().await, committed, "each committed order once, and no other");
        assert!(shop.dead_letters().await.is_empty());
        assert_eq!(shop.count("outbox_held").await, 0);
        let orders = numbers(&shop.db.connection, "SELECT number FROM orders ORDER BY number").await;
        assert_eq!(orders, committed);
        // Per customer, in the order of the rows: one writer wrote them one after the other.
        let published = shop.published().await;
        for writer in 0..8 {
            for customer in 0..50 {
                let of: Vec<i64> = published
                    .iter()
                    .copied()
                    .filter(|number| (number - 1) / each == writer && number % 50 == customer)
                    .collect();
                assert!(of.is_sorted(), "writer {writer}, customer {customer}: {of:?}");
            }
        }
    }

    /// R5 and R6: a message that kills its process ends in the dead letters; its neighbours, which
    /// die with it, are handled.
    async fn a_message_that_kills_its_process_ends_in_the_dead_letters(db: TestDatabase) {
        let shop = Shop::open(db).await;
        let relay = shop.relay();
        for number in [1, 2, 3, 0, 4, 5, 6] {
            shop.order(number).await;
        }
        shop.await_published([0, 1, 2, 3, 4, 5, 6]).await;
        relay.stop().await;
        let mut deaths = 0;
        let dead = loop {
            let node = node(&shop, &shop.nats, "consumer");
            node.line_with("ready", LONG).await;
            let dead = eventually("the process dies or the message is dead-lettered", LONG, async || {
                let dead = shop.dead_letters().await;
                (!dead.is_empty() || node.has_exited()).then_some(dead)
            })
            .await;
            if !dead.is_empty() {
                shop.await_effects(1..=6).await;
                node.terminate();
                node.exit(LONG).await;
                break dead;
            }
            deaths += 1;
            assert!(deaths < 10, "it dies again and again");
        };
        assert_eq!(dead[0].reason, "crashed", "{dead:?}");
        // One death on the first delivery, one to find out who it was, three alone.
        assert!((4..=6).contains(&deaths), "it died {deaths} times");
        assert_eq!(shop.effects().await, [1, 2, 3, 4, 5, 6]);
    }
}
