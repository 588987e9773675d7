use outbox_core::{HandlerError, Store, handler};

#[path = "../../support.rs"]
mod support;
use support::{OrderPlaced, Tx, mount};

#[handler]
async fn without_consumer(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler("shipping")]
async fn without_names(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "")]
async fn without_letters(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "shop.shipping")]
async fn with_a_dot(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", consumer = "b", max_atempts = 5, retries = 3)]
async fn with_wrong_names(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", max_attempts = 0, concurrency = 0, max_crashes = -1, timeout = "0s")]
async fn with_zeros(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", timeout = "30 seconds", concurrency = MANY)]
async fn with_words(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", timeout = 30, backoff = "1s")]
async fn with_other_literals(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", backoff = exponential("1s"))]
async fn without_max(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", backoff = exponential("1m", max = "5s"))]
async fn with_max_too_short(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", backoff = exponential("1x", cap = "5s"), timeout = "99999999999999999d")]
async fn with_a_wrong_unit(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", backoff = exponential("1s", cap = "5s"))]
async fn with_a_wrong_option(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", backoff = linear("1s"))]
async fn with_a_wrong_shape(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", batch = 0, linger = "1s")]
async fn with_options_of_batches(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a", batch = 5)]
async fn of_batches_of_what_is_no_event(_: Vec<String>) -> Result<(), HandlerError> {
    Ok(())
}

// None of the mistakes above makes this wrong as well.
fn mounts<S: Store<Tx = Tx>>() {
    mount::<S, u8, _>(without_consumer {});
    mount::<S, u8, _>(with_zeros {});
}

fn main() {}
