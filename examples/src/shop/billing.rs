//! Billing: money for each order, by way of a payment provider.

use outbox_core::{Context, HandlerError, State, handler};
use sea_orm::{ActiveModelTrait, ActiveValue::Set, DatabaseTransaction};

use super::{
    entity::payment,
    event::OrderPlaced,
    payments::{PaymentError, PaymentProvider},
};

/// Charges the customer's card and keeps the reference.
///
/// The charge is outside the database, so it does not roll back. The key makes up for that: it is
/// the same whenever this message comes again, after a crash or as a replay, and the provider
/// recognises it.
///
/// # Errors
///
/// A declined card is a rejection, which leads to the dead letters; anything else is tried again.
#[handler(
    consumer = "billing",
    concurrency = 8,
    backoff = exponential("200ms", max = "1m"),
    timeout = "20s"
)]
pub async fn charge_customer(
    event: OrderPlaced,
    tx: &DatabaseTransaction,
    provider: State<PaymentProvider>,
    cx: Context,
) -> Result<(), HandlerError> {
    let key = cx.idempotency_key();
    let reference = match provider.charge(&key, event.total_cents).await {
        Ok(reference) => reference,
        Err(declined @ PaymentError::Declined { .. }) => {
            return Err(HandlerError::reject(declined));
        }
        Err(error) => return Err(error.into()),
    };
    payment::ActiveModel {
        order_id: Set(event.order_id),
        reference: Set(reference),
        cents: Set(event.total_cents),
        ..Default::default()
    }
    .insert(tx)
    .await?;
    Ok(())
}
