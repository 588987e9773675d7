//! The archive: published rows get there and back without being lost, doubled or changed.

use std::time::Duration;

use outbox_core::store::{
    ArchivedIds, ArchivedRow, HeldReason, OutboxRow, OutboxStore, Pool, Settled, SettledHeld, Store,
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, TestDatabase, on_every_database};
use uuid::Uuid;

use crate::{migrate::schema, support::*};

/// What `SeaOrm::migrate` made at version 1.
fn version_1(kind: Database) -> &'static str {
    match kind {
        Database::Postgres => include_str!("version_1/postgres.sql"),
        Database::MariaDb => include_str!("version_1/mysql.sql"),
        Database::Sqlite => include_str!("version_1/sqlite.sql"),
    }
}

async fn run_script(db: &TestDatabase, script: &str) {
    for statement in script
        .split(";\n")
        .filter(|statement| !statement.trim().is_empty())
    {
        run(&db.connection, statement).await;
    }
}

/// A row as it was published, as the `number`th message of its stream.
fn published(row: &OutboxRow, number: u64) -> Settled {
    Settled {
        stream_seq: number,
        ..settled(row)
    }
}

async fn archive(store: &SeaOrm, rows: &[OutboxRow]) -> u64 {
    let rows: Vec<_> = rows
        .iter()
        .zip(1..)
        .map(|(row, number)| published(row, number))
        .collect();
    store.archive(TARGET, &rows).await.expect("archive")
}

const ALL: ArchivedIds = ArchivedIds {
    first: i64::MIN,
    last: i64::MAX,
};

async fn archived(store: &SeaOrm) -> Vec<ArchivedRow> {
    store
        .archived(TARGET, ALL, 10_000)
        .await
        .expect("read the archive")
}

fn pairs(rows: &[ArchivedRow]) -> Vec<(i64, Uuid)> {
    rows.iter().map(|row| (row.id, row.message_id)).collect()
}

async fn count(db: &TestDatabase, table: &str) -> i64 {
    number(&db.connection, &format!("SELECT COUNT(*) FROM {table}")).await
}

on_every_database! {
    /// Into the archive and back: all as it was, but for the number.
    async fn a_kept_row_keeps_all_it_had(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let mut first = record(Some("k 🦀 "));
        first.headers = "a: b 🦀\n".to_owned();
        first.payload = vec![0, 255, 7].into();
        first.version = 3;
        let rows = publish(&store, &[first, record(None), record(None)]).await;
        clock.advance(Duration::from_secs(3));
        let odd = Settled { stream: "S\"\\é🦀".into(), stream_seq: u64::MAX, ..published(&rows[1], 0) };
        let moved = store.archive(TARGET, &[published(&rows[0], 41), odd]).await.expect("archive");
        assert_eq!(moved, 2);
        assert_eq!(read_ids(&store).await, [rows[2].id]);
        clock.advance(Duration::from_secs(5));
        let kept = archived(&store).await;
        assert_eq!(kept.len(), 2);
        let one = kept.iter().find(|row| row.message_id == rows[0].id).expect("the first");
        assert_eq!((one.stream.as_str(), one.stream_seq), ("S", 41));
        assert_eq!((one.event_type.as_str(), one.subject.as_str(), one.key.as_deref()), ("shop.placed", "shop.orders.placed", Some("k 🦀 ")));
        assert_eq!((one.published_at, one.age), (rows[0].occurred_at + Duration::from_secs(3), Duration::from_secs(5)));
        let two = kept.iter().find(|row| row.message_id == rows[1].id).expect("the second");
        assert_eq!((two.stream.as_str(), two.stream_seq), ("S\"\\é🦀", i64::MAX.unsigned_abs()));
        assert_eq!(store.republish(TARGET, &pairs(&kept)).await.expect("republish"), 2);
        assert!(archived(&store).await.is_empty());
        let back = read(&store, everything()).await;
        assert_eq!(back.iter().map(|row| row.id).collect::<Vec<_>>(), [rows[2].id, rows[0].id, rows[1].id], "in their old order, after the others");
        assert_eq!(OutboxRow { seq: rows[0].seq, ..back[1].clone() }, rows[0]);
    }

    /// What is not there under number and id is left alone, and repeating does nothing.
    async fn only_what_is_there_moves_and_once(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..700).map(|_| record(None)).collect::<Vec<_>>()).await;
        let mut settled: Vec<_> = rows.iter().map(|row| published(row, 1)).collect();
        settled[650].id = Uuid::now_v7();
        settled.push(settled[3].clone());
        assert_eq!(store.archive(TARGET, &settled).await.expect("archive"), 699);
        assert_eq!(read_ids(&store).await, [rows[650].id]);
        assert_eq!(archived(&store).await.len(), 699);
        assert_eq!(store.archive(TARGET, &settled).await.expect("archive"), 0);
        assert_eq!(store.archive(TARGET, &[]).await.expect("nothing is fine too"), 0);
        let mut back = pairs(&archived(&store).await);
        back[600].1 = Uuid::now_v7();
        back.push(back[3]);
        assert_eq!(store.republish("other", &back).await.expect_err("unknown").operation(), "republish archived rows");
        assert_eq!(store.republish(TARGET, &back).await.expect("republish"), 698);
        assert_eq!(store.republish(TARGET, &back).await.expect("republish"), 0);
        assert_eq!((read_ids(&store).await.len(), archived(&store).await.len()), (699, 1));
        store.archive("other", &settled).await.expect_err("there is no such target");
    }

    /// Ten at a time archive and republish the same rows: each is in one of the tables, once.
    async fn many_at_a_time_double_nothing(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..300).map(|_| record(None)).collect::<Vec<_>>()).await;
        let ids = { let mut ids: Vec<_> = rows.iter().map(|row| row.id).collect(); ids.sort_unstable(); ids };
        let tasks = (0..10).map(|_| { let (store, rows) = (store.clone(), rows.clone()); tokio::spawn(async move { archive(&store, &rows).await }) });
        let mut moved = 0;
        for task in tasks.collect::<Vec<_>>() { moved += task.await.expect("a task"); }
        assert_eq!(moved, 300);
        let kept = archived(&store).await;
        let mut found: Vec<_> = kept.iter().map(|row| row.message_id).collect();
        found.sort_unstable();
        assert_eq!(found, ids);
        assert!(read_ids(&store).await.is_empty());
        let tasks = (0..10).map(|_| { let (store, kept) = (store.clone(), pairs(&kept)); tokio::spawn(async move { store.republish(TARGET, &kept).await.expect("republish") }) });
        let mut moved = 0;
        for task in tasks.collect::<Vec<_>>() { moved += task.await.expect("a task"); }
        assert_eq!(moved, 300);
        let mut found = read_ids(&store).await;
        found.sort_unstable();
        assert_eq!(found, ids);
        assert!(archived(&store).await.is_empty());
    }

    /// The archive refuses the rows: they stay where they were, every one.
    async fn all_are_kept_or_none_is_gone(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..20).map(|_| record(None)).collect::<Vec<_>>()).await;
        archive(&store, &rows[..5]).await;
        let kept = pairs(&archived(&store).await);
        run(&db.connection, "ALTER TABLE outbox_archive RENAME TO elsewhere").await;
        let settled: Vec<_> = rows.iter().map(|row| published(row, 1)).collect();
        store.archive(TARGET, &settled).await.expect_err("there is no archive");
        store.republish(TARGET, &kept).await.expect_err("there is no archive");
        run(&db.connection, "ALTER TABLE elsewhere RENAME TO outbox_archive").await;
        assert_eq!((read_ids(&store).await.len(), archived(&store).await.len()), (15, 5));
        // Rows that cannot be taken out of their old table are not put into the new one either.
        let (on, off) = match db.kind {
            Database::Postgres => (
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$; \
                 CREATE TRIGGER no BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION no(); \
                 CREATE TRIGGER no BEFORE DELETE ON outbox_archive FOR EACH ROW EXECUTE FUNCTION no()",
                "DROP FUNCTION no() CASCADE",
            ),
            Database::MariaDb => (
                "CREATE TRIGGER no BEFORE DELETE ON outbox FOR EACH ROW SIGNAL SQLSTATE '45000'; \
                 CREATE TRIGGER no2 BEFORE DELETE ON outbox_archive FOR EACH ROW SIGNAL SQLSTATE '45000'",
                "DROP TRIGGER no; DROP TRIGGER no2",
            ),
            Database::Sqlite => (
                "CREATE TRIGGER no BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END; \
                 CREATE TRIGGER no2 BEFORE DELETE ON outbox_archive BEGIN SELECT RAISE(ABORT, 'no'); END",
                "DROP TRIGGER no; DROP TRIGGER no2",
            ),
        };
        run(&db.connection, on).await;
        store.archive(TARGET, &settled).await.expect_err("it cannot be deleted");
        store.republish(TARGET, &kept).await.expect_err("it cannot be deleted");
        run(&db.connection, off).await;
        assert_eq!((read_ids(&store).await.len(), archived(&store).await.len()), (15, 5));
        assert_eq!(store.archive(TARGET, &settled).await.expect("archive"), 15);
    }

    async fn held_rows_are_kept_too(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &[record(Some("k")), record(Some("k")), record(None)]).await;
        let lease = lease(&store).await;
        let moves: Vec<_> = rows.iter().map(|row| to_held(row, HeldReason::Failing)).collect();
        store.hold(&lease, &moves).await.expect("hold");
        let held = held(&store, all_held()).await;
        let mut settled: Vec<_> = held.iter().map(|row| SettledHeld { id: row.id, message_id: row.row.id, stream: "S".into(), stream_seq: 9 }).collect();
        settled[2].message_id = Uuid::now_v7();
        assert_eq!(store.archive_held("other", &settled).await.expect("archive"), 0, "another target's");
        assert_eq!(store.archive_held(TARGET, &settled).await.expect("archive"), 2);
        assert_eq!(store.archive_held(TARGET, &settled).await.expect("archive"), 0);
        let kept = archived(&store).await;
        assert_eq!(kept.iter().map(|row| (row.message_id, row.stream_seq, row.key.as_deref())).collect::<Vec<_>>(), [(rows[0].id, 9, Some("k")), (rows[1].id, 9, Some("k"))]);
        assert_eq!(store.republish(TARGET, &pairs(&kept)).await.expect("republish"), 2);
        assert_eq!(read_ids(&store).await, [rows[0].id, rows[1].id]);
    }

    /// The oldest first, in steps, each target by itself.
    async fn it_is_pruned_by_age_in_steps(db: TestDatabase) {
        let (store, clock) = {
            let clock = outbox_seaorm::ManualClock::default();
            let store = SeaOrm::builder(db.connection.clone()).target("more").clock(outbox_seaorm::Clock::Manual(clock.clone()));
            (migrated(store.build().expect("a store")).await, clock)
        };
        let rows = publish(&store, &(0..10).map(|_| record(None)).collect::<Vec<_>>()).await;
        let tx = store.begin(Pool::User).await.expect("begin");
        store.insert(&tx, "more", &[record(None)]).await.expect("insert");
        store.commit(tx).await.expect("commit");
        let other = store.read("more", &everything()).await.expect("read");
        assert_eq!(store.archive("more", &[published(&other[0], 1)]).await.expect("archive"), 1);
        archive(&store, &rows[..6]).await;
        clock.advance(MINUTE);
        archive(&store, &rows[6..]).await;
        assert_eq!(store.prune_archive(TARGET, MINUTE, 4).await.expect("prune"), 0, "not older, but as old");
        clock.advance(Duration::from_micros(1));
        assert_eq!(store.prune_archive(TARGET, MINUTE, 4).await.expect("prune"), 4);
        assert_eq!(store.prune_archive(TARGET, MINUTE, 4).await.expect("prune"), 2);
        assert_eq!(store.prune_archive(TARGET, MINUTE, 4).await.expect("prune"), 0);
        let kept: Vec<_> = archived(&store).await.iter().map(|row| row.message_id).collect();
        assert_eq!(kept, rows[6..].iter().map(|row| row.id).collect::<Vec<_>>());
        assert_eq!(store.archived("more", ALL, 10).await.expect("read").len(), 1, "another target's");
        assert_eq!(store.prune_archive("more", Duration::ZERO, 4).await.expect("prune"), 1);
    }

    async fn it_is_read_by_age_and_in_pages(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let rows = publish(&store, &(0..30).map(|_| record(None)).collect::<Vec<_>>()).await;
        assert_eq!(store.archived_ids(TARGET, None, None).await.expect("ids"), None);
        for part in rows.chunks(10) {
            archive(&store, part).await;
            clock.advance(MINUTE);
        }
        let read = async |oldest, newest| {
            let Some(mut ids) = store.archived_ids(TARGET, oldest, newest).await.expect("ids") else { return Vec::new() };
            let mut found = Vec::new();
            loop {
                let page = store.archived(TARGET, ids, 7).await.expect("read");
                let Some(last) = page.last() else { return found };
                assert!(page.len() <= 7);
                ids.first = last.id + 1;
                found.extend(page.iter().map(|row| row.message_id));
            }
        };
        let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        assert_eq!(read(None, None).await, ids);
        assert_eq!(read(Some(2 * MINUTE), None).await, ids[10..]);
        assert_eq!(read(None, Some(2 * MINUTE)).await, ids[..20]);
        assert_eq!(read(Some(5 * MINUTE / 2), Some(3 * MINUTE / 2)).await, ids[10..20]);
        assert!(read(None, Some(10 * MINUTE)).await.is_empty());
        assert_eq!(store.archived_ids("other", None, None).await.expect("ids"), None);
    }

    /// A database of version 1 with rows in it is brought up to date in place, and ends as a new one is.
    async fn version_1_is_upgraded_in_place(db: TestDatabase) {
        run_script(&db, version_1(db.kind)).await;
        let store = SeaOrm::new(db.connection.clone());
        let error = store.check_schema().await.expect_err("the archive is missing");
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains("older than this build") && source.contains("SeaOrm::migrate"), "{source}");
        // What a process of that version had written: the tables that it knew are the same.
        let rows = publish(&store, &[record(Some("k")), record(None), record(None)]).await;
        let lease = lease(&store).await;
        store.hold(&lease, &[to_held(&rows[0], HeldReason::Failing)]).await.expect("hold");
        let migrated = migrated(store).await;
        assert_eq!(read_ids(&migrated).await, [rows[1].id, rows[2].id]);
        assert_eq!(held(&migrated, all_held()).await[0].row, rows[0]);
        assert_eq!(archive(&migrated, &rows[1..]).await, 2);
        let fresh = db.kind.fresh().await;
        self::store(&fresh).await;
        assert_eq!(schema(&db).await, schema(&fresh).await);
    }

    /// A process of version 1 goes on beside the new tables: it finds its version, its own migration
    /// changes nothing, and its way of settling works on the same rows.
    async fn a_process_of_version_1_goes_on_beside_it(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &[record(None), record(None), record(None), record(None)]).await;
        archive(&store, &rows[..1]).await;
        let before = schema(&db).await;
        // How version 1 looks whether its tables are there.
        let found = number(&db.connection, "SELECT COUNT(*) FROM outbox_migration WHERE version = 1 AND component IN ('shared', 'outbox outbox')").await;
        assert_eq!(found, 2);
        run_script(&db, version_1(db.kind)).await;
        assert_eq!(schema(&db).await, before);
        assert_eq!(count(&db, "outbox_migration").await, 3);
        store.check_schema().await.expect("it is still up to date");
        assert_eq!(store.settle(TARGET, &[settled(&rows[1])]).await.expect("settle"), 1);
        let settled: Vec<_> = rows.iter().map(|row| published(row, 1)).collect();
        assert_eq!(store.archive(TARGET, &settled).await.expect("archive"), 2, "what was deleted is not kept");
        assert_eq!(archived(&store).await.len(), 3);
        assert!(read_ids(&store).await.is_empty());
    }

    async fn its_name_can_be_chosen(db: TestDatabase) {
        let build = |name: &str| SeaOrm::builder(db.connection.clone()).prefix("Msg").archive_table(name).build();
        build("Msgoutbox").expect_err("the outbox is called so");
        let store = migrated(build("Order").expect("a store")).await;
        let rows = publish(&store, &[record(None)]).await;
        assert_eq!(archive(&store, &rows).await, 1);
        let quoted = if db.kind == Database::MariaDb { "`Order`" } else { "\"Order\"" };
        assert_eq!(count(&db, quoted).await, 1);
        assert_eq!(store.republish(TARGET, &pairs(&archived(&store).await)).await.expect("republish"), 1);
        assert_eq!(store.prune_archive(TARGET, MINUTE, 1).await.expect("prune"), 0);
    }
}
