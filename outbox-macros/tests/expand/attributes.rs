//! Other attributes on a handler, above and below.

use outbox_core::{HandlerError, handler};

use crate::handlers::{OrderPlaced, Tx, takes_transaction};

/// Documented.
#[tracing::instrument(skip_all, fields(order = event.order_id), err(Debug))]
#[handler(consumer = "above")]
#[must_use = "it may have failed"]
async fn instrumented_above(event: OrderPlaced, tx: &Tx) -> Result<(), HandlerError> {
    let _ = (&event, tx);
    tokio::task::yield_now().await;
    Ok(())
}

#[handler(consumer = "below")]
#[tracing::instrument(skip_all, ret)]
#[allow(clippy::unused_async)]
/// Documented.
#[deprecated = "see the other"]
pub(crate) async fn instrumented_below(event: OrderPlaced, tx: &Tx) -> Result<(), HandlerError> {
    let _ = (&event, tx);
    Ok(())
}

#[handler(consumer = "absent")]
#[cfg(not(test))]
async fn conditional(event: NoSuchType) -> Result<(), HandlerError> {}

#[handler(consumer = "present")]
#[cfg(test)]
async fn conditional(_: OrderPlaced, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[cfg(not(test))]
#[handler(consumer = "absent")]
async fn conditional_above(event: NoSuchType) -> Result<(), HandlerError> {}

#[cfg_attr(test, handler(consumer = "by-cfg-attr"))]
async fn by_cfg_attr(_: OrderPlaced, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::test]
async fn each_works_in_both_orders() {
    let event = || OrderPlaced { order_id: 1 };
    takes_transaction::<(), _>(instrumented_above {});
    instrumented_above(event(), &Tx).await.unwrap();
    takes_transaction::<(), _>(conditional {});
    takes_transaction::<(), _>(by_cfg_attr {});
    takes_transaction::<(), _>(instrumented_below {});
    #[allow(deprecated)]
    instrumented_below(event(), &Tx).await.unwrap();
}
