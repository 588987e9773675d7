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
//! Begin and commit run to their end whatever becomes of their caller: a cancelled BEGIN leaves a
//! pooled connection inside a transaction (sqlx 0.9.0), and a time-out must not cut a COMMIT.

use outbox_core::{
    error::{StoreError, StoreErrorKind},
    failpoint::Failpoint,
};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, IsolationLevel,
    RuntimeErr, SqliteTransactionMode, TransactionOptions, TransactionTrait,
};

use crate::{
    error::{Code, DatabaseError, code, failed, kind, was_answered},
    persistent::{Panicked, persistent},
};

pub(crate) const BEGIN: &str = "begin a transaction";
pub(crate) const COMMIT: &str = "commit a transaction";
pub(crate) const ROLLBACK: &str = "roll a transaction back";

/// Begins an empty transaction in place of the one that was ended, so that SeaORM's count of
/// transactions still fits, with the savepoints that nested ones may still ask for. Read-only, as
/// a nested one that lives on must not write and commit by itself; SQLite has no such transactions.
fn placeholder(backend: DbBackend) -> String {
    let begin = match backend {
        DbBackend::Postgres => "BEGIN READ ONLY",
        DbBackend::MySql => "START TRANSACTION READ ONLY",
        _ => "BEGIN",
    };
    let savepoints = (1..=8).map(|depth| format!("; SAVEPOINT _sqlx_savepoint_{depth}"));
    savepoints.fold(begin.to_owned(), |sql, savepoint| sql + &savepoint)
}

pub(crate) async fn begin(
    db: DatabaseConnection,
    guard: &'static str,
) -> Result<DatabaseTransaction, StoreError> {
    let begun = persistent(async move {
        let tx = db.begin_with_options(options(&db, None)).await?;
        tx.execute_unprepared(guard).await?;
        Failpoint::after(|| format!("{BEGIN}: BEGIN")).passed();
        Ok(tx)
    });
    ended(begun.await).map_err(|error| failed(BEGIN, &error))
}

/// Begins a transaction whose first statement will set the guard.
///
/// The pool does not ask a connection for a sign of life before it gives it out, which would be a round
/// trip for each transaction. So a connection that turns out to be dead is passed over for the next one;
/// there are `most` at most.
pub(crate) async fn begin_unguarded(
    db: DatabaseConnection,
    most: u32,
) -> Result<DatabaseTransaction, StoreError> {
    let begun = persistent(async move {
        let mut dead = 0;
        loop {
            match db.begin_with_options(options(&db, None)).await {
                Err(error) if dead < most && lost_its_connection(&error) => dead += 1,
                begun => {
                    Failpoint::after(|| format!("{BEGIN}: BEGIN")).passed();
                    return begun;
                }
            }
        }
    });
    ended(begun.await).map_err(|error| failed(BEGIN, &error))
}

/// Sets the guard of a transaction that has just begun.
pub(crate) async fn set(
    tx: DatabaseTransaction,
    guard: &'static str,
) -> Result<DatabaseTransaction, StoreError> {
    match tx.execute_unprepared(guard).await {
        Ok(_) => Ok(tx),
        Err(error) => Err(failed(BEGIN, &error)),
    }
}

/// Whether it was an open connection that failed, and not the attempt to get one.
fn lost_its_connection(error: &DbErr) -> bool {
    kind(error) == Some(StoreErrorKind::Unavailable)
        && !matches!(error, DbErr::ConnectionAcquire(_) | DbErr::Conn(_))
}

/// A transaction of the framework's own, without a guard as nobody else uses it.
pub(crate) async fn begin_plain(db: DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    let isolation = match db.get_database_backend() {
        DbBackend::Sqlite => None,
        _ => Some(IsolationLevel::ReadCommitted),
    };
    ended(persistent(async move { db.begin_with_options(options(&db, isolation)).await }).await)
}

/// Commits a transaction of [`begin_plain`].
pub(crate) async fn commit_plain(tx: DatabaseTransaction) -> Result<(), DbErr> {
    ended(persistent(tx.commit()).await)
}

fn ended<T>(work: Result<Result<T, DbErr>, Panicked>) -> Result<T, DbErr> {
    work.unwrap_or_else(|error| Err(DbErr::Exec(RuntimeErr::Internal(error.to_string()))))
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

/// Proves the transaction, then lets `last` do the last work in it, and commits.
///
/// Proved first: in a transaction that has ended unnoticed, the last work would commit by itself.
pub(crate) async fn commit_after<F>(
    tx: DatabaseTransaction,
    last: impl FnOnce(DatabaseTransaction) -> F + Send + 'static,
) -> Result<(), StoreError>
where
    F: Future<Output = (DatabaseTransaction, Result<(), StoreError>)> + Send,
{
    let work = persistent(async move {
        let tx = release(tx).await?;
        Failpoint::after(|| format!("{COMMIT}: RELEASE")).passed();
        let (tx, done) = last(tx).await;
        if let Err(error) = done {
            let _ = end(tx).await;
            return Err(error);
        }
        finish(tx).await?;
        Failpoint::after(|| format!("{COMMIT}: COMMIT")).passed();
        Ok(())
    });
    match work.await {
        Ok(result) => result,
        // The driver panicked: nobody knows.
        Err(error) => Err(StoreError::new(
            StoreErrorKind::CommitUnknown,
            COMMIT,
            error,
        )),
    }
}

pub(crate) async fn commit(tx: DatabaseTransaction) -> Result<(), StoreError> {
    commit_after(tx, |tx| std::future::ready((tx, Ok(())))).await
}

/// Releases the guard: fails if the transaction is not the open one that was begun.
async fn release(tx: DatabaseTransaction) -> Result<DatabaseTransaction, StoreError> {
    if let Err(error) = tx
        .execute_unprepared("RELEASE SAVEPOINT outbox_guard")
        .await
    {
        let error = match kind(&error) {
            Some(StoreErrorKind::Unavailable) => failed(COMMIT, &error),
            _ => StoreError::new(
                StoreErrorKind::TransactionLost,
                COMMIT,
                DatabaseError::from(&error),
            ),
        };
        let _ = end(tx).await;
        return Err(error);
    }
    if tx.get_database_backend() != DbBackend::Sqlite {
        return Ok(tx);
    }
    let error = match has_nested(&tx).await {
        Ok(false) => return Ok(tx),
        Ok(true) => lost(),
        Err(error) => failed(COMMIT, &error),
    };
    let _ = end(tx).await;
    Err(error)
}

/// Whether a nested transaction is alive: then the next one is not the first. On SQLite this is
/// asked before the COMMIT, since one that is never dropped would hold the only write lock for
/// ever; there are no round trips that it could cost.
async fn has_nested(tx: &DatabaseTransaction) -> Result<bool, DbErr> {
    let probe = tx.begin().await?;
    let first = tx
        .execute_unprepared("ROLLBACK TO SAVEPOINT _sqlx_savepoint_1")
        .await
        .is_ok();
    probe.commit().await?;
    Ok(!first)
}

async fn finish(tx: DatabaseTransaction) -> Result<(), StoreError> {
    tx.commit()
        .await
        .map_err(|error| match (code(&error), kind(&error)) {
            // No such savepoint: SeaORM tried to release that of a nested transaction.
            (Some(Code::Postgres(code)), _) if code == "3B001" => lost(),
            (Some(Code::MySql(1305)), _) => lost(),
            (_, Some(StoreErrorKind::Unavailable)) => StoreError::new(
                StoreErrorKind::CommitUnknown,
                COMMIT,
                DatabaseError::from(&error),
            ),
            _ if was_answered(&error) => failed(COMMIT, &error),
            _ => StoreError::new(
                StoreErrorKind::CommitUnknown,
                COMMIT,
                DatabaseError::from(&error),
            ),
        })
}

fn lost() -> StoreError {
    let why = DatabaseError::text("a nested transaction was still alive");
    StoreError::new(StoreErrorKind::TransactionLost, COMMIT, why)
}

pub(crate) async fn rollback(tx: DatabaseTransaction) -> Result<(), StoreError> {
    ended(persistent(end(tx)).await).map_err(|error| failed(ROLLBACK, &error))?;
    Failpoint::after(|| format!("{ROLLBACK}: ROLLBACK")).passed();
    Ok(())
}

/// Ends the transaction whatever nested ones are alive: SeaORM's `rollback()` would only go back to
/// the savepoint of the innermost one, and keep the locks.
async fn end(tx: DatabaseTransaction) -> Result<(), DbErr> {
    let backend = tx.get_database_backend();
    let placeholder = placeholder(backend);
    let statements = if backend == DbBackend::Sqlite {
        // It refuses a ROLLBACK if there is no transaction any more.
        vec!["ROLLBACK".to_owned(), placeholder]
    } else {
        vec![format!("ROLLBACK; {placeholder}")]
    };
    for sql in statements {
        match tx.execute_unprepared(&sql).await {
            Err(error) if !was_answered(&error) => return Err(error),
            _ => {}
        }
    }
    tx.rollback().await
}
