//! Reading the outbox: everything that is committed and not excluded, in order, within the limits.

use std::{collections::HashSet, time::Duration};

use outbox_core::store::{Backlog, FloorProbe, HeldReason, OutboxStore, Pool, SeqRuns, Store};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, TestDatabase, on_every_database};
use sea_orm::{ConnectionTrait, TransactionTrait};
use uuid::Uuid;

use crate::support::*;

on_every_database! {
    async fn exclusions_and_floor_are_obeyed(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..20).map(|_| record(None)).collect::<Vec<_>>()).await;
        let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        let query = |floor, exclude: &[usize], limit| {
            let mut query = everything();
            query.floor = floor;
            query.exclude = SeqRuns::of(exclude.iter().map(|at| seqs[*at]));
            query.limit = limit;
            query
        };
        let at = async |query| -> Vec<usize> {
            let rows = read(&store, query).await;
            rows.iter().map(|row| seqs.iter().position(|seq| *seq == row.seq).expect("a known row")).collect()
        };
        assert_eq!(at(query(0, &[0, 1, 2, 5, 9, 10, 19], 6)).await, [3, 4, 6, 7, 8, 11]);
        assert_eq!(at(query(seqs[7], &[9, 10], 3)).await, [8, 11, 12]);
        assert_eq!(at(query(seqs[9], &[0, 1, 2, 9, 11], 2)).await, [10, 12], "runs below the floor do no harm");
        assert!(at(query(0, &(0..20).collect::<Vec<_>>(), 5)).await.is_empty());
        assert!(at(query(seqs[19], &[], 5)).await.is_empty());
        assert!(at(query(0, &[], 0)).await.is_empty());
    }

    async fn many_runs_can_be_excluded(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..4000).map(|_| record(None)).collect::<Vec<_>>()).await;
        let mut query = everything();
        query.exclude = SeqRuns::of(rows.iter().step_by(2).map(|row| row.seq));
        query.limit = 1000;
        let others: Vec<i64> = rows.iter().skip(1).step_by(2).take(1000).map(|row| row.seq).collect();
        assert_eq!(read(&store, query).await.iter().map(|row| row.seq).collect::<Vec<_>>(), others);
    }

    /// Runs so long that a read does not look at what is left of them.
    async fn long_runs_are_passed_over(db: TestDatabase) {
        let store = store(&db).await;
        let records = |count| (0..count).map(|_| record(None)).collect::<Vec<_>>();
        let before = publish(&store, &records(100)).await;
        let first = before[99].seq + 1;
        let next = first + 20_000;
        let skip = match db.kind {
            Database::Postgres => format!("ALTER TABLE outbox ALTER COLUMN seq RESTART WITH {next}"),
            Database::MariaDb => format!("ALTER TABLE outbox AUTO_INCREMENT = {next}"),
            Database::Sqlite => format!("UPDATE sqlite_sequence SET seq = {} WHERE name = 'outbox'", next - 1),
        };
        db.connection.execute_unprepared(&skip).await.expect("skipped");
        assert_eq!(publish(&store, &records(100)).await[0].seq, next);
        let seqs: Vec<i64> = read(&store, everything()).await.iter().map(|row| row.seq).collect();
        let expect = |from: usize, left_out: &[usize], most: usize| -> Vec<i64> {
            (from..200).filter(|at| !left_out.contains(at)).take(most).map(|at| seqs[at]).collect()
        };
        let at = async |floor, in_hand: &[usize], limit| -> Vec<i64> {
            let mut query = everything();
            let mut numbers: Vec<i64> = (first..next).chain(in_hand.iter().map(|at| seqs[*at])).collect();
            numbers.sort_unstable();
            query.exclude = SeqRuns::of(numbers);
            (query.floor, query.limit) = (floor, limit);
            read(&store, query).await.iter().map(|row| row.seq).collect()
        };
        assert_eq!(at(0, &[], 1000).await, expect(0, &[], 1000));
        assert_eq!(at(0, &[], 100).await, expect(0, &[], 100), "up to the run");
        assert_eq!(at(0, &[], 101).await, expect(0, &[], 101), "over the run");
        assert_eq!(at(0, &[0, 50, 99, 101, 150], 150).await, expect(0, &[0, 50, 99, 101, 150], 150));
        assert_eq!(at(seqs[98], &[100], 3).await, expect(99, &[100], 3));
        assert_eq!(at(first - 1, &[], 3).await, expect(100, &[], 3), "it begins at the floor");
        assert_eq!(at(first + 10, &[], 3).await, expect(100, &[], 3), "it begins below the floor");
        assert_eq!(at(seqs[100], &[], 3).await, expect(101, &[], 3), "it lies below the floor");
        assert_eq!(at(0, &(0..99).collect::<Vec<_>>(), 1).await, [first - 1], "a row beside it");
    }

    async fn bytes_are_limited_but_one_row_always_comes(db: TestDatabase) {
        let store = store(&db).await;
        publish(&store, &[100, 0, 100, 50, 1, 5000].map(|size| payload(vec![7; size]))).await;
        for (max_bytes, rows) in [(0, 1), (99, 1), (100, 2), (199, 2), (200, 3), (250, 4), (251, 5), (5250, 5), (5251, 6)] {
            let mut query = everything();
            query.max_bytes = max_bytes;
            assert_eq!(read(&store, query).await.len(), rows, "{max_bytes}");
        }
        let mut query = everything();
        query.exclude = SeqRuns::of(read(&store, everything()).await[..2].iter().map(|row| row.seq));
        query.max_bytes = 150;
        assert_eq!(read(&store, query).await.iter().map(|row| row.payload.len()).collect::<Vec<_>>(), [100, 50]);
    }

    async fn deleting_asks_for_number_and_id(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..5).map(|_| record(None)).collect::<Vec<_>>()).await;
        let mut wrong = settled(&rows[0]);
        wrong.id = rows[1].id;
        let mut missing = settled(&rows[0]);
        missing.seq = 1_000_000;
        let deleted = store.settle(TARGET, &[wrong, missing, settled(&rows[2]), settled(&rows[3])]).await;
        assert_eq!(deleted.expect("settle"), 2);
        assert_eq!(store.settle(TARGET, &[settled(&rows[3])]).await.expect("settle"), 0, "again is no error");
        assert_eq!(store.settle(TARGET, &[]).await.expect("settle"), 0);
        assert_eq!(read_ids(&store).await, [rows[0].id, rows[1].id, rows[4].id]);
    }

    async fn thousands_are_deleted_at_once(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..2500).map(|_| record(None)).collect::<Vec<_>>()).await;
        let all: Vec<_> = rows.iter().map(settled).collect();
        assert_eq!(store.settle(TARGET, &all).await.expect("settle"), 2500);
        assert!(read_ids(&store).await.is_empty());
    }

    /// A lower number that commits after a higher one is found, whatever was read before.
    async fn late_commits_are_found(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return; // One transaction writes at a time.
        }
        let store = store(&db).await;
        let (early, late) = (record(None), record(None));
        let tx = store.begin(Pool::User).await.expect("begin");
        store.insert(&tx, TARGET, std::slice::from_ref(&early)).await.expect("insert");
        let rows = publish(&store, std::slice::from_ref(&late)).await;
        assert_eq!(read_ids(&store).await, [late.id]);
        let mut query = everything();
        query.exclude = SeqRuns::of([rows[0].seq]);
        store.commit(tx).await.expect("commit");
        let found = read(&store, query).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].id, early.id);
        assert!(found[0].seq < rows[0].seq);
    }

    /// Writers commit in any order and roll back now and then, while a reader takes and deletes.
    async fn nothing_is_lost_between_many_writers(db: TestDatabase) {
        let store = store(&db).await;
        let writers = (0..8).map(|_| {
            let (store, db) = (store.clone(), db.connection.clone());
            tokio::spawn(async move {
                let mut committed = Vec::new();
                for round in 0..40 {
                    let records: Vec<_> = (0..1 + round % 3).map(|_| record(None)).collect();
                    let tx = if round % 2 == 0 { store.begin(Pool::Consumer).await.expect("begin") } else { db.begin().await.expect("begin") };
                    store.insert(&tx, TARGET, &records).await.expect("insert");
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
                    if round % 7 == 3 {
                        tx.rollback().await.expect("roll back");
                    } else {
                        tx.commit().await.expect("commit");
                        committed.extend(records.iter().map(|record| record.id));
                    }
                }
                committed
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut seen: Vec<Uuid> = Vec::new();
        while !writers.iter().all(|writer| writer.is_finished()) || !read_ids(&store).await.is_empty() {
            let mut query = everything();
            query.limit = 5;
            let rows = read(&store, query).await;
            assert!(rows.is_sorted_by_key(|row| row.seq));
            seen.extend(rows.iter().map(|row| row.id));
            let all: Vec<_> = rows.iter().map(settled).collect();
            assert_eq!(store.settle(TARGET, &all).await.expect("settle"), rows.len() as u64);
        }
        let mut committed = HashSet::new();
        for writer in writers {
            committed.extend(writer.await.expect("a writer"));
        }
        assert_eq!(seen.len(), committed.len());
        assert_eq!(seen.into_iter().collect::<HashSet<_>>(), committed);
    }

    /// Rows edited by hand are delivered as far as they can be decoded, and the others with them.
    async fn a_row_edited_by_hand_does_not_break_the_batch(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..4).map(|_| record(Some("k"))).collect::<Vec<_>>()).await;
        let seq = rows[1].seq;
        run(&db.connection, &format!("UPDATE outbox SET event_type = '', event_version = -5, headers = 'nonsense' WHERE seq = {seq}")).await;
        let seq = rows[2].seq;
        match db.kind {
            Database::Postgres => run(&db.connection, &format!("UPDATE outbox SET occurred_at = 'infinity' WHERE seq = {seq}")).await,
            Database::MariaDb => run(&db.connection, &format!("UPDATE outbox SET ordering_key = X'ff00' WHERE seq = {seq}")).await,
            Database::Sqlite => run(&db.connection, &format!("UPDATE outbox SET event_type = CAST(X'ff61' AS TEXT), occurred_at = 9000000000000000000 WHERE seq = {seq}")).await,
        }
        let read = read(&store, everything()).await;
        assert_eq!(read.iter().map(|row| row.id).collect::<Vec<_>>(), rows.iter().map(|row| row.id).collect::<Vec<_>>());
        assert_eq!((read[1].event_type.as_str(), read[1].version, read[1].headers.as_str()), ("", -5, "nonsense"));
        store.backlog(TARGET).await.expect("metrics work too");
    }

    async fn the_backlog_is_counted(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        assert_eq!(store.backlog(TARGET).await.expect("backlog"), Backlog::default());
        let mut delayed = record(None);
        delayed.delay = Some(MINUTE);
        publish(&store, &[record(None), delayed, record(None)]).await;
        clock.advance(Duration::from_secs(20));
        let backlog = store.backlog(TARGET).await.expect("backlog");
        assert_eq!((backlog.waiting, backlog.oldest_age), (2, Some(Duration::from_secs(20))));
        assert_eq!(backlog.held, [(outbox_core::store::HeldReason::Scheduled, 1)]);
        let rows = read(&store, everything()).await;
        store.settle(TARGET, &rows.iter().map(settled).collect::<Vec<_>>()).await.expect("settle");
        assert_eq!(store.backlog(TARGET).await.expect("backlog").oldest_age, None, "the scheduled one is not due");
        clock.advance(Duration::from_secs(50));
        assert_eq!(store.backlog(TARGET).await.expect("backlog").oldest_age, Some(Duration::from_secs(10)));
    }

    /// A floor is proved only once every transaction that may hold a lower number has ended.
    async fn a_floor_waits_for_open_transactions(db: TestDatabase) {
        let store = store(&db).await;
        if db.kind != Database::Postgres {
            assert_eq!(store.probe_floor(TARGET, None).await.expect("probe"), None);
            return;
        }
        let first = store.probe_floor(TARGET, None).await.expect("probe").expect("a probe");
        assert_eq!((first.candidate, first.passed), (0, false));
        let tx = store.begin(Pool::User).await.expect("begin");
        store.insert(&tx, TARGET, &[record(None)]).await.expect("insert");
        let rows = publish(&store, &[record(None)]).await;
        let mut probe = store.probe_floor(TARGET, None).await.expect("probe").expect("a probe");
        assert_eq!(probe.candidate, rows[0].seq);
        for _ in 0..5 {
            probe = store.probe_floor(TARGET, Some(probe)).await.expect("probe").expect("a probe");
            assert!(!probe.passed, "a lower number is still open");
        }
        store.commit(tx).await.expect("commit");
        probe = passed(&store, probe).await;
        let next = store.probe_floor(TARGET, Some(probe)).await.expect("probe").expect("a probe");
        assert!(!next.passed, "a new round");
    }

    /// An old snapshot keeps dead rows, over which reads get slow, but it does not hold a floor back.
    async fn a_floor_does_not_wait_for_readers(db: TestDatabase) {
        if db.kind != Database::Postgres {
            return;
        }
        let store = store(&db).await;
        let rows = publish(&store, &[record(None), record(None)]).await;
        let level = sea_orm::IsolationLevel::RepeatableRead;
        let reader = db.connection.begin_with_config(Some(level), None).await.expect("begin");
        reader.query_all_raw(sea_orm::Statement::from_string(reader.get_database_backend(), "SELECT * FROM outbox")).await.expect("a snapshot");
        store.settle(TARGET, &rows.iter().map(settled).collect::<Vec<_>>()).await.expect("settle");
        let probe = store.probe_floor(TARGET, None).await.expect("probe").expect("a probe");
        assert_eq!(probe.candidate, rows[1].seq);
        passed(&store, probe).await;
        reader.commit().await.expect("commit");
    }

    /// Between taking its number and writing its row a transaction must be visible to the proof.
    async fn a_floor_waits_for_a_writer_that_has_only_a_number(db: TestDatabase) {
        if db.kind != Database::Postgres {
            return;
        }
        let store = store(&db).await;
        // Every 32nd number is logged, and brings a transaction id with it; not the next ones.
        publish(&store, &[record(None)]).await;
        run(&db.connection, "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN NEW; END'").await;
        run(&db.connection, "CREATE TRIGGER dawdle BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION dawdle()").await;
        for records in [1, 2] {
            let writer = tokio::spawn({
                let store = store.clone();
                async move {
                    let tx = store.begin(Pool::Consumer).await.expect("begin");
                    let records: Vec<_> = (0..records).map(|_| record(None)).collect();
                    store.insert(&tx, TARGET, &records).await.expect("insert");
                    store.commit(tx).await.expect("commit");
                }
            });
            tokio::time::sleep(Duration::from_millis(500)).await;
            let mut probe = store.probe_floor(TARGET, None).await.expect("probe").expect("a probe");
            assert!(probe.candidate > 0);
            probe = store.probe_floor(TARGET, Some(probe)).await.expect("probe").expect("a probe");
            assert!(!probe.passed && !writer.is_finished(), "the writer has a number and is not done");
            writer.await.expect("the writer");
            passed(&store, probe).await;
        }
    }

    /// A transaction that has published and goes on for long holds no relay up. SQLite has one writer.
    async fn the_relay_waits_for_no_writer(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let store = store(&db).await;
        let scheduled = |delay| {
            let mut record = record(Some("k"));
            record.delay = Some(delay);
            record
        };
        let rows = publish(&store, &[record(Some("k")), record(Some("k")), record(None), scheduled(Duration::ZERO)]).await;
        let slow = store.begin(Pool::User).await.expect("begin");
        let written = [record(None), record(Some("k")), scheduled(Duration::ZERO), scheduled(Duration::from_secs(60))];
        store.insert(&slow, TARGET, &written).await.expect("insert");
        let lease = lease(&store).await;
        let moves = [to_held(&rows[0], HeldReason::Failing), to_held(&rows[1], HeldReason::Parked)];
        let relaying = async {
            store.hold(&lease, &moves).await.expect("hold");
            store.repair_heads(&lease, false).await.expect("repair");
            assert_eq!(store.release_due(&lease, 100).await.expect("release"), 1);
            assert_eq!(store.settle(TARGET, &[settled(&rows[2])]).await.expect("settle"), 1);
            assert_eq!(read(&store, everything()).await.len(), 1, "the one that was due");
        };
        tokio::time::timeout(Duration::from_secs(5), relaying).await.expect("it waits for the writer");
        store.commit(slow).await.expect("commit");
        assert_eq!(read_ids(&store).await.len(), 3);
    }

    /// The relay may not make writers wait or fall victim to deadlocks, at the default isolation.
    async fn writers_never_see_a_deadlock(db: TestDatabase) {
        let store = store(&db).await;
        run(&db.connection, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)").await;
        run(&db.connection, "INSERT INTO accounts VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0)").await;
        let writers: Vec<_> = (0..8).map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..60 {
                    let tx = store.begin(Pool::User).await.expect("begin");
                    tx.execute_unprepared(&format!("UPDATE accounts SET n = n + 1 WHERE id = {writer}")).await.expect("update");
                    // Twice, as a transaction does that publishes several events one by one.
                    for _ in 0..2 {
                        let mut delayed = record(Some("k"));
                        delayed.delay = Some(Duration::from_millis(1));
                        store.insert(&tx, TARGET, &[record(None), record(Some("k")), delayed]).await.expect("insert");
                    }
                    store.commit(tx).await.expect("commit");
                }
            })
        }).collect();
        let lease = lease(&store).await;
        while !writers.iter().all(|writer| writer.is_finished()) {
            let mut query = everything();
            query.limit = 50;
            let rows = read(&store, query).await;
            let (gone, refused) = rows.split_at(rows.len() / 2);
            store.settle(TARGET, &gone.iter().map(settled).collect::<Vec<_>>()).await.expect("settle");
            let moves: Vec<_> = refused.iter().map(|row| to_held(row, HeldReason::Failing)).collect();
            store.hold(&lease, &moves).await.expect("hold");
            let mut due = all_held();
            due.reasons = vec![HeldReason::Failing];
            let failing: Vec<_> = held(&store, due).await.iter().map(|row| (row.id, row.row.id)).collect();
            store.settle_held(TARGET, &failing).await.expect("settle held rows");
            store.release_due(&lease, 100).await.expect("release");
            store.repair_heads(&lease, false).await.expect("repair");
        }
        for writer in writers {
            writer.await.expect("a writer saw an error");
        }
    }
}

/// The horizon counts for all databases of the server, so other tests can delay it.
async fn passed(store: &SeaOrm, mut probe: FloorProbe) -> FloorProbe {
    let mut tries = 0;
    while !probe.passed {
        tries += 1;
        assert!(tries < 600, "the horizon does not move");
        tokio::time::sleep(Duration::from_millis(50)).await;
        probe = store
            .probe_floor(TARGET, Some(probe))
            .await
            .expect("probe")
            .expect("a probe");
    }
    probe
}
