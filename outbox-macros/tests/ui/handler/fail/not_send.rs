use std::rc::Rc;

use outbox_core::{HandlerError, handler};

#[path = "../../support.rs"]
mod support;
use support::OrderPlaced;

async fn step() {}

#[handler(consumer = "a")]
async fn keeps_an_rc(event: OrderPlaced) -> Result<(), HandlerError> {
    let id = Rc::new(event.order_id);
    step().await;
    drop(id);
    Ok(())
}

fn main() {}
