//! What becomes of a message whose handling failed: outage, busy, or a failure of its own.

use std::{error::Error, time::Duration};

use super::{
    error::HandlerErrorKind,
    failure::{DeliveryError, DeliveryErrorKind},
};
use crate::{
    broker::DeadReason,
    error::{BoxError, StoreErrorKind},
    store::Store,
};

/// The verdict over a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The database is away: not counted.
    Outage,
    /// The database was away meanwhile and is back: not counted up to a limit.
    Interrupted,
    /// Deadlock, lock time-out, overload: tried again soon, not counted up to a limit.
    Busy,
    /// A counted failure, with the delay that the handler asks for.
    Failed(Option<Duration>),
    /// Waits for a deploy that brings the version: not counted, up to a limit.
    NewerVersion,
    /// Dead-lettered now.
    Dead(DeadReason),
}

/// Judges an error that came out of the outer layers.
///
/// A database error is not an outage by itself: a connection outside the handlers' pool is
/// asked, whatever the handler said. The database is away if that fails too, or if it has been away
/// since `epoch`, when the handler began: a connection that the handler did not touch broke as well.
pub(super) async fn judge<S: Store>(store: &S, epoch: u64, error: &BoxError) -> Verdict {
    let delivery = find::<DeliveryError>(error.as_ref()).map(DeliveryError::kind);
    // What the handler has decided for good needs no question.
    match delivery {
        Some(DeliveryErrorKind::Handler(HandlerErrorKind::Undecodable)) => {
            return Verdict::Dead(DeadReason::Undecodable);
        }
        Some(DeliveryErrorKind::Handler(HandlerErrorKind::NewerVersion)) => {
            return Verdict::NewerVersion;
        }
        Some(DeliveryErrorKind::TransactionEnded) => {
            return Verdict::Dead(DeadReason::TransactionEnded);
        }
        _ => {}
    }
    let Ok(now) = store.ping().await else {
        return Verdict::Outage;
    };
    if delivery == Some(DeliveryErrorKind::Handler(HandlerErrorKind::Reject)) {
        return Verdict::Dead(DeadReason::Rejected);
    }
    if now != epoch && epoch != 0 {
        return Verdict::Interrupted;
    }
    match delivery {
        Some(DeliveryErrorKind::Handler(HandlerErrorKind::RetryAfter(delay))) => {
            Verdict::Failed(Some(delay))
        }
        // Our own statement found the database away or busy, and it answers now.
        Some(DeliveryErrorKind::Store(
            StoreErrorKind::Unavailable | StoreErrorKind::Busy | StoreErrorKind::CommitUnknown,
        )) => Verdict::Busy,
        _ if store.classify(error.as_ref()) == Some(StoreErrorKind::Busy) => Verdict::Busy,
        _ if overloaded(error.as_ref()) => Verdict::Busy,
        _ => Verdict::Failed(None),
    }
}

/// Whether a layer turned the message away because it had too much to do.
fn overloaded(error: &(dyn Error + 'static)) -> bool {
    find::<NotReady>(error).is_some()
        || find::<tower::load_shed::error::Overloaded>(error).is_some()
}

/// A layer reported an error before it took the message.
#[derive(Debug, thiserror::Error)]
#[error("a layer was not ready to take the message")]
pub(super) struct NotReady(#[source] pub(super) BoxError);

/// The first error of type `E` in the chain.
pub(super) fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        current = error.source();
    }
    None
}
