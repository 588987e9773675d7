use outbox_core::IntegrationEvent;
use serde::Serialize;

#[derive(Serialize, IntegrationEvent)]
#[event(subject = "shop.orders")]
struct Named {
    name: &'static str,
}

fn main() {}
