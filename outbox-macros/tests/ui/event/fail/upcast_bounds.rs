use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 1)]
struct OrderPlacedV1;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 2, upcast_from = OrderPlacedV1)]
struct OrderPlaced;

#[derive(Serialize, Deserialize)]
struct NoEvent;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 2, upcast_from = NoEvent)]
struct FromNoEvent;

impl From<NoEvent> for FromNoEvent {
    fn from(_: NoEvent) -> Self {
        Self
    }
}

fn main() {}
