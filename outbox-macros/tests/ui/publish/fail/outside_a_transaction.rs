use outbox_core::{Bus, Store};

#[path = "../../support.rs"]
mod support;
use support::OrderPlaced;

struct Connection;

async fn place<S: Store>(bus: &Bus<S>, db: &Connection, event: &OrderPlaced) {
    let _ = bus.publish(db, event).await;
}

async fn place_all<S: Store>(bus: &Bus<S>, db: &Connection, events: &[OrderPlaced]) {
    let _ = bus.publish_all(db, events).await;
}

fn main() {}
