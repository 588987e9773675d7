use outbox_core::{HandlerError, handler};

#[path = "../../support.rs"]
mod support;
use support::OrderPlaced;

#[handler(consumer = "a")]
async fn string(_: OrderPlaced) -> Result<(), String> {
    Ok(())
}

#[handler(consumer = "a")]
async fn value(_: OrderPlaced) -> Result<u8, HandlerError> {
    Ok(1)
}

#[handler(consumer = "a")]
async fn option(_: OrderPlaced) -> Option<()> {
    None
}

fn main() {}
