//! Writing events: in order, byte for byte, with the transaction or not at all.

use std::time::Duration;

use outbox_core::{
    error::StoreErrorKind,
    store::{HeldReason, OutboxStore, Pool, Store},
};
use outbox_tests::{Database, TestDatabase, on_every_database};
use sea_orm::{ConnectionTrait, TransactionTrait};

use crate::support::*;

on_every_database! {
    async fn rows_are_numbered_in_the_order_of_the_slice(db: TestDatabase) {
        let store = store(&db).await;
        for count in [1, 2, 9, 300] {
            let records: Vec<_> = (0..count).map(|number| record(Some(&format!("k{number}")))).collect();
            let rows = publish(&store, &records).await;
            assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), records.iter().map(|record| record.id).collect::<Vec<_>>());
            assert!(rows.is_sorted_by_key(|row| row.seq));
        }
    }

    async fn numbers_are_never_given_again(db: TestDatabase) {
        let store = store(&db).await;
        let mut last = 0;
        for _ in 0..3 {
            let row = publish(&store, &[record(None)]).await.remove(0);
            assert!(row.seq > last);
            last = row.seq;
            store.settle(TARGET, &[settled(&row)]).await.expect("settle");
        }
    }

    async fn every_byte_comes_back(db: TestDatabase) {
        let store = store(&db).await;
        let bytes: Vec<u8> = (0..1 << 20).map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut large = payload(bytes);
        large.version = 7;
        large.key = Some("🦀 e\u{301} \u{202e}עברית\u{2028} ".to_owned());
        large.headers = "tenant: acme 🦀\nce-correlationid: c%20d\n".to_owned();
        let mut empty = payload(Vec::new());
        empty.key = Some("a\\b'c\"d%_ ".to_owned());
        for records in [vec![large.clone()], vec![large.clone(), empty.clone()]] {
            let rows = publish(&store, &records).await;
            assert_eq!(rows.len(), records.len());
            for (row, record) in rows.iter().zip(&records) {
                assert_eq!(row.payload, record.payload);
                assert_eq!(row.key, record.key);
                assert_eq!(row.headers, record.headers);
                assert_eq!(row.event_type, record.event_type);
                assert_eq!(row.subject, record.subject);
                assert_eq!(row.version, i32::from(record.version));
                assert!((time::OffsetDateTime::now_utc() - row.occurred_at).abs() < MINUTE, "{}", row.occurred_at);
            }
            let rows: Vec<_> = rows.iter().map(settled).collect();
            assert_eq!(store.settle(TARGET, &rows).await.expect("settle"), rows.len() as u64);
        }
    }

    /// MariaDB takes packets of 16 MiB by default.
    async fn a_huge_payload_is_whole_or_refused(db: TestDatabase) {
        let store = store(&db).await;
        let bytes: Vec<u8> = (0..20 << 20).map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let huge = payload(bytes);
        let tx = store.begin(Pool::User).await.expect("begin");
        let written = store.insert(&tx, TARGET, std::slice::from_ref(&huge)).await;
        if db.kind == Database::MariaDb {
            let error = written.expect_err("larger than a packet");
            assert_eq!(error.operation(), "write to the outbox");
            // The server closes the connection, at times before its answer has been read.
            let said = format!("{error:?}").contains("max_allowed_packet");
            assert!(said || error.kind() == StoreErrorKind::Unavailable, "{error:?}");
            drop(tx);
            assert!(read(&store, everything()).await.is_empty());
        } else {
            written.expect("insert");
            store.commit(tx).await.expect("commit");
            assert!(read(&store, everything()).await[0].payload == huge.payload);
        }
    }

    async fn what_rolls_back_is_gone(db: TestDatabase) {
        let store = store(&db).await;
        let tx = store.begin(Pool::User).await.expect("begin");
        store.insert(&tx, TARGET, &[record(None)]).await.expect("insert");
        store.rollback(tx).await.expect("roll back");

        let tx = db.connection.begin().await.expect("begin");
        let kept = record(None);
        store.insert(&tx, TARGET, std::slice::from_ref(&kept)).await.expect("insert");
        let nested = tx.begin().await.expect("a savepoint");
        store.insert(&nested, TARGET, &[record(None)]).await.expect("insert");
        nested.rollback().await.expect("roll back to the savepoint");
        tx.commit().await.expect("commit");
        assert_eq!(read_ids(&store).await, [kept.id]);
    }

    /// Dropped after so many polls: each is another place in the exchange with the server. On MySQL the
    /// driver loses step if a statement is cut while it is prepared; the next one says so.
    async fn a_write_that_is_cancelled_is_whole_or_absent(db: TestDatabase) {
        let store = store(&db).await;
        for records in [1, 3] {
            for polls in 0..40 {
                // No statement is prepared yet.
                let fresh = db.connect(1).await;
                let tx = fresh.begin().await.expect("begin");
                let written: Vec<_> = (0..records).map(|_| record(None)).collect();
                let mut insert = Box::pin(store.insert(&tx, TARGET, &written));
                for _ in 0..polls / 2 {
                    if futures_util::poll!(insert.as_mut()).is_ready() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_micros(polls % 2 * 100)).await;
                }
                drop(insert);
                let last = record(None);
                let usable = match store.insert(&tx, TARGET, std::slice::from_ref(&last)).await {
                    Ok(()) => {
                        tx.commit().await.expect("commit");
                        true
                    }
                    Err(error) => {
                        assert_eq!((db.kind, error.kind()), (Database::MariaDb, StoreErrorKind::Unavailable), "{error:?}");
                        drop(tx);
                        false
                    }
                };
                let rows = read(&store, everything()).await;
                let found = written.iter().filter(|record| rows.iter().any(|row| row.id == record.id)).count();
                assert!(found == 0 || usable && found == records, "{found} of {records} after {polls}");
                assert_eq!(rows.last().map(|row| row.id), usable.then_some(last.id));
                store.settle(TARGET, &rows.iter().map(settled).collect::<Vec<_>>()).await.expect("settle");
            }
        }
    }

    async fn delayed_events_are_scheduled(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let now = record(None);
        let mut later = [record(Some("k")), record(None)];
        later[0].delay = Some(Duration::from_secs(60));
        later[1].delay = Some(Duration::from_secs(30));
        let tx = store.begin(Pool::User).await.expect("begin");
        store.insert(&tx, TARGET, &[later[0].clone(), now.clone(), later[1].clone()]).await.expect("insert");
        store.commit(tx).await.expect("commit");
        assert_eq!(read_ids(&store).await, [now.id]);

        let mut filter = all_held();
        filter.reasons = vec![HeldReason::Scheduled];
        let rows = held(&store, filter).await;
        assert_eq!(rows.iter().map(|row| row.row.id).collect::<Vec<_>>(), [later[1].id, later[0].id], "by due time");
        assert_eq!(rows[1].due_in, Duration::from_secs(60));
        assert_eq!(rows[1].row.seq, 0);
        assert_eq!(store.next_due(TARGET).await.expect("next due"), Some(Duration::from_secs(30)));

        let lease = lease(&store).await;
        assert_eq!(store.release_due(&lease, 10).await.expect("release"), 0);
        clock.advance(Duration::from_secs(31));
        assert_eq!(store.next_due(TARGET).await.expect("next due"), Some(Duration::ZERO));
        assert_eq!(store.release_due(&lease, 10).await.expect("release"), 1);
        clock.advance(Duration::from_secs(31));
        assert_eq!(store.release_due(&lease, 10).await.expect("release"), 1);
        let rows = read(&store, everything()).await;
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [now.id, later[1].id, later[0].id]);
        assert_eq!(rows[2].key.as_deref(), Some("k"));
        assert_eq!(rows[2].occurred_at - rows[0].occurred_at, Duration::from_secs(60), "written when it was due");
    }

    async fn what_a_column_cannot_hold_is_refused(db: TestDatabase) {
        let store = store(&db).await;
        let mut records = [record(Some("a\0b")), record(Some(&"k".repeat(256))), record(None), record(None), record(None)];
        records[2].subject = "s".repeat(1025);
        records[3].headers = "a: \0\n".to_owned();
        records[4].event_type = "t".repeat(256);
        for record in records {
            let tx = store.begin(Pool::User).await.expect("begin");
            let error = store.insert(&tx, TARGET, &[record]).await.expect_err("refused");
            assert_eq!(error.operation(), "write to the outbox");
            store.insert(&tx, TARGET, &[self::record(None)]).await.expect("the transaction is still usable");
            store.rollback(tx).await.expect("roll back");
        }
        let tx = store.begin(Pool::User).await.expect("begin");
        let error = store.insert(&tx, "unknown", &[record(None)]).await.expect_err("no such target");
        assert!(format!("{error:?}").contains(".target(\\\"unknown\\\")"), "{error:?}");
        store.rollback(tx).await.expect("roll back");
    }

    /// Whatever the character set of the database and however lenient the session.
    async fn text_is_kept_whatever_the_defaults_are(db: TestDatabase) {
        if db.kind == Database::MariaDb {
            run(&db.connection, "ALTER DATABASE CHARACTER SET latin1").await;
        }
        let store = store(&db).await;
        let tx = store.begin(Pool::User).await.expect("begin");
        if db.kind == Database::MariaDb {
            run(&tx, "SET sql_mode = ''").await;
        }
        let mut record = record(Some("🦀"));
        record.headers = "a: 🦀 e\u{301}\n".to_owned();
        record.payload = vec![255; 1 << 20].into();
        store.insert(&tx, TARGET, &[record.clone()]).await.expect("insert");
        store.commit(tx).await.expect("commit");
        let row = &read(&store, everything()).await[0];
        assert_eq!((row.key.as_deref(), row.headers.as_str()), (Some("🦀"), record.headers.as_str()));
        assert_eq!(row.payload, record.payload);
    }

    async fn a_transaction_of_another_kind_of_database_is_refused(db: TestDatabase) {
        let store = store(&db).await;
        let other = if db.kind == Database::Sqlite { Database::Postgres } else { Database::Sqlite };
        let other = other.fresh().await;
        let tx = other.connection.begin().await.expect("begin");
        assert!(store.insert(&tx, TARGET, &[record(None)]).await.is_err());
        tx.execute_unprepared("SELECT 1").await.expect("it is still usable");
    }
}
