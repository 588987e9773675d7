//! What kind of error it is, by the database's codes.

use std::fmt;

use outbox_core::{
    error::StoreErrorKind,
    store::{InboxStore, Pool, Store},
};
use outbox_seaorm::SeaOrm;
use outbox_tests::{Database, MariaDb, MariaDbConfig, TestDatabase, on_every_database};
use sea_orm::{ConnectionTrait, DbErr, TransactionTrait};

use crate::support::*;

/// An error of the user's own, around one of the database.
#[derive(Debug)]
struct Mine(DbErr);

impl fmt::Display for Mine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the order could not be saved")
    }
}

impl std::error::Error for Mine {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

on_every_database! {
    async fn the_cause_is_found_in_the_chain(db: TestDatabase) {
        let store = store(&db).await;
        run(&db.connection, "CREATE TABLE things (id INTEGER PRIMARY KEY)").await;
        run(&db.connection, "INSERT INTO things VALUES (1)").await;
        let duplicate = db.connection.execute_unprepared("INSERT INTO things VALUES (1)").await.expect_err("a duplicate");
        assert_eq!(store.classify(&duplicate), Some(StoreErrorKind::Other));
        assert_eq!(store.classify(&Mine(duplicate)), Some(StoreErrorKind::Other));
        assert_eq!(store.classify(&fmt::Error), None, "no database error");
        assert_eq!(store.classify(&DbErr::RecordNotFound("a thing".to_owned())), None, "not from the database");
        let error = store.insert(&store.begin(Pool::User).await.expect("begin"), "unknown", &[]).await.expect_err("unknown");
        assert_eq!(store.classify(&error), Some(StoreErrorKind::Schema));
    }

    async fn a_missing_table_is_told_with_what_to_call(db: TestDatabase) {
        let store = SeaOrm::new(db.connection.clone());
        let tx = db.connection.begin().await.expect("begin");
        let error = store.insert(&tx, TARGET, &[record(None)]).await.expect_err("no tables");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}: {cause:?}");
        assert!(cause.as_deref().is_some_and(|cause| cause.contains("SeaOrm::migrate")), "{cause:?}");
        tx.rollback().await.expect("rollback");
        run(&db.connection, "CREATE TABLE things (id INTEGER PRIMARY KEY)").await;
        let other = db.connection.execute_unprepared("SELEC 1").await.expect_err("a mistake");
        assert_eq!(store.classify(&other), Some(StoreErrorKind::Other));
    }

    async fn waiting_in_vain_for_a_lock_is_busy(db: TestDatabase) {
        let store = store(&db).await;
        run(&db.connection, "CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER)").await;
        run(&db.connection, "INSERT INTO things VALUES (1, 0)").await;
        let first = store.begin(Pool::User).await.expect("begin");
        run(&first, "UPDATE things SET n = 1").await;
        let error = match db.kind {
            Database::Postgres => {
                let second = db.connection.begin().await.expect("begin");
                run(&second, "SET LOCAL lock_timeout = '100ms'").await;
                second.execute_unprepared("UPDATE things SET n = 2").await.expect_err("locked")
            }
            Database::MariaDb => {
                let second = db.connection.begin().await.expect("begin");
                run(&second, "SET innodb_lock_wait_timeout = 1").await;
                second.execute_unprepared("UPDATE things SET n = 2").await.expect_err("locked")
            }
            // The driver waits for five seconds.
            Database::Sqlite => db.connection.execute_unprepared("UPDATE things SET n = 2").await.expect_err("locked"),
        };
        assert_eq!(store.classify(&error), Some(StoreErrorKind::Busy), "{error:?}");
    }

    /// A failover can leave a connection on a server that only reads.
    async fn a_server_that_only_reads_is_unavailable(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let store = store(&db).await;
        let tx = db.connection.begin_with_config(None, Some(sea_orm::AccessMode::ReadOnly)).await.expect("begin");
        let error = store.insert(&tx, TARGET, &[record(None)]).await.expect_err("read-only");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    }

    async fn a_killed_connection_is_unavailable(db: TestDatabase) {
        if db.kind == Database::Sqlite {
            return;
        }
        let store = store(&db).await;
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        let id = if db.kind == Database::Postgres { "SELECT pg_backend_pid()" } else { "SELECT CONNECTION_ID()" };
        let row = tx.query_one_raw(sea_orm::Statement::from_string(tx.get_database_backend(), id)).await.expect("ask").expect("a row");
        match db.kind {
            Database::Postgres => {
                let id = row.try_get_by_index::<i32>(0).expect("a number");
                run(&db.connection, &format!("SELECT pg_terminate_backend({id})")).await;
            }
            _ => {
                let id = row.try_get_by_index::<u64>(0).expect("a number");
                run(&db.connection, &format!("KILL {id}")).await;
            }
        }
        let error = store.insert(&tx, TARGET, &[record(None)]).await.expect_err("killed");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        let error = store.commit(tx).await.expect_err("killed");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    }
}

/// Codes tell errors apart, not texts, which come in the server's language.
#[tokio::test]
async fn the_language_of_the_server_does_not_matter() {
    let german = MariaDbConfig::default().setting("lc_messages", "de_DE");
    let server = MariaDb::start_with(german).await;
    let db = TestDatabase::on(Database::MariaDb, server.create_database().await).await;
    let store = SeaOrm::new(db.connection.clone());
    let told = |error: DbErr| (store.classify(&error), error.to_string());
    let failing = async |sql: &str| {
        let error = db.connection.execute_unprepared(sql).await;
        told(error.expect_err(sql))
    };
    let (kind, text) = failing("DELETE FROM outbox").await;
    assert_eq!(kind, Some(StoreErrorKind::Schema), "{text}");
    assert!(text.contains("existiert nicht"), "{text}");
    run(
        &db.connection,
        "CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER)",
    )
    .await;
    run(&db.connection, "INSERT INTO things VALUES (1, 0), (2, 0)").await;
    let (kind, text) = failing("INSERT INTO things VALUES (1, 0)").await;
    assert_eq!(kind, Some(StoreErrorKind::Other), "{text}");
    assert!(text.contains("Doppelter Eintrag"), "{text}");

    let [first, second] = [(); 2].map(|()| db.connection.begin());
    let (first, second) = (first.await.expect("begin"), second.await.expect("begin"));
    run(&first, "UPDATE things SET n = 1 WHERE id = 1").await;
    run(&second, "UPDATE things SET n = 1 WHERE id = 2").await;
    run(&db.connection, "SET GLOBAL innodb_lock_wait_timeout = 1").await;
    let waiting = db.connect(1).await;
    let error = waiting
        .execute_unprepared("UPDATE things SET n = 2 WHERE id = 1")
        .await;
    let (kind, text) = told(error.expect_err("locked"));
    assert_eq!(kind, Some(StoreErrorKind::Busy), "{text}");
    assert!(!text.contains("Lock wait"), "{text}");
    let both = tokio::join!(
        first.execute_unprepared("UPDATE things SET n = 2 WHERE id = 2"),
        second.execute_unprepared("UPDATE things SET n = 2 WHERE id = 1"),
    );
    let (kind, text) = told(both.0.and(both.1).expect_err("a deadlock"));
    assert_eq!(kind, Some(StoreErrorKind::Busy), "{text}");
    assert!(!text.contains("Deadlock found"), "{text}");

    let store = migrated(store.clone()).await;
    let ids = [(); 3].map(|()| uuid::Uuid::now_v7());
    for (ids, new) in [
        (&ids[..1], vec![true]),
        (&ids[..1], vec![false]),
        (&ids[..], vec![false, true, true]),
    ] {
        let tx = store.begin(Pool::Consumer).await.expect("begin");
        let recorded = store.record(&tx, "shipping", ids).await.expect("record");
        assert_eq!(recorded, new, "copies are told");
        store.commit(tx).await.expect("commit");
    }
    let (tx, new) = store
        .begin_recorded("shipping", &ids[..1])
        .await
        .expect("begin");
    assert_eq!(new, [false], "copies are told");
    store.rollback(tx).await.expect("roll back");
}
