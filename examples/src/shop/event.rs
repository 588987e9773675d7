//! What the shop tells others.

use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A customer placed an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", version = 1, key = order_id)]
pub struct OrderPlaced {
    /// The order.
    pub order_id: Uuid,
    /// Who ordered.
    pub customer: String,
    /// What.
    pub item: String,
    /// Where it is to go.
    pub city: String,
    /// What it costs.
    pub total_cents: i64,
}

/// A parcel is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.shipments.created", version = 1, key = order_id)]
pub struct ShipmentCreated {
    /// The order.
    pub order_id: Uuid,
    /// The parcel's number.
    pub tracking: String,
}
