//! Transactions that begin by renewing the lease, so that whoever lost it changes nothing.

use outbox_core::{error::StoreError, failpoint::Failpoint, store::Lease};
use sea_orm::{ConnectionTrait, DatabaseTransaction, QueryResult, Statement};
use tokio::sync::MutexGuard;

use super::lease;
use crate::{SeaOrm, guard, store::step};

/// A transaction whose first statement renewed the lease. The lease's row stays locked to its end,
/// so nobody takes the lease meanwhile.
pub(super) struct Fence<'a> {
    store: &'a SeaOrm,
    tx: DatabaseTransaction,
    operation: &'static str,
    _writer: Option<MutexGuard<'a, ()>>,
}

impl<'a> Fence<'a> {
    pub(super) async fn begin(
        store: &'a SeaOrm,
        operation: &'static str,
        lease: &Lease,
    ) -> Result<Self, StoreError> {
        let writer = store.inner.connections.writer().await;
        let tx = store
            .bounded(
                operation,
                guard::begin_plain(store.inner.connections.system()),
            )
            .await?;
        let fence = Self {
            store,
            tx,
            operation,
            _writer: writer,
        };
        if fence.execute(lease::renewal(store, lease)).await? == 0 {
            fence.rollback().await;
            return Err(lease::lost(operation));
        }
        Ok(fence)
    }

    pub(super) async fn execute(&self, statement: Statement) -> Result<u64, StoreError> {
        let point = Failpoint::after(|| step(self.operation, &statement));
        let done = self
            .store
            .bounded(self.operation, self.tx.execute_raw(statement))
            .await?;
        point.passed();
        Ok(done.rows_affected())
    }

    pub(super) async fn query(&self, statement: Statement) -> Result<Vec<QueryResult>, StoreError> {
        self.store
            .bounded(self.operation, self.tx.query_all_raw(statement))
            .await
    }

    pub(super) async fn commit(self) -> Result<(), StoreError> {
        self.store
            .bounded(self.operation, guard::commit_plain(self.tx))
            .await?;
        Failpoint::after(|| format!("{}: COMMIT", self.operation)).passed();
        Ok(())
    }

    /// The database rolls back by itself if this fails.
    pub(super) async fn rollback(self) {
        let _ = self.store.bounded(self.operation, self.tx.rollback()).await;
    }
}
