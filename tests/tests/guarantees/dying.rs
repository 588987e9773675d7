//! R2, R4 and R5 with processes that are killed at any moment.

use std::{ops::RangeInclusive, time::Duration};

use outbox_tests::{Child, Database, NatsServer, TestDatabase, eventually, on_every_database};
use sea_orm::{ConnectionTrait, TransactionTrait};

use crate::server::end_session;
use crate::shop::{Act, Script, Shop, numbers, shipping};

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
        // One death on the first delivery, one to find out who it was, three alone.
        poison(db, 0, 3, 4..=6).await;
    }

    /// R6: with one crash allowed, those that died with it are not to blame.
    async fn neighbours_of_a_crash_are_not_to_blame(db: TestDatabase) {
        poison(db, 0, 1, 2..=4).await;
    }

    /// The same for one that takes all memory.
    async fn a_message_that_exhausts_memory_ends_in_the_dead_letters(db: TestDatabase) {
        // It blocks its thread beyond the ack wait, so one life can see several starts of it.
        poison(db, -1, 3, 2..=7).await;
    }
}

/// A message that kills its process, between others.
async fn poison(db: TestDatabase, poison: i64, max_crashes: u32, expected: RangeInclusive<u32>) {
    let shop = Shop::open(db).await;
    let relay = shop.relay();
    for number in [1, 2, 3, poison, 4, 5, 6] {
        shop.order(number).await;
    }
    shop.await_published([1, 2, 3, poison, 4, 5, 6]).await;
    relay.stop().await;
    let mut deaths = 0;
    let dead = loop {
        let allowed = max_crashes.to_string();
        let env = [
            ("DATABASE_URL", shop.db.url.as_str()),
            ("NATS_URL", shop.nats.nats().url()),
            ("MAX_CRASHES", allowed.as_str()),
        ];
        let node = Child::spawn(NODE, &["consumer"], &env);
        node.line_with("ready", LONG).await;
        // The others have become suspects, which wait for each other and come back ever later. The process
        // can die of an earlier start while the message is already dead-lettered.
        let done = eventually("the process dies, or all is done", LONG, async || {
            if node.has_exited() {
                return Ok(None);
            }
            let (dead, found) = (shop.dead_letters().await, shop.effects().await);
            if !dead.is_empty() && found == [1, 2, 3, 4, 5, 6] {
                Ok(Some(dead))
            } else {
                Err(format!("{found:?}, {dead:?}"))
            }
        })
        .await;
        if let Some(dead) = done {
            node.terminate();
            node.exit(LONG).await;
            break dead;
        }
        deaths += 1;
        assert!(deaths < 10, "it dies again and again");
    };
    assert_eq!(dead[0].reason, "crashed", "{dead:?}");
    assert!(expected.contains(&deaths), "it died {deaths} times");
    assert_eq!(shop.effects().await, [1, 2, 3, 4, 5, 6]);
}

/// R4: a process freezes in the middle of a handler, beyond the ack wait, and its message is delivered
/// to another. Whoever commits first, there is one effect, and nothing is settled that was not
/// committed. Not on SQLite, where a frozen writer stops everybody.
async fn stall(kind: Database) {
    let shop = Shop::open(kind.fresh().await).await;
    let db = &shop.db.connection;
    db.execute_unprepared("CREATE UNIQUE INDEX one_effect ON effects (number)")
        .await
        .unwrap();
    let relay = shop.relay();
    let script = Script::new(|_, before| if before == 0 { Act::Fail } else { Act::Ship });
    for (number, its_session_ends) in [(1, false), (2, true)] {
        let frozen = node(&shop, &shop.nats, "consumer");
        frozen.line_with("ready", LONG).await;
        // The handler waits for this row, and is frozen there.
        let gate = db.begin().await.unwrap();
        gate.execute_unprepared(&format!("INSERT INTO effects (number) VALUES ({number})"))
            .await
            .unwrap();
        shop.order(number).await;
        eventually("the handler waits", LONG, async || waiting(&shop).await > 0).await;
        frozen.freeze();
        gate.rollback().await.unwrap();
        eventually("the way is free", LONG, async || waiting(&shop).await == 0).await;
        let other = shop.consumer(&script, shipping().ack_wait(Duration::from_secs(1)));
        eventually("the other has it as well", LONG, async || {
            waiting(&shop).await > 0
        })
        .await;
        if its_session_ends {
            end_idle_transactions(&shop).await;
            shop.await_effects([1, 2]).await;
            assert_eq!(
                script.starts(number),
                2,
                "it was tried again after a failure"
            );
            frozen.thaw();
        } else {
            frozen.thaw();
            shop.await_effects([1]).await;
            assert_eq!(script.starts(number), 0, "the other found it done");
        }
        eventually("it is settled", LONG, async || unsettled(&shop).await == 0).await;
        frozen.terminate();
        frozen.exit(LONG).await;
        other.stop().await;
    }
    assert_eq!(shop.effects().await, [1, 2]);
    assert_eq!(shop.count("inbox").await, 2);
    assert!(shop.dead_letters().await.is_empty());
    relay.stop().await;
}

mod a_process_that_freezes_settles_nothing_of_others {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres() {
        stall(Database::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mariadb() {
        stall(Database::MariaDb).await;
    }
}

/// R4 and R8: a handler blocks its thread, so that its message is delivered elsewhere, where it waits
/// for the first one's transaction. All others are handled meanwhile, and there is one effect, whether
/// the thread goes on or its process is killed. Not on SQLite, where an open transaction stops everybody.
async fn block(kind: Database) {
    let shop = Shop::open(kind.fresh().await).await;
    let relay = shop.relay();
    let script = Script::always_ship();
    let gates = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for (number, killed) in [(-2, false), (-3, true)] {
        let env = [
            ("DATABASE_URL", shop.db.url.as_str()),
            ("NATS_URL", shop.nats.nats().url()),
            ("GATES", gates.path().to_str().unwrap()),
        ];
        let blocked = Child::spawn(NODE, &["consumer"], &env);
        blocked.line_with("ready", LONG).await;
        shop.order(number).await;
        blocked.line_with(&format!("blocked {number}"), LONG).await;
        let other = shop.consumer(&script, shipping().ack_wait(Duration::from_secs(1)));
        let neighbours = -number * 10..-number * 10 + 6;
        for neighbour in neighbours.clone() {
            shop.order(neighbour).await;
        }
        expected.extend(neighbours);
        expected.sort_unstable();
        shop.await_effects(expected.clone()).await;
        eventually("its message waits elsewhere", LONG, async || {
            waiting(&shop).await > 0
        })
        .await;
        if killed {
            blocked.kill();
        } else {
            std::fs::write(gates.path().join(number.to_string()), "").unwrap();
        }
        expected.push(number);
        expected.sort_unstable();
        shop.await_effects(expected.clone()).await;
        assert_eq!(script.starts(number), u32::from(killed));
        eventually("it is settled", LONG, async || unsettled(&shop).await == 0).await;
        if !killed {
            blocked.terminate();
            blocked.exit(LONG).await;
        }
        other.stop().await;
    }
    assert_eq!(
        shop.count("inbox").await,
        i64::try_from(expected.len()).unwrap()
    );
    assert!(shop.dead_letters().await.is_empty());
    relay.stop().await;
}

mod a_handler_that_blocks_its_thread_stops_nobody {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres() {
        block(Database::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mariadb() {
        block(Database::MariaDb).await;
    }
}

/// How many sessions wait for a row.
async fn waiting(shop: &Shop) -> i64 {
    let sql = match shop.db.kind {
        Database::Postgres => {
            "SELECT COUNT(*) AS number FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        }
        _ => {
            // Not `innodb_trx`, which shows an old state to whoever looks more often than ten times a second.
            "SELECT COUNT(*) AS number FROM information_schema.processlist \
             WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE 'INSERT INTO%'"
        }
    };
    numbers(&shop.db.connection, sql).await[0]
}

/// Ends the sessions that do nothing in an open transaction.
async fn end_idle_transactions(shop: &Shop) {
    let db = &shop.db.connection;
    match shop.db.kind {
        Database::Postgres => {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE datname = current_database() AND state = 'idle in transaction'";
            db.execute_unprepared(end).await.unwrap();
        }
        _ => {
            let idle = "SELECT p.id AS number FROM information_schema.innodb_trx t \
                        JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
                        WHERE p.db = DATABASE() AND p.command = 'Sleep'";
            for session in numbers(db, idle).await {
                end_session(db, session).await;
            }
        }
    }
}

/// How many messages the consumer has not settled.
async fn unsettled(shop: &Shop) -> usize {
    let js = shop.nats.nats().jetstream().await;
    let stream = js.get_stream("SHOP").await.unwrap();
    let info = stream.consumer_info("shipping").await.unwrap();
    info.num_ack_pending + usize::try_from(info.num_pending).unwrap()
}
