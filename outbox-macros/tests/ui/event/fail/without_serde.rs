use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders")]
struct WithoutSerialize {
    id: u8,
}

#[derive(Serialize, IntegrationEvent)]
#[event(subject = "shop.orders")]
struct WithoutDeserialize {
    id: u8,
}

#[derive(Serialize, Deserialize)]
struct NotDerived;

fn is_event<E: IntegrationEvent>() {}

fn main() {
    is_event::<NotDerived>();
}
