//! What core asks of a database: traits that a store adapter implements.
//!
//! A store is split by who uses it: [`Store`] writes events in the user's transaction,
//! [`OutboxStore`] is the relay's side, [`InboxStore`] the consumers'. All times are computed by
//! the database's clock; durations are passed, never instants.

mod archive;
mod held;
mod inbox;
mod outbox;
mod tx;

use std::{error::Error, future::Future};

pub use archive::{ArchivedIds, ArchivedRow, SettledHeld};
pub use held::{HeldChange, HeldFilter, HeldReason, HeldRow, HoldMove};
pub use inbox::{AttemptEnd, InboxStore, Ledger};
pub use outbox::{
    Backlog, FloorProbe, Lease, OutboxRecord, OutboxRow, OutboxStore, ReadQuery, SeqRuns, Settled,
};
pub use tx::OpenTx;
pub(crate) use tx::TxGuard;

use crate::error::{StoreError, StoreErrorKind};

/// A database that events can be written to.
///
/// Cheap to clone; clones share their connections.
pub trait Store: Clone + Send + Sync + 'static {
    /// An open transaction.
    type Tx: Send + Sync + 'static;

    /// Writes `records` to the outbox of `target` inside `tx`, in order and in as few statements
    /// as the database allows. Records with a delay go to the held table.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing of the batch was written, and on PostgreSQL `tx` can only be
    /// rolled back.
    fn insert(
        &self,
        tx: &Self::Tx,
        target: &str,
        records: &[OutboxRecord],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Begins a guarded transaction on the connections of `pool`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future never leaves a pooled connection inside a transaction.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unavailable`] if no connection can be had.
    fn begin(&self, pool: Pool) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// Commits a transaction that [`begin`](Self::begin) opened, after proving that it is still
    /// the same open transaction.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the commit runs to its end even if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::TransactionLost`]: it had been ended or aborted before, nothing of it was
    /// committed by this call. [`StoreErrorKind::CommitUnknown`]: the connection broke meanwhile.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes `records` to the outbox of `target` as the last work of `tx`, and commits it as
    /// [`commit`](Self::commit) does. The transaction is proved before anything is written: in a
    /// transaction that has ended unnoticed, the write would commit by itself.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it runs to its end even if the future is dropped.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert) and [`commit`](Self::commit); nothing was committed, save for
    /// [`StoreErrorKind::CommitUnknown`].
    fn commit_with(
        &self,
        tx: Self::Tx,
        target: &str,
        records: Vec<OutboxRecord>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls `tx` back and waits until its connection is free.
    ///
    /// # Errors
    ///
    /// The connection broke; the database rolls back by itself then.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Asks the database for a sign of life over a connection outside the handlers' pool. Returns
    /// the [`epoch`](Self::epoch) afterwards.
    ///
    /// # Errors
    ///
    /// There was none within a few seconds.
    fn ping(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// A number that changes when the database was found to have been away: a connection that no
    /// handler touches had to be made anew. Zero before the first [`ping`](Self::ping), and always
    /// where the store has no such connection. Asks nobody.
    fn epoch(&self) -> u64 {
        0
    }

    /// What kind of database error `error` (or one of its sources) is; `None` if it is none of
    /// this store's.
    fn classify(&self, error: &(dyn Error + 'static)) -> Option<StoreErrorKind>;

    /// Checks that the tables exist in the version that this build needs.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Schema`] with what to run.
    fn check_schema(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Which connections a transaction runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pool {
    /// The connections that the user gave: units of work.
    User,
    /// The consumers' own connections: handlers and the inbox.
    Consumer,
}
