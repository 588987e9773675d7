//! The tables: made once, by whoever comes first, under any name.

use std::time::Duration;

use outbox_core::{
    error::StoreErrorKind,
    store::{HeldReason, InboxStore, OutboxStore, Pool, Store},
};
use outbox_seaorm::{SeaOrm, migration_sql};
use outbox_tests::{Database, SqliteFile, TestDatabase, connect, on_every_database};
use sea_orm::{ConnectionTrait, DbErr, Statement, TransactionTrait};
use uuid::Uuid;

use crate::support::*;

/// The tables and columns that there are, in words.
pub async fn schema(db: &TestDatabase) -> Vec<String> {
    let sql = match db.kind {
        Database::Postgres => {
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public' \
            UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        }
        Database::MariaDb => {
            "SELECT CONCAT(table_name, '.', column_name, ' ', column_type, ' ', COALESCE(collation_name, '')) \
            FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY 1"
        }
        Database::Sqlite => "SELECT COALESCE(sql, '') FROM sqlite_schema ORDER BY 1",
    };
    let statement = Statement::from_string(db.connection.get_database_backend(), sql);
    let rows = db
        .connection
        .query_all_raw(statement)
        .await
        .expect("the schema");
    rows.iter()
        .map(|row| row.try_get_by_index(0).expect("text"))
        .collect()
}

/// Uses every table once.
async fn use_all(store: &SeaOrm) {
    let rows = publish(store, &[record(Some("k")), record(None)]).await;
    let lease = lease(store).await;
    store
        .hold(&lease, &[to_held(&rows[0], HeldReason::Parked)])
        .await
        .expect("hold");
    store.repair_heads(&lease, true).await.expect("repair");
    assert_eq!(held(store, all_held()).await.len(), 1);
    store
        .settle(TARGET, &[settled(&rows[1])])
        .await
        .expect("settle");
    store.backlog(TARGET).await.expect("backlog");
    store.probe_floor(TARGET, None).await.expect("probe");
    let tx = store.begin(Pool::Consumer).await.expect("begin");
    store
        .record(&tx, "a", &[Uuid::now_v7()])
        .await
        .expect("record");
    store.commit(tx).await.expect("commit");
    store
        .open_start("a", Uuid::now_v7(), true)
        .await
        .expect("open");
    store.prune(MINUTE, 10).await.expect("prune");
}

on_every_database! {
    async fn it_says_what_to_run(db: TestDatabase) {
        let store = SeaOrm::new(db.connection.clone());
        let error = store.check_schema().await.expect_err("nothing there");
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains("SeaOrm::migrate") && source.contains("migration_sql"), "{source}");
        migrated(store).await;
        let store = SeaOrm::builder(db.connection.clone()).target("more").build().expect("a store");
        let error = store.check_schema().await.expect_err("a target is missing");
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains("outbox_more") && source.contains("SeaOrm::migrate"), "{source}");
        use_all(&migrated(store).await).await;
    }

    async fn five_at_a_time_make_one_schema(db: TestDatabase) {
        let tasks: Vec<_> = {
            let mut tasks = Vec::new();
            for _ in 0..5 {
                let store = SeaOrm::new(db.connect(2).await);
                tasks.push(tokio::spawn(async move { store.migrate().await }));
            }
            tasks
        };
        for task in tasks {
            task.await.expect("a task").expect("migrate");
        }
        let together = schema(&db).await;
        let alone = db.kind.fresh().await;
        store(&alone).await;
        assert_eq!(together, schema(&alone).await);
        let migrations = number(&db.connection, "SELECT COUNT(*) FROM outbox_migration").await;
        assert_eq!(migrations, 3, "two versions of the shared tables, one of the outbox");
        use_all(&store(&db).await).await;
    }

    /// Of a file that nobody has used yet. Its mode is changed outside a transaction.
    async fn many_at_a_time_make_one_schema_in_a_new_file(db: TestDatabase) {
        if db.kind != Database::Sqlite {
            return;
        }
        for _ in 0..10 {
            let file = SqliteFile::new();
            let tasks: Vec<_> = (0..8).map(|_| {
                let url = file.url();
                tokio::spawn(async move {
                    let db = sea_orm::Database::connect(url).await.expect("connect");
                    SeaOrm::new(db).migrate().await
                })
            }).collect();
            for task in tasks {
                task.await.expect("a task").expect("migrate");
            }
        }
    }

    /// SQLite refuses at once to change the mode of a file that somebody writes to.
    async fn it_waits_for_whoever_writes_to_a_new_file(db: TestDatabase) {
        if db.kind != Database::Sqlite {
            return;
        }
        let file = SqliteFile::new();
        let connection = connect(&file.url(), 2).await.expect("connect");
        let writing = connection.begin().await.expect("begin");
        run(&writing, "CREATE TABLE orders (number INTEGER)").await;
        let migrating = SeaOrm::new(connection.clone());
        let migrating = migrating.migrate();
        tokio::pin!(migrating);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut migrating).await;
        assert!(early.is_err(), "{early:?}");
        writing.commit().await.expect("commit");
        migrating.await.expect("migrate");
    }

    async fn half_a_schema_is_completed(db: TestDatabase) {
        let statements = migration_sql(db.connection.get_database_backend()).expect("a script");
        for statement in statements.split(";\n").take(3) {
            run(&db.connection, statement).await;
        }
        use_all(&store(&db).await).await;
    }

    async fn the_script_does_the_same(db: TestDatabase) {
        let script = SeaOrm::new(db.connection.clone()).migration_sql();
        assert_eq!(Some(&script), migration_sql(db.connection.get_database_backend()).as_ref());
        for _ in 0..2 {
            for statement in script.split(";\n").filter(|statement| !statement.trim().is_empty()) {
                run(&db.connection, statement).await;
            }
        }
        let scripted = schema(&db).await;
        let other = db.kind.fresh().await;
        store(&other).await;
        assert_eq!(scripted, schema(&other).await);
        let store = SeaOrm::new(db.connection.clone());
        store.check_schema().await.expect("it is up to date");
        use_all(&store).await;
    }

    /// Inside the user's own migration.
    async fn it_runs_on_a_given_transaction(db: TestDatabase) -> Result<(), DbErr> {
        let store = SeaOrm::new(db.connection.clone());
        let tx = store.begin(Pool::User).await.expect("begin");
        SeaOrm::builder(sea_orm::DatabaseConnection::default()).migrate_with(&tx).await?;
        tx.commit().await?;
        store.check_schema().await.expect("it is up to date");
        use_all(&store).await;
        Ok(())
    }

    async fn no_right_to_create_is_needed_once_it_is_done(db: TestDatabase) {
        store(&db).await;
        let name = outbox_tests::unique("user");
        let restricted = match db.kind {
            Database::Postgres => {
                run(&db.connection, &format!("CREATE ROLE {name} LOGIN")).await;
                run(&db.connection, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")).await;
                db.url.replacen("postgres@", &format!("{name}@"), 1)
            }
            Database::MariaDb => {
                run(&db.connection, &format!("CREATE USER {name}")).await;
                run(&db.connection, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO {name}")).await;
                db.url.replacen("root@", &format!("{name}@"), 1)
            }
            Database::Sqlite => return, // It has no rights.
        };
        assert_ne!(restricted, db.url);
        let restricted = sea_orm::Database::connect(restricted).await.expect("connect");
        restricted.execute_unprepared("CREATE TABLE x (n INTEGER)").await.expect_err("it has no right to create");
        use_all(&migrated(SeaOrm::new(restricted)).await).await;
    }

    async fn names_can_be_chosen(db: TestDatabase) {
        let mut builder = SeaOrm::builder(db.connection.clone()).prefix("Msg").inbox_table("select").outbox_table("Order").target("Group");
        if db.kind != Database::Sqlite {
            builder = builder.schema("MySchema");
        }
        if db.kind == Database::MariaDb {
            run(&db.connection, "CREATE DATABASE IF NOT EXISTS `MySchema`").await;
        }
        let store = migrated(builder.build().expect("a store")).await;
        use_all(&store).await;
        let tx = store.begin(Pool::User).await.expect("begin");
        store.insert(&tx, "Group", &[record(None)]).await.expect("insert");
        store.commit(tx).await.expect("commit");
        assert_eq!(store.read("Group", &everything()).await.expect("read").len(), 1);
        if db.kind == Database::MariaDb {
            run(&db.connection, "DROP DATABASE `MySchema`").await;
        }
        // Beside them, the default ones.
        use_all(&self::store(&db).await).await;
    }

    async fn a_sequence_that_breaks_the_order_is_refused(db: TestDatabase) {
        if db.kind != Database::Postgres {
            return;
        }
        let store = store(&db).await;
        run(&db.connection, "ALTER TABLE outbox ALTER COLUMN seq SET CACHE 10").await;
        let error = store.check_schema().await.expect_err("cached numbers");
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(format!("{error:?}").contains("CACHE 1"), "{error:?}");
    }
}
