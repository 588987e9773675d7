//! Our own transactions. They are guarded by a savepoint.
//!
//! SeaORM's `commit()` says `Ok` and commits nothing if a nested transaction is still alive, and on
//! PostgreSQL if an earlier statement's error was swallowed; MySQL ends a transaction at a deadlock
//! and then commits what follows statement by statement. So a savepoint is set right after BEGIN
//! and released right before COMMIT:
//!
//! | what happened | what fails |
//! |---|---|
//! | a statement failed on PostgreSQL, its error was swallowed | RELEASE, with 25P02 |
//! | a deadlock ended the transaction on MySQL | RELEASE, with 1305 |
//! | the handler committed, rolled back, or ran DDL on MySQL | RELEASE |
//! | a nested transaction is still alive | RELEASE takes its savepoint along, so SeaORM's `commit()`, which would release that one, fails |
//!
//! Begin and commit run in tasks of their own: a cancelled BEGIN leaves a pooled connection inside
//! a transaction (sqlx 0.9.0), and a time-out must not cut a COMMIT.

use outbox_core::error::{StoreError, StoreErrorKind};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, IsolationLevel, SqliteTransactionMode,
    TransactionOptions, TransactionTrait,
};
use tokio::task::JoinHandle;

use crate::error::{DatabaseError, code, Code, failed, kind, was_answered};

const BEGIN: &str = "begin a transaction";
const COMMIT: &str = "commit a transaction";
const ROLLBACK: &str = "roll a transaction back";

/// Ends the transaction whatever nested ones are alive, and begins an empty one, so that SeaORM's
/// count of transactions still fits. A nested one that lives on must not commit by itself
/// afterwards, and the savepoints that it may still ask for exist.
const RESET: &str = "ROLLBACK; BEGIN; SAVEPOINT _sqlx_savepoint_1; SAVEPOINT _sqlx_savepoint_2; \
                     SAVEPOINT _sqlx_savepoint_3; SAVEPOINT _sqlx_savepoint_4";

pub(crate) async fn begin(db: DatabaseConnection, guard: &'static str) -> Result<DatabaseTransaction, StoreError> {
    let begun = tokio::spawn(async move {
        let tx = db.begin_with_options(options(&db, None)).await?;
        tx.execute_unprepared(guard).await?;
        Ok(tx)
    });
    ended(BEGIN, begun).await
}

/// A transaction of the framework's own, without a guard as nobody else uses it.
pub(crate) async fn begin_plain(db: DatabaseConnection) -> Result<DatabaseTransaction, StoreError> {
    let isolation = match db.get_database_backend() {
        DbBackend::Sqlite => None,
        _ => Some(IsolationLevel::ReadCommitted),
    };
    let begun = tokio::spawn(async move { db.begin_with_options(options(&db, isolation)).await });
    ended(BEGIN, begun).await
}

/// SQLite: a transaction that reads first and then writes fails at once if another one has written
/// meanwhile, so it takes the write lock at its beginning.
fn options(db: &DatabaseConnection, isolation_level: Option<IsolationLevel>) -> TransactionOptions {
    let sqlite = db.get_database_backend() == DbBackend::Sqlite;
    TransactionOptions {
        isolation_level,
        access_mode: None,
        sqlite_transaction_mode: sqlite.then_some(SqliteTransactionMode::Immediate),
    }
}

async fn ended<T>(operation: &'static str, task: JoinHandle<Result<T, DbErr>>) -> Result<T, StoreError> {
    match task.await {
        Ok(result) => result.map_err(|error| failed(operation, &error)),
        Err(error) => Err(StoreError::new(StoreErrorKind::Other, operation, error)),
    }
}

pub(crate) async fn commit(tx: DatabaseTransaction) -> Result<(), StoreError> {
    match tokio::spawn(release_and_commit(tx)).await {
        Ok(result) => result,
        // The runtime is going down, or the driver panicked: nobody knows.
        Err(error) => Err(StoreError::new(StoreErrorKind::CommitUnknown, COMMIT, error)),
    }
}

async fn release_and_commit(tx: DatabaseTransaction) -> Result<(), StoreError> {
    if tx.get_database_backend() == DbBackend::Sqlite {
        // Looked for here, since on SQLite a nested transaction that is never dropped would hold
        // the only write lock for ever. Looking costs no round trip.
        let nested = tx.execute_unprepared("RELEASE SAVEPOINT _sqlx_savepoint_1").await.is_ok();
        if nested {
            let _ = reset_and_rollback(tx).await;
            return Err(lost("a nested transaction was still alive"));
        }
    }
    if let Err(error) = tx.execute_unprepared("RELEASE SAVEPOINT outbox_guard").await {
        let error = match kind(&error) {
            Some(StoreErrorKind::Unavailable) => failed(COMMIT, &error),
            _ => StoreError::new(StoreErrorKind::TransactionLost, COMMIT, DatabaseError::from(&error)),
        };
        let _ = reset_and_rollback(tx).await;
        return Err(error);
    }
    tx.commit().await.map_err(|error| match (code(&error), kind(&error)) {
        // No such savepoint: SeaORM tried to release that of a nested transaction.
        (Some(Code::Postgres(code)), _) if code == "3B001" => lost("a nested transaction was still alive"),
        (Some(Code::MySql(1305)), _) => lost("a nested transaction was still alive"),
        (_, Some(StoreErrorKind::Unavailable)) => {
            StoreError::new(StoreErrorKind::CommitUnknown, COMMIT, DatabaseError::from(&error))
        }
        _ if was_answered(&error) => failed(COMMIT, &error),
        _ => StoreError::new(StoreErrorKind::CommitUnknown, COMMIT, DatabaseError::from(&error)),
    })
}

fn lost(why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::TransactionLost, COMMIT, DatabaseError::text(why))
}

pub(crate) async fn rollback(tx: DatabaseTransaction) -> Result<(), StoreError> {
    ended(ROLLBACK, tokio::spawn(reset_and_rollback(tx))).await
}

async fn reset_and_rollback(tx: DatabaseTransaction) -> Result<(), DbErr> {
    if let Err(error) = tx.execute_unprepared(RESET).await
        && !was_answered(&error)
    {
        // The connection is gone, and the transaction with it.
        return Err(error);
    }
    tx.rollback().await
}

/// Commits a transaction of [`begin_plain`].
pub(crate) async fn commit_plain(tx: DatabaseTransaction, operation: &'static str) -> Result<(), StoreError> {
    ended(operation, tokio::spawn(tx.commit())).await
}
