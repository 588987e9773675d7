//! Putting things right: what waits, what failed and why, and the way back.

mod audit;
mod dead_letters;
mod error;
mod id;

pub use audit::{Audit, AuditRange, AuditReport, MissingMessage};
pub use dead_letters::{DeadLetterDetail, DeadLetterFilter, DeadLetterSummary, DeadLetters};
pub use error::OperateError;
pub use id::{DeadLetterId, InvalidDeadLetterId};

use crate::{
    broker::Broker,
    bus::Bus,
    error::StoreError,
    store::{Backlog, HeldFilter, HeldReason, HeldRow, OutboxStore},
};

impl<S: OutboxStore> Bus<S> {
    /// The dead letters of both sides: rows that the relay gave up, and messages that a consumer
    /// gave up.
    #[must_use]
    pub fn dead_letters<B: Broker>(&self, broker: B) -> DeadLetters<S, B> {
        DeadLetters::new(self.clone(), broker)
    }

    /// What waits in the outbox of this bus's target.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.store().backlog(self.target_name()).await
    }

    /// Held rows of these reasons (all, if none is given) with an id above `after`, lowest first.
    ///
    /// Fewer than `limit` if their payloads exceed 16 MiB: go on after the last id until none comes.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn held(
        &self,
        reasons: &[HeldReason],
        after: i64,
        limit: u32,
    ) -> Result<Vec<HeldRow>, StoreError> {
        let filter = HeldFilter {
            reasons: reasons.to_vec(),
            after_id: Some(after),
            limit,
            max_bytes: LISTING_BYTES,
            ..HeldFilter::default()
        };
        self.store().held(self.target_name(), &filter).await
    }
}

/// Payload bytes that one listing reads at most; a longer listing is cut, never too large for memory.
const LISTING_BYTES: usize = 16 * 1024 * 1024;
