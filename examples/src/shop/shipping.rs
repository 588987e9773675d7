//! Shipping: a parcel for each order, and word of it.

use outbox_core::{Context, HandlerError, handler};
use sea_orm::{ActiveModelTrait, ActiveValue::Set, DatabaseTransaction};
use uuid::Uuid;

use super::{
    entity::shipment,
    event::{OrderPlaced, ShipmentCreated},
};

/// Packs a parcel and tells others.
///
/// The parcel's row, the event and the inbox's record commit together. The number is drawn anew at
/// each call, so whoever runs this twice with effect has two parcels.
///
/// # Errors
///
/// The row could not be written, or the event not be published: to be tried again.
#[handler(consumer = "shipping", concurrency = 8)]
pub async fn create_shipment(
    event: OrderPlaced,
    tx: &DatabaseTransaction,
    cx: Context,
) -> Result<(), HandlerError> {
    let tracking = format!("PX{:016X}", Uuid::new_v4().as_u64_pair().0);
    shipment::ActiveModel {
        order_id: Set(event.order_id),
        tracking: Set(tracking.clone()),
        ..Default::default()
    }
    .insert(tx)
    .await?;
    cx.publish(&ShipmentCreated {
        order_id: event.order_id,
        tracking,
    })?;
    Ok(())
}
