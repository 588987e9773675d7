//! The inbox and the ledger of attempts.

use std::time::Duration;

use outbox_core::{
    error::StoreErrorKind,
    store::{AttemptEnd, InboxStore, Ledger, Pool, Store},
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, TestDatabase, on_every_database};
use sea_orm::{ConnectionTrait, TransactionTrait};
use uuid::Uuid;

use crate::support::*;

async fn record_one(store: &SeaOrm, consumer: &str, ids: &[Uuid]) -> Vec<bool> {
    let tx = store.begin(Pool::Consumer).await.expect("begin");
    let fresh = store.record(&tx, consumer, ids).await.expect("record");
    store.commit(tx).await.expect("commit");
    fresh
}

fn end(opened: bool, lone: bool, counted: bool, error: Option<&str>) -> AttemptEnd {
    AttemptEnd {
        opened,
        lone,
        counted,
        error: error.map(str::to_owned),
    }
}

on_every_database! {
    async fn a_message_is_new_once_per_consumer(db: TestDatabase) {
        let store = store(&db).await;
        let ids: Vec<Uuid> = (0..5).map(|number| if number % 2 == 0 { Uuid::now_v7() } else { Uuid::new_v4() }).collect();
        assert_eq!(record_one(&store, "a", &ids[..1]).await, [true]);
        assert_eq!(record_one(&store, "a", &ids[..1]).await, [false]);
        assert_eq!(record_one(&store, "b", &ids[..1]).await, [true]);
        assert_eq!(record_one(&store, "A", &ids[..1]).await, [true], "names are compared by bytes");
        let several = [ids[4], ids[0], ids[2], ids[4], ids[1]];
        assert_eq!(record_one(&store, "a", &several).await, [true, false, true, false, true]);
        assert_eq!(record_one(&store, "a", &several).await, [false; 5]);
        assert_eq!(record_one(&store, "a", &[]).await, Vec::<bool>::new());
        assert!(store.is_recorded("a", ids[2]).await.expect("look up"));
        assert!(!store.is_recorded("a", ids[3]).await.expect("look up"));
    }

    /// As handlers do it: the row comes with the beginning of the transaction.
    async fn a_message_is_recorded_as_its_transaction_begins(db: TestDatabase) {
        let store = store(&db).await;
        for consumer in ["a", "it's", r"back\slash", r"\'; --", "größer", "A"] {
            let id = Uuid::now_v7();
            for (new, end) in [(true, "roll back"), (true, "commit"), (false, "commit")] {
                let (tx, fresh) = store.begin_recorded(consumer, &[id]).await.expect("begin");
                assert_eq!(fresh, [new], "{consumer}");
                match end {
                    "commit" => store.commit(tx).await.expect("commit"),
                    _ => store.rollback(tx).await.expect("roll back"),
                }
                assert_eq!(store.is_recorded(consumer, id).await.expect("look up"), end == "commit", "{consumer}");
            }
            assert_eq!(record_one(&store, consumer, &[id]).await, [false], "{consumer}");
        }
        let ids = [Uuid::now_v7(), Uuid::now_v7()];
        let (tx, fresh) = store.begin_recorded("a", &ids).await.expect("begin");
        assert_eq!(fresh, [true, true]);
        store.commit(tx).await.expect("commit");
        assert_eq!(record_one(&store, "a", &ids).await, [false, false]);
    }

    /// Its guard is set: what somebody else has ended is not committed, and not said to be.
    async fn a_recorded_transaction_is_guarded(db: TestDatabase) {
        let store = store(&db).await;
        let id = Uuid::now_v7();
        let (tx, _) = store.begin_recorded("a", &[id]).await.expect("begin");
        run(&tx, "ROLLBACK").await;
        let error = store.commit(tx).await.expect_err("it was ended");
        assert_eq!(error.kind(), StoreErrorKind::TransactionLost, "{error:?}");
        assert!(!store.is_recorded("a", id).await.expect("look up"));
    }

    async fn a_transaction_goes_on_after_a_duplicate(db: TestDatabase) {
        let store = store(&db).await;
        let (old, new) = (Uuid::now_v7(), Uuid::now_v7());
        record_one(&store, "a", &[old]).await;
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        assert_eq!(store.record(&tx, "a", &[old]).await.expect("record"), [false]);
        assert_eq!(store.record(&tx, "a", &[new]).await.expect("record"), [true]);
        assert!(!store.is_recorded("a", new).await.expect("look up"), "not from outside");
        store.commit(tx).await.expect("commit");
        assert!(store.is_recorded("a", new).await.expect("look up"));
    }

    /// Concurrent copies: the second waits for the first, and is new exactly if the first was undone.
    async fn a_concurrent_copy_waits(db: TestDatabase) {
        let store = store(&db).await;
        for commit in [true, false] {
            let id = Uuid::now_v7();
            let first = store.begin(Pool::Consumer).await.expect("begin");
            assert_eq!(store.record(&first, "a", &[id]).await.expect("record"), [true]);
            let second = tokio::spawn({
                let store = store.clone();
                async move {
                    let tx = store.begin(Pool::Consumer).await.expect("begin");
                    let fresh = store.record(&tx, "a", &[id]).await;
                    store.commit(tx).await.expect("commit");
                    fresh
                }
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!second.is_finished(), "it waits");
            if commit {
                store.commit(first).await.expect("commit");
            } else {
                store.rollback(first).await.expect("roll back");
            }
            let fresh = second.await.expect("a task").expect("record");
            assert_eq!(fresh, [!commit]);
        }
    }

    async fn many_copies_have_one_effect(db: TestDatabase) {
        let store = store(&db).await;
        run(&db.connection, "CREATE TABLE effects (n INTEGER NOT NULL)").await;
        let ids: Vec<Uuid> = (0..10).map(|_| Uuid::now_v7()).collect();
        let copies: Vec<_> = (0..6).map(|copy| {
            let (store, mut ids) = (store.clone(), ids.clone());
            tokio::spawn(async move {
                fastrand::shuffle(&mut ids);
                for id in ids {
                    loop {
                        let tx = store.begin(Pool::Consumer).await.expect("begin");
                        match store.record(&tx, "a", &[id]).await {
                            Ok(fresh) if fresh[0] => {
                                tx.execute_unprepared("INSERT INTO effects VALUES (1)").await.expect("effect");
                                if copy % 3 == 0 && fastrand::bool() {
                                    store.rollback(tx).await.expect("roll back");
                                    continue;
                                }
                                store.commit(tx).await.expect("commit");
                                break;
                            }
                            Ok(_) => { store.rollback(tx).await.expect("roll back"); break; }
                            Err(error) => {
                                assert_eq!(error.kind(), StoreErrorKind::Busy, "{error:?}");
                                store.rollback(tx).await.expect("roll back");
                            }
                        }
                    }
                }
            })
        }).collect();
        for copy in copies {
            copy.await.expect("a copy");
        }
        assert_eq!(number(&db.connection, "SELECT COUNT(*) FROM effects").await, 10);
    }

    /// Two batches with the same ids in opposite order do not get into a deadlock.
    async fn batches_in_any_order_wait_for_each_other(db: TestDatabase) {
        let store = store(&db).await;
        for _ in 0..20 {
            let mut ids: Vec<Uuid> = (0..20).map(|_| Uuid::now_v7()).collect();
            let batch = |ids: Vec<Uuid>| {
                let store = store.clone();
                tokio::spawn(async move { record_one(&store, "a", &ids).await })
            };
            let one = batch(ids.clone());
            ids.reverse();
            let two = batch(ids);
            let (one, mut two) = (one.await.expect("one"), two.await.expect("two"));
            two.reverse();
            assert!(one.iter().zip(&two).all(|(one, two)| one != two), "each is new in one of both");
        }
    }

    /// The isolation level of the user's sessions does not turn a duplicate into a new message.
    async fn above_read_committed_a_concurrent_copy_is_busy_or_a_duplicate(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return; // It has one level.
        }
        let store = store(&db).await;
        let id = Uuid::now_v7();
        let level = sea_orm::IsolationLevel::Serializable;
        let tx = db.connection.begin_with_config(Some(level), None).await.expect("begin");
        let snapshot = "SELECT COUNT(*) FROM inbox WHERE consumer = 'x'";
        if db.kind == Database::Postgres {
            tx.execute_unprepared(snapshot).await.expect("a snapshot");
        }
        record_one(&store, "a", &[id]).await;
        match store.record(&tx, "a", &[id]).await {
            Ok(fresh) => assert_eq!(fresh, [false]),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Busy, "{error:?}"),
        }
    }

    async fn the_ledger_counts(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let id = Uuid::now_v7();
        assert_eq!(store.ledger("a", id).await.expect("ledger"), Ledger::default());
        let ledger = store.end_start("a", id, &end(false, false, true, Some("first 🦀"))).await.expect("end");
        let first_failed_at = Some(clock.now());
        assert_eq!(ledger, Ledger {
            attempts: 1,
            first_error: Some("first 🦀".to_owned()),
            last_error: Some("first 🦀".to_owned()),
            first_failed_at,
            last_failed_at: first_failed_at,
            ..Ledger::default()
        });
        store.open_start("a", id, false).await.expect("open");
        store.open_start("a", id, true).await.expect("open");
        let ledger = store.ledger("a", id).await.expect("ledger");
        assert_eq!((ledger.attempts, ledger.open_starts, ledger.lone_starts), (1, 2, 1));
        clock.advance(MINUTE);
        let ledger = store.end_start("a", id, &end(true, true, false, Some("busy"))).await.expect("end");
        assert_eq!((ledger.attempts, ledger.open_starts, ledger.lone_starts, ledger.uncounted), (1, 1, 0, 1));
        let ledger = store.end_start("a", id, &end(false, false, false, None)).await.expect("end");
        assert_eq!((ledger.uncounted, ledger.open_starts), (2, 1), "nothing had been opened");
        assert_eq!((ledger.first_error.as_deref(), ledger.last_error.as_deref()), (Some("first 🦀"), Some("busy")));
        assert_eq!((ledger.first_failed_at, ledger.last_failed_at), (first_failed_at, Some(clock.now())));
        let ledger = store.end_start("a", id, &end(true, false, true, Some(&"é".repeat(3000)))).await.expect("end");
        assert_eq!((ledger.attempts, ledger.open_starts, ledger.uncounted), (2, 0, 0), "a counted end ends the row");
        assert_eq!(ledger.last_error, Some("é".repeat(1000)));
        let ledger = store.end_start("a", id, &end(true, true, true, None)).await.expect("end");
        assert_eq!((ledger.open_starts, ledger.lone_starts), (0, 0), "never below zero");
        assert_eq!(store.ledger("b", id).await.expect("ledger"), Ledger::default());
        store.clear("b", id).await.expect("nothing to clear is no error");
        store.clear("a", id).await.expect("clear");
        assert_eq!(store.ledger("a", id).await.expect("ledger"), Ledger::default());
    }

    async fn starts_are_counted_one_by_one(db: TestDatabase) {
        let store = store(&db).await;
        let id = Uuid::now_v7();
        let starts: Vec<_> = (0..10).map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.open_start("a", id, number % 2 == 0).await })
        }).collect();
        for start in starts {
            start.await.expect("a task").expect("open");
        }
        let ledger = store.ledger("a", id).await.expect("ledger");
        assert_eq!((ledger.open_starts, ledger.lone_starts), (10, 5));
    }

    async fn clearing_is_part_of_the_success(db: TestDatabase) {
        let store = store(&db).await;
        let id = Uuid::now_v7();
        store.end_start("a", id, &end(false, false, true, None)).await.expect("end");
        for commit in [false, true] {
            let tx = store.begin(Pool::Consumer).await.expect("begin");
            store.clear_in(&tx, "a", id).await.expect("clear");
            if commit {
                store.commit(tx).await.expect("commit");
            } else {
                store.rollback(tx).await.expect("roll back");
            }
            let attempts = store.ledger("a", id).await.expect("ledger").attempts;
            assert_eq!(attempts, u32::from(!commit));
        }
    }

    async fn pruning_is_bounded_and_goes_by_time(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let old: Vec<Uuid> = (0..25).map(|_| Uuid::new_v4()).collect();
        record_one(&store, "a", &old).await;
        store.end_start("a", old[0], &end(false, false, true, None)).await.expect("end");
        clock.advance(10 * MINUTE);
        let new: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
        record_one(&store, "a", &new).await;
        store.end_start("a", new[0], &end(false, false, true, None)).await.expect("end");
        assert_eq!(store.prune(11 * MINUTE, 100).await.expect("prune"), 0);
        assert_eq!(store.prune(5 * MINUTE, 10).await.expect("prune"), 11, "ten and a ledger row");
        assert_eq!(store.prune(5 * MINUTE, 10).await.expect("prune"), 10);
        assert_eq!(store.prune(5 * MINUTE, 10).await.expect("prune"), 5);
        assert_eq!(store.prune(5 * MINUTE, 10).await.expect("prune"), 0);
        assert_eq!(record_one(&store, "a", &new).await, [false; 5]);
        assert_eq!(store.ledger("a", new[0]).await.expect("ledger").attempts, 1);
    }

    /// A handler takes its time, and its row is the first one that is young enough to stay. SQLite has one
    /// writer.
    async fn pruning_waits_for_no_handler_and_holds_none_up(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let (store, clock) = store_with_clock(&db).await;
        record_one(&store, "a", &[Uuid::now_v7(), Uuid::now_v7()]).await;
        store.end_start("a", Uuid::now_v7(), &end(false, false, true, None)).await.expect("end");
        clock.advance(10 * MINUTE);
        let slow = store.begin(Pool::Consumer).await.expect("begin");
        store.record(&slow, "a", &[Uuid::now_v7()]).await.expect("record");
        store.clear_in(&slow, "a", Uuid::now_v7()).await.expect("clear");
        let soon = Duration::from_secs(3);
        let pruned = tokio::time::timeout(soon, store.prune(MINUTE, 100)).await.expect("it waits");
        assert_eq!(pruned.expect("prune"), 3);
        let other = tokio::time::timeout(soon, record_one(&store, "a", &[Uuid::now_v7()])).await;
        assert_eq!(other.expect("another handler waits"), [true]);
        store.commit(slow).await.expect("commit");
    }

    /// Three processes prune while messages are handled; nobody sees an error.
    async fn pruning_disturbs_nobody(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        for _ in 0..20 {
            record_one(&store, "a", &(0..200).map(|_| Uuid::now_v7()).collect::<Vec<_>>()).await;
        }
        clock.advance(10 * MINUTE);
        let pruners: Vec<_> = (0..3).map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut pruned = 0;
                loop {
                    match store.prune(MINUTE, 100).await.expect("prune") {
                        0 => break pruned,
                        count => pruned += count,
                    }
                }
            })
        }).collect();
        let mut handled = 0;
        while !pruners.iter().all(|pruner| pruner.is_finished()) {
            assert_eq!(record_one(&store, "a", &[Uuid::now_v7()]).await, [true]);
            handled += 1;
        }
        let mut pruned = 0;
        for pruner in pruners {
            pruned += pruner.await.expect("a pruner");
        }
        // On PostgreSQL a pruner that finds all old rows in others' hands ends early.
        while let count @ 1.. = store.prune(MINUTE, 100).await.expect("prune") {
            pruned += count;
        }
        assert_eq!(pruned, 4000);
        assert_eq!(number(&db.connection, "SELECT COUNT(*) FROM inbox").await, handled);
    }
}
