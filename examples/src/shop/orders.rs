//! Orders: placing one, and what became of it.

use outbox_core::{Bus, error::BoxError};
use outbox_seaorm::SeaOrm;
use sea_orm::{ActiveValue::Set, TransactionTrait, entity::prelude::*};
use serde::{Deserialize, Serialize};

use super::{
    entity::{order, payment, search_entry, shipment},
    event::OrderPlaced,
};

/// What a customer sends.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewOrder {
    /// Who orders.
    pub customer: String,
    /// What.
    pub item: String,
    /// Where it is to go.
    pub city: String,
    /// What it costs.
    pub total_cents: i64,
}

/// Places an order and publishes that, in one transaction. Returns the order's id.
///
/// # Errors
///
/// The order could not be placed, and nobody will hear of it.
pub async fn place_order(
    bus: &Bus<SeaOrm>,
    db: &DatabaseConnection,
    new: NewOrder,
) -> Result<Uuid, BoxError> {
    let tx = db.begin().await?;
    let order = order::ActiveModel {
        id: Set(Uuid::now_v7()),
        customer: Set(new.customer),
        item: Set(new.item),
        city: Set(new.city),
        total_cents: Set(new.total_cents),
    }
    .insert(&tx)
    .await?;
    let placed = OrderPlaced {
        order_id: order.id,
        customer: order.customer,
        item: order.item,
        city: order.city,
        total_cents: order.total_cents,
    };
    bus.publish(&tx, &placed).await?;
    tx.commit().await?;
    // Spares the relay of this process a look; without it the event is found all the same.
    bus.wake();
    Ok(order.id)
}

/// An order with what the consumers have made of it so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderState {
    /// The order's id.
    pub id: Uuid,
    /// Who ordered.
    pub customer: String,
    /// What.
    pub item: String,
    /// The numbers of its parcels: one, once it is shipped.
    pub shipments: Vec<String>,
    /// The provider's references: one, once it is paid.
    pub payments: Vec<String>,
    /// What the search knows: `nothing`, `placed` or `shipped`.
    pub search: &'static str,
}

/// Looks an order up.
///
/// # Errors
///
/// The database's.
pub async fn find_order(db: &DatabaseConnection, id: Uuid) -> Result<Option<OrderState>, DbErr> {
    let Some(order) = order::Entity::find_by_id(id).one(db).await? else {
        return Ok(None);
    };
    let shipments = shipment::Entity::find()
        .filter(shipment::Column::OrderId.eq(id))
        .all(db)
        .await?;
    let payments = payment::Entity::find()
        .filter(payment::Column::OrderId.eq(id))
        .all(db)
        .await?;
    let search = search_entry::Entity::find_by_id(id).one(db).await?;
    Ok(Some(OrderState {
        id,
        customer: order.customer,
        item: order.item,
        shipments: shipments.into_iter().map(|row| row.tracking).collect(),
        payments: payments.into_iter().map(|row| row.reference).collect(),
        search: match search {
            Some(entry) if entry.tracking.is_some() => "shipped",
            Some(_) => "placed",
            None => "nothing",
        },
    }))
}

/// How many there are of everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Orders.
    pub orders: u64,
    /// Orders with exactly one shipment.
    pub shipped_once: u64,
    /// Orders with more than one.
    pub shipped_twice: u64,
    /// Orders with exactly one payment.
    pub paid_once: u64,
    /// Orders with more than one.
    pub paid_twice: u64,
    /// Orders that the search knows as shipped.
    pub found: u64,
}

/// Counts.
///
/// # Errors
///
/// The database's.
pub async fn totals(db: &DatabaseConnection) -> Result<Totals, DbErr> {
    let (shipped_once, shipped_twice) = once_and_more(db, "shipments").await?;
    let (paid_once, paid_twice) = once_and_more(db, "payments").await?;
    Ok(Totals {
        orders: order::Entity::find().count(db).await?,
        shipped_once,
        shipped_twice,
        paid_once,
        paid_twice,
        found: search_entry::Entity::find()
            .filter(search_entry::Column::Tracking.is_not_null())
            .filter(search_entry::Column::Words.is_not_null())
            .count(db)
            .await?,
    })
}

/// How many orders have one row in `table`, and how many have more.
async fn once_and_more(db: &DatabaseConnection, table: &str) -> Result<(u64, u64), DbErr> {
    let sql = format!(
        "SELECT COUNT(*) AS orders, COUNT(CASE WHEN n > 1 THEN 1 END) AS more \
         FROM (SELECT COUNT(*) AS n FROM {table} GROUP BY order_id) AS counted"
    );
    let statement = sea_orm::Statement::from_string(db.get_database_backend(), sql);
    let Some(row) = db.query_one_raw(statement).await? else {
        return Ok((0, 0));
    };
    let orders: i64 = row.try_get("", "orders")?;
    let more: i64 = row.try_get("", "more")?;
    let more = more.unsigned_abs();
    Ok((orders.unsigned_abs() - more, more))
}
