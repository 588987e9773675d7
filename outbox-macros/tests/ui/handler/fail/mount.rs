use outbox_core::{HandlerError, State, Store, WithoutTransaction, handler};

#[path = "../../support.rs"]
mod support;
use support::{OrderPlaced, Tx, mount};

struct Connection;

#[derive(Clone)]
struct App;

#[handler(consumer = "a")]
async fn wants_state(_: OrderPlaced, _: State<App>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn wants_a_connection(_: OrderPlaced, _: &Connection) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn wants_a_transaction(_: OrderPlaced, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

async fn not_annotated(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn without_inbox<H: WithoutTransaction>(_: H) {}

fn mounts<S: Store<Tx = Tx>>() {
    mount::<S, App, _>(wants_state {});
    mount::<S, u8, _>(wants_state {});
    mount::<S, App, _>(wants_a_connection {});
    mount::<S, App, _>(not_annotated);
    without_inbox(wants_state {});
    without_inbox(wants_a_transaction {});
}

fn main() {}
