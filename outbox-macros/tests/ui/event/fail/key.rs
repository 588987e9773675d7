use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = order_ids)]
struct Misspelt {
    order_id: u32,
    total: i64,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = customer)]
struct NoSuchField {
    order_id: u32,
    total: i64,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = 1)]
struct NoSuchIndex(u32);

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = id)]
struct NoFields;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = "order_id")]
struct InQuotes {
    order_id: u32,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = format!("{}", self.order_id))]
struct AnyExpression {
    order_id: u32,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = label("x"))]
struct WithArguments {
    order_id: u32,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = order_id)]
enum InSomeVariants {
    Placed { order_id: u32 },
    Renamed { id: u32 },
    Imported(u32),
    Purged,
}

fn is_event<E: IntegrationEvent>() {}

fn main() {
    is_event::<Misspelt>();
    is_event::<InQuotes>();
    is_event::<InSomeVariants>();
}
