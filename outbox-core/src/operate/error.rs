//! What can go wrong when things are put right.

use crate::broker::BrokerError;
use crate::error::StoreError;

/// An operator's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// The database's side.
    #[error("the outbox could not be asked")]
    Store(#[from] StoreError),
    /// The broker's side.
    #[error("the broker could not be asked")]
    Broker(#[from] BrokerError),
}
