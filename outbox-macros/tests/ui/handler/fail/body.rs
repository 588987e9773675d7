use outbox_core::{HandlerError, handler};

#[path = "../../support.rs"]
mod support;
use support::OrderPlaced;

#[handler(consumer = "a")]
async fn ships(event: OrderPlaced) -> Result<(), HandlerError> {
    let id: String = event.order_id;
    event.ship().await;
    drop(id);
}

fn main() {}
