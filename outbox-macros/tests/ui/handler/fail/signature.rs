use outbox_core::{Context, Envelope, HandlerError, State, Store, handler};

#[path = "../../support.rs"]
mod support;
use support::{OrderPlaced, Tx, mount};

#[handler(consumer = "a")]
fn not_async(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async unsafe fn not_safe(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async extern "C" fn foreign(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn generic<T>(_: OrderPlaced, _: State<T>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn without_arguments() -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn event_by_reference(_: &OrderPlaced, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn event_by_unique_reference(_: &mut Envelope<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn transaction_without_an_event(_: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn event_behind(_: Context, _: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn any_event(_: impl outbox_core::IntegrationEvent) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn borrowing_event(_: Changed<'_>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn two_transactions(_: OrderPlaced, _: &Tx, _: &Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn unique_transaction(_: OrderPlaced, _: &mut Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn static_transaction(_: OrderPlaced, _: &'static Tx) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn connection(_: OrderPlaced, _: &DatabaseConnection) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn borrowed_context(_: OrderPlaced, _: &Context, _: &State<u8>) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn conditional_argument(_: OrderPlaced, #[cfg(any())] _: Context) -> Result<(), HandlerError> {
    Ok(())
}

#[handler(consumer = "a")]
async fn without_result(_: OrderPlaced) {}

#[handler(consumer = "a")]
async fn with_unit(_: OrderPlaced) -> () {}

/// Stands for SeaORM's.
struct DatabaseConnection;

struct Shipping;

impl Shipping {
    #[handler(consumer = "a")]
    async fn method(&self, _: OrderPlaced) -> Result<(), HandlerError> {
        Ok(())
    }
}

trait Handles {
    #[handler(consumer = "a")]
    async fn declared(_: OrderPlaced) -> Result<(), HandlerError>;
}

#[handler(consumer = "a")]
struct NotAFunction;

// All mistakes are reported at once.
#[handler(max_attempts = 0, consumer = "a b")]
unsafe fn many(_: &OrderPlaced, _: &Tx, _: &Tx) {}

// None of the mistakes above makes this wrong as well.
fn mounts<S: Store<Tx = Tx>>() {
    mount::<S, u8, _>(not_async {});
    mount::<S, u8, _>(event_by_reference {});
    mount::<S, u8, _>(two_transactions {});
    mount::<S, u8, _>(connection {});
    mount::<S, u8, _>(without_result {});
}

fn main() {}
