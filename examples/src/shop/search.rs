//! Search: one entry for each order, made from two events.
//!
//! Both handlers belong to one consumer. Its messages are handled side by side, so news of the
//! shipment may overtake news of the order: each handler writes its own columns, and the order of
//! the two does not matter.

use outbox_core::{HandlerError, handler};
use sea_orm::{
    ActiveValue::Set, DatabaseTransaction, EntityTrait, IntoActiveModel, sea_query::OnConflict,
};

use super::{
    entity::search_entry::{self, Column},
    event::{OrderPlaced, ShipmentCreated},
};

/// Makes an order findable.
///
/// # Errors
///
/// The entry could not be written: to be tried again.
#[handler(consumer = "search", concurrency = 8)]
pub async fn index_order(event: OrderPlaced, tx: &DatabaseTransaction) -> Result<(), HandlerError> {
    let entry = search_entry::ActiveModel {
        order_id: Set(event.order_id),
        words: Set(Some(format!("{} {}", event.customer, event.item))),
        ..Default::default()
    };
    upsert(entry, Column::Words, tx).await
}

/// Adds the parcel's number.
///
/// # Errors
///
/// The entry could not be written: to be tried again.
#[handler(consumer = "search", concurrency = 8)]
pub async fn index_shipment(
    event: ShipmentCreated,
    tx: &DatabaseTransaction,
) -> Result<(), HandlerError> {
    let entry = search_entry::ActiveModel {
        order_id: Set(event.order_id),
        tracking: Set(Some(event.tracking)),
        ..Default::default()
    };
    upsert(entry, Column::Tracking, tx).await
}

async fn upsert(
    entry: search_entry::ActiveModel,
    column: Column,
    tx: &DatabaseTransaction,
) -> Result<(), HandlerError> {
    let known = OnConflict::column(Column::OrderId)
        .update_column(column)
        .to_owned();
    search_entry::Entity::insert(entry.into_active_model())
        .on_conflict(known)
        .exec_without_returning(tx)
        .await?;
    Ok(())
}
