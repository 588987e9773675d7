//! Statements that are transactions of their own, run again if they had no effect.

use std::time::Duration;

use outbox_core::error::StoreErrorKind;
use sea_orm::DbErr;

use crate::error::kind;

/// How often one is tried in all.
const TRIES: u32 = 4;

/// Runs it again if it fell victim to a deadlock or found the database busy.
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
