//! Statements that are transactions of their own.

use std::time::Duration;

use outbox_core::error::StoreErrorKind;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, ExecResult, QueryResult, Statement};

use crate::{error::kind, guard};

/// How often one is tried in all.
const TRIES: u32 = 4;

/// Runs it by itself; with `pooler` in a transaction, which a pooler keeps on one server.
pub(crate) async fn execute(db: DatabaseConnection, statement: Statement, pooler: bool) -> Result<ExecResult, DbErr> {
    if !pooler {
        return db.execute_raw(statement).await;
    }
    let tx = guard::begin_plain(db).await?;
    let done = tx.execute_raw(statement).await?;
    guard::commit_plain(tx).await?;
    Ok(done)
}

/// As [`execute`], for a statement with an answer.
pub(crate) async fn query(
    db: DatabaseConnection,
    statement: Statement,
    pooler: bool,
) -> Result<Vec<QueryResult>, DbErr> {
    if !pooler {
        return db.query_all_raw(statement).await;
    }
    let tx = guard::begin_plain(db).await?;
    let rows = tx.query_all_raw(statement).await?;
    guard::commit_plain(tx).await?;
    Ok(rows)
}

/// Runs it again if it fell victim to a deadlock or found the database busy: it had no effect then.
pub(crate) async fn retried<T, F>(mut run: impl FnMut() -> F) -> Result<T, DbErr>
where
    F: Future<Output = Result<T, DbErr>>,
{
    let mut tries = 0;
    loop {
        tries += 1;
        match run().await {
            Err(error) if tries < TRIES && kind(&error) == Some(StoreErrorKind::Busy) => {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=5) << tries)).await;
            }
            result => return result,
        }
    }
}
