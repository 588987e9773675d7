use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = total)]
struct Field {
    total: f64,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = parts.0)]
struct Nested {
    parts: (Vec<u8>,),
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = label())]
struct Method;

impl Method {
    fn label(&self) -> char {
        'a'
    }
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = order_key())]
struct NoSuchMethod;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = amount)]
enum Variants {
    Placed { amount: u32 },
    Paid { amount: f64 },
}

fn main() {}
