//! The consumers' side of a store: what has been handled, and what was tried.

use std::{future::Future, time::Duration};

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Pool, Store};
use crate::error::StoreError;

/// What is known of earlier attempts at a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters build it")]
pub struct Ledger {
    /// Failures that were recorded and counted.
    pub attempts: u32,
    /// Starts whose end was never recorded: the process died, or is still at it.
    pub open_starts: u32,
    /// Those of them that ran alone in their process.
    pub lone_starts: u32,
    /// Uncounted ends (busy, outage) in a row.
    pub uncounted: u32,
    /// The first failure's text.
    pub first_error: Option<String>,
    /// The latest failure's text.
    pub last_error: Option<String>,
    /// When the first failure was recorded.
    pub first_failed_at: Option<OffsetDateTime>,
    /// When the latest failure was recorded.
    pub last_failed_at: Option<OffsetDateTime>,
}

/// How a start ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "store adapters read it")]
pub struct AttemptEnd {
    /// The start had been recorded and is to be closed.
    pub opened: bool,
    /// It had run alone.
    pub lone: bool,
    /// The failure counts as an attempt.
    pub counted: bool,
    /// The failure's text.
    pub error: Option<String>,
}

/// The consumers' side of a store.
///
/// Methods without a transaction run on connections outside the handlers' pool, so that hung
/// handlers cannot starve them.
pub trait InboxStore: Store {
    /// Records that `consumer` handles the messages `ids`, inside `tx`. Returns for each whether it
    /// is new; `false` means that it was handled before (or stands twice in `ids`).
    ///
    /// A concurrent transaction that has recorded the same id and not ended is waited for.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; `Busy` if the wait ended in a deadlock, a time-out or a serialisation failure.
    fn record(
        &self,
        tx: &Self::Tx,
        consumer: &str,
        ids: &[Uuid],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Begins a guarded transaction on the handlers' connections and [records](Self::record) in it that
    /// `consumer` handles the messages `ids`. Stores can do both in fewer round trips than one after
    /// the other takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future never leaves a pooled connection inside a transaction.
    ///
    /// # Errors
    ///
    /// As [`begin`](Store::begin) and [`record`](Self::record).
    fn begin_recorded(
        &self,
        consumer: &str,
        ids: &[Uuid],
    ) -> impl Future<Output = Result<(Self::Tx, Vec<bool>), StoreError>> + Send {
        async move {
            let tx = self.begin(Pool::Consumer).await?;
            let fresh = self.record(&tx, consumer, ids).await?;
            Ok((tx, fresh))
        }
    }

    /// Whether `consumer` has handled `id`, seen from outside every transaction.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn is_recorded(
        &self,
        consumer: &str,
        id: Uuid,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What is known of earlier attempts; all zero if nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn ledger(
        &self,
        consumer: &str,
        id: Uuid,
    ) -> impl Future<Output = Result<Ledger, StoreError>> + Send;

    /// Records a start before the handler runs: one more open start, and a lone one if `lone`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn open_start(
        &self,
        consumer: &str,
        id: Uuid,
        lone: bool,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records how a start ended. Returns the ledger afterwards.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn end_start(
        &self,
        consumer: &str,
        id: Uuid,
        end: &AttemptEnd,
    ) -> impl Future<Output = Result<Ledger, StoreError>> + Send;

    /// Forgets the attempts inside `tx`, as part of a success.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn clear_in(
        &self,
        tx: &Self::Tx,
        consumer: &str,
        id: Uuid,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets the attempts: a duplicate, a dead letter, or a replay that starts afresh.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn clear(
        &self,
        consumer: &str,
        id: Uuid,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes up to `limit` inbox rows, and as many ledger rows, older than `age`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn prune(
        &self,
        age: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}
