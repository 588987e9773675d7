//! Our own transactions: what was not committed is never taken for committed.

use std::time::Duration;

use outbox_core::{
    error::StoreErrorKind,
    store::{Pool, Store},
};
use outbox_tests::{Database, TestDatabase, on_every_database};
use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};

use crate::support::*;

async fn store_and_table(db: &TestDatabase) -> outbox_seaorm::SeaOrm {
    let store = store(db).await;
    run(
        &db.connection,
        "CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)",
    )
    .await;
    store
}

async fn things(db: &TestDatabase) -> i64 {
    number(&db.connection, "SELECT COUNT(*) FROM things").await
}

on_every_database! {
    async fn a_transaction_commits_or_rolls_back(db: TestDatabase) {
        let store = store_and_table(&db).await;
        for pool in [Pool::User, Pool::Consumer] {
            let before = things(&db).await;
            let tx = store.begin(pool).await.expect("begin");
            run(&tx, &format!("INSERT INTO things VALUES ({before}, 0)")).await;
            let nested = tx.begin().await.expect("nested");
            run(&nested, "INSERT INTO things VALUES (100, 0)").await;
            nested.rollback().await.expect("roll back");
            let nested = tx.begin().await.expect("nested");
            run(&nested, &format!("UPDATE things SET n = 7 WHERE id = {before}")).await;
            nested.commit().await.expect("commit");
            store.commit(tx).await.expect("commit");
            assert_eq!(things(&db).await, before + 1);
            assert_eq!(number(&db.connection, &format!("SELECT n FROM things WHERE id = {before}")).await, 7);

            let tx = store.begin(pool).await.expect("begin");
            run(&tx, "INSERT INTO things VALUES (100, 0)").await;
            store.rollback(tx).await.expect("roll back");
            assert_eq!(things(&db).await, before + 1);
        }
    }

    /// SeaORM's own commit says `Ok` here and commits nothing.
    async fn a_live_nested_transaction_is_caught(db: TestDatabase) {
        let store = store_and_table(&db).await;
        for depth in 1..=3 {
            let tx = store.begin(Pool::Consumer).await.expect("begin");
            run(&tx, "INSERT INTO things VALUES (1, 0)").await;
            let mut nested: Vec<DatabaseTransaction> = vec![tx.begin().await.expect("nested")];
            for _ in 1..depth {
                let deeper = nested[nested.len() - 1].begin().await.expect("nested");
                nested.push(deeper);
            }
            run(&nested[nested.len() - 1], "INSERT INTO things VALUES (2, 0)").await;
            let error = store.commit(tx).await.expect_err("nothing was committed");
            assert_eq!(error.kind(), StoreErrorKind::TransactionLost, "{error:?}");
            if db.kind != Database::MariaDb {
                // Its locks are free although the nested transaction lives.
                run(&db.connection, "INSERT INTO things VALUES (1, 0)").await;
                run(&db.connection, "DELETE FROM things").await;
            }
            // Nor is it committed by a nested transaction that goes on.
            while let Some(nested) = nested.pop() {
                let _ = nested.commit().await;
            }
            assert_eq!(things(&db).await, 0);
            poisoned_by_nothing(&store, &db).await;
        }
    }

    /// The nested transaction lives on, and even goes on writing. Its writes are never committed,
    /// except on SQLite, which has no read-only transactions.
    async fn a_rollback_frees_the_locks_of_a_live_nested_transaction(db: TestDatabase) {
        let store = store_and_table(&db).await;
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        run(&tx, "INSERT INTO things VALUES (1, 0)").await;
        let nested = tx.begin().await.expect("nested");
        run(&nested, "INSERT INTO things VALUES (2, 0)").await;
        store.rollback(tx).await.expect("roll back");
        run(&db.connection, "INSERT INTO things VALUES (1, 0), (2, 0)").await;
        let _ = nested.execute_unprepared("INSERT INTO things VALUES (3, 0)").await;
        let _ = nested.commit().await;
        assert_eq!(things(&db).await, if db.kind == Database::Sqlite { 3 } else { 2 });
        run(&db.connection, "DELETE FROM things").await;
        poisoned_by_nothing(&store, &db).await;
    }

    /// PostgreSQL's COMMIT says `Ok` after a swallowed error, and rolls back.
    async fn a_swallowed_error_is_never_a_silent_loss(db: TestDatabase) {
        let store = store_and_table(&db).await;
        run(&db.connection, "INSERT INTO things VALUES (1, 0)").await;
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        run(&tx, "INSERT INTO things VALUES (2, 0)").await;
        tx.execute_unprepared("INSERT INTO things VALUES (1, 0)").await.expect_err("a duplicate");
        let committed = store.commit(tx).await;
        if db.kind == Database::Postgres {
            assert_eq!(committed.expect_err("aborted").kind(), StoreErrorKind::TransactionLost);
            assert_eq!(things(&db).await, 1);
        } else {
            committed.expect("the transaction went on");
            assert_eq!(things(&db).await, 2);
        }
        poisoned_by_nothing(&store, &db).await;
    }

    async fn a_transaction_that_was_ended_by_hand_is_lost(db: TestDatabase) {
        let store = store_and_table(&db).await;
        for sql in ["COMMIT", "ROLLBACK"] {
            let tx = store.begin(Pool::Consumer).await.expect("begin");
            tx.execute_unprepared(sql).await.expect(sql);
            let error = store.commit(tx).await.expect_err("lost");
            assert_eq!(error.kind(), StoreErrorKind::TransactionLost, "{sql}");
            poisoned_by_nothing(&store, &db).await;
        }
    }

    /// MySQL ends the transaction at a deadlock; what follows must not be committed one by one.
    async fn nothing_is_committed_after_a_swallowed_deadlock(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return; // One transaction writes at a time.
        }
        let store = store_and_table(&db).await;
        run(&db.connection, "INSERT INTO things VALUES (1, 0), (2, 0)").await;
        let mut lost = 0;
        for _ in 0..5 {
            let first = store.begin(Pool::Consumer).await.expect("begin");
            let second = store.begin(Pool::Consumer).await.expect("begin");
            run(&first, "UPDATE things SET n = 0 WHERE id = 1").await;
            run(&second, "UPDATE things SET n = 0 WHERE id = 2").await;
            let both = tokio::join!(
                first.execute_unprepared("UPDATE things SET n = 0 WHERE id = 2"),
                async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    second.execute_unprepared("UPDATE things SET n = 0 WHERE id = 1").await
                },
            );
            for (tx, result) in [(first, both.0), (second, both.1)] {
                match result {
                    Ok(_) => store.commit(tx).await.expect("commit"),
                    Err(error) => {
                        assert_eq!(store.classify(&error), Some(StoreErrorKind::Busy));
                        lost += 1;
                        let _ = tx.execute_unprepared("INSERT INTO things VALUES (3, 0)").await;
                        let error = store.commit(tx).await.expect_err("lost");
                        assert_eq!(error.kind(), StoreErrorKind::TransactionLost);
                    }
                }
            }
        }
        assert!(lost > 0);
        assert_eq!(things(&db).await, 2, "nothing was committed after the deadlock");
        poisoned_by_nothing(&store, &db).await;
    }

    /// On a pool of one, the next borrower would find itself in the cancelled transaction, and a
    /// statement that should be committed by itself would not be.
    async fn a_cancelled_begin_never_poisons_the_pool(db: TestDatabase) {
        store_and_table(&db).await;
        let one = db.connect(1).await;
        let store = outbox_seaorm::SeaOrm::builder(one.clone()).share_connections().build().expect("a store");
        for round in 0..200 {
            for pool in [Pool::User, Pool::Consumer] {
                // Dropped after so many polls: each is another place in the exchange.
                let mut begin = Box::pin(store.begin(pool));
                for _ in 0..round % 20 {
                    if futures_util::poll!(begin.as_mut()).is_ready() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_micros(10)).await;
                }
                drop(begin);
                run(&one, "INSERT INTO things VALUES (1, 0)").await;
                assert_eq!(things(&db).await, 1, "seen by others");
                run(&one, "DELETE FROM things").await;
            }
        }
    }

    async fn events_are_written_last_and_committed_with_the_rest(db: TestDatabase) {
        let store = store_and_table(&db).await;
        let tx = store.begin(Pool::User).await.expect("begin");
        run(&tx, "INSERT INTO things VALUES (1, 0)").await;
        let events = vec![record(None), record(None)];
        store.commit_with(tx, TARGET, events.clone()).await.expect("commit");
        assert_eq!(things(&db).await, 1);
        assert_eq!(read_ids(&store).await, [events[0].id, events[1].id]);

        // An event that cannot be written takes the rest along.
        let tx = store.begin(Pool::User).await.expect("begin");
        run(&tx, "INSERT INTO things VALUES (2, 0)").await;
        store.commit_with(tx, "unknown", vec![record(None)]).await.expect_err("no such target");
        assert_eq!((things(&db).await, read_ids(&store).await.len()), (1, 2));

        // Nor does one survive a transaction that is lost.
        for sql in ["COMMIT", "ROLLBACK"] {
            let tx = store.begin(Pool::User).await.expect("begin");
            tx.execute_unprepared(sql).await.expect(sql);
            let error = store.commit_with(tx, TARGET, vec![record(None)]).await.expect_err("lost");
            assert_eq!(error.kind(), StoreErrorKind::TransactionLost);
        }
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        let nested = tx.begin().await.expect("nested");
        let error = store.commit_with(tx, TARGET, vec![record(None)]).await.expect_err("lost");
        assert_eq!(error.kind(), StoreErrorKind::TransactionLost);
        drop(nested);
        assert_eq!(read_ids(&store).await.len(), 2);
        poisoned_by_nothing(&store, &db).await;
    }

    async fn a_cancelled_commit_runs_to_its_end(db: TestDatabase) {
        let store = store_and_table(&db).await;
        for id in 0..40 {
            let tx = store.begin(Pool::Consumer).await.expect("begin");
            run(&tx, &format!("INSERT INTO things VALUES ({id}, 0)")).await;
            let _ = tokio::time::timeout(Duration::from_micros(1), store.commit(tx)).await;
        }
        outbox_tests::eventually("all are committed", Duration::from_secs(5), async || {
            let things = things(&db).await;
            if things == 40 { Ok(()) } else { Err(things) }
        })
        .await;
    }
}

/// Every connection of both pools begins and commits as it should.
async fn poisoned_by_nothing(store: &outbox_seaorm::SeaOrm, db: &TestDatabase) {
    for pool in [Pool::User, Pool::Consumer] {
        let before = things(db).await;
        let tx = store.begin(pool).await.expect("begin");
        run(&tx, "INSERT INTO things VALUES (1000, 0)").await;
        store.commit(tx).await.expect("commit");
        assert_eq!(things(db).await, before + 1);
        let tx = store.begin(pool).await.expect("begin");
        run(&tx, "DELETE FROM things WHERE id = 1000").await;
        store.commit(tx).await.expect("commit");
        assert_eq!(things(db).await, before);
    }
}
