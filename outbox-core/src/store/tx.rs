//! Transactions: the proof that the caller holds an open one, and a guard that never leaks one.

use std::fmt;

use tokio::runtime::Handle;

use super::{OutboxRecord, Pool, Store};
use crate::error::StoreError;

/// Proof that a value is an open transaction of the store `S`.
///
/// `bus.publish` asks for it, so that an event cannot be written outside a transaction.
#[diagnostic::on_unimplemented(
    message = "publishing needs an open transaction, but `{Self}` is not one",
    label = "not an open transaction",
    note = "begin one and publish inside it: `let tx = db.begin().await?; bus.publish(&tx, &event).await?; tx.commit().await?;`",
    note = "or use a unit of work: `let unit = bus.begin().await?; unit.publish(&event)?; unit.commit().await?;`"
)]
pub trait OpenTx<S: Store> {
    /// The transaction.
    fn open_tx(&self) -> &S::Tx;
}

impl<S: Store, T: OpenTx<S> + ?Sized> OpenTx<S> for &T {
    fn open_tx(&self) -> &S::Tx {
        (**self).open_tx()
    }
}

/// Owns an open transaction and rolls it back in a task of its own when dropped, since a rollback
/// has to be awaited and a drop cannot.
pub(crate) struct TxGuard<S: Store> {
    store: S,
    tx: Option<S::Tx>,
    runtime: Handle,
}

impl<S: Store> TxGuard<S> {
    pub(crate) async fn begin(store: &S, pool: Pool) -> Result<Self, StoreError> {
        Ok(Self::of(store, store.begin(pool).await?))
    }

    /// Takes over a transaction that has just begun.
    pub(crate) fn of(store: &S, tx: S::Tx) -> Self {
        Self {
            store: store.clone(),
            tx: Some(tx),
            runtime: Handle::current(),
        }
    }

    /// The transaction.
    pub(crate) fn get(&self) -> &S::Tx {
        match &self.tx {
            Some(tx) => tx,
            // Proof: only `commit`, `rollback` and `drop` take the transaction, and each consumes the guard.
            None => unreachable!("a transaction guard was used after it had been consumed"),
        }
    }

    /// Writes `records` and commits.
    pub(crate) async fn commit_with(
        mut self,
        target: &str,
        records: Vec<OutboxRecord>,
    ) -> Result<(), StoreError> {
        match self.tx.take() {
            Some(tx) if records.is_empty() => self.store.commit(tx).await,
            Some(tx) => self.store.commit_with(tx, target, records).await,
            None => Ok(()),
        }
    }

    /// # Cancel safety
    ///
    /// The rollback runs to its end even if the future is dropped.
    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        let Some(tx) = self.tx.take() else {
            return Ok(());
        };
        let store = self.store.clone();
        match self
            .runtime
            .spawn(async move { store.rollback(tx).await })
            .await
        {
            Ok(result) => result,
            Err(error) => Err(StoreError::new(
                crate::error::StoreErrorKind::Other,
                "roll back",
                format!("the rollback task ended early: {error}"),
            )),
        }
    }
}

impl<S: Store> Drop for TxGuard<S> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            let store = self.store.clone();
            self.runtime.spawn(async move {
                if let Err(error) = store.rollback(tx).await {
                    tracing::debug!(%error, "a dropped transaction could not be rolled back; the database does it");
                }
            });
        }
    }
}

impl<S: Store> fmt::Debug for TxGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxGuard")
            .field("open", &self.tx.is_some())
            .finish_non_exhaustive()
    }
}
