use outbox_core::{Context, Envelope, HandlerError, State, handler};

#[path = "../../support.rs"]
mod support;
use support::{OrderPlaced, Tx};

struct App;

#[handler(consumer = "a")]
async fn with_a_number(_: OrderPlaced, _: u32, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn without_an_event(_: String, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn without_an_event_in_an_envelope(_: Envelope<String>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", state = App)]
async fn with_a_foreign_state(_: OrderPlaced, _: Context, State(_): State<u64>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
