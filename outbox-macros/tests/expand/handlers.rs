//! Handlers: what may stand in a signature, and what is added beside the function.

use std::time::Duration;

use outbox_core::{
    Backoff, Context, Envelope, FromDelivery, FromRef, Handler, HandlerCall, HandlerError,
    HandlerErrorKind, HandlerOptions, State, Store, WithoutTransaction, handler,
};
use serde::{Deserialize, Serialize};

use crate::store::FakeStore;

#[derive(Clone, Serialize, Deserialize, outbox_core::IntegrationEvent)]
#[event(subject = "shop.orders.placed")]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: u32,
}

/// Stands for a database's transaction.
pub(crate) struct Tx;

#[derive(Clone)]
struct App {
    mailer: Mailer,
}

#[derive(Clone)]
pub(crate) struct Mailer(&'static str);

impl FromRef<App> for Mailer {
    fn from_ref(app: &App) -> Self {
        app.mailer.clone()
    }
}

/// An extractor for one state only.
struct Tenant;

impl<S: Store> FromDelivery<'_, S, App> for Tenant {
    fn from_delivery(_: &HandlerCall<'_, S, App>) -> Result<Self, HandlerError> {
        Ok(Self)
    }
}

/// An extractor that borrows from the delivery.
pub(crate) struct Payload<'a>(&'a [u8]);

impl<'a, S: Store, St> FromDelivery<'a, S, St> for Payload<'a> {
    fn from_delivery(call: &HandlerCall<'a, S, St>) -> Result<Self, HandlerError> {
        Ok(Self(&call.envelope().payload))
    }
}

pub(crate) fn takes_transaction<St, H: Handler<FakeStore<Tx>, St>>(
    _: H,
) -> (&'static str, HandlerOptions) {
    (H::NAME, H::OPTIONS)
}

fn takes_none<T: Send + Sync + 'static, St, H>(_: H) -> (&'static str, HandlerOptions)
where
    H: Handler<FakeStore<T>, St> + WithoutTransaction,
{
    (H::NAME, H::OPTIONS)
}

#[handler(
    consumer = "shipping_1-a",
    max_attempts = 8,
    max_crashes = 2,
    backoff = exponential("250ms", max = "5m"),
    concurrency = 32,
    timeout = "2h",
)]
/// Documented.
pub(crate) async fn create_shipment(
    event: OrderPlaced,
    State(mailer): State<Mailer>,
    tx: &Tx,
    _: Context,
    payload: Payload<'_>,
) -> Result<(), HandlerError> {
    tokio::task::yield_now().await;
    let _ = (tx, payload.0);
    if event.order_id == 0 {
        return Err(HandlerError::reject(mailer.0));
    }
    Ok(())
}

#[handler(consumer = "bare")]
async fn bare(_: OrderPlaced) -> Result<(), std::num::ParseIntError> {
    "1".parse::<u8>().map(drop)
}

#[handler(consumer = "fixed", backoff = fixed("0s"), state = App)]
async fn with_state(
    mut envelope: Envelope<OrderPlaced>,
    tenant: Tenant,
    State(app): State<App>,
    mailer: State<Mailer>,
) -> Result<(), HandlerError> {
    envelope.payload.order_id += 1;
    let _ = (tenant, app, mailer);
    Ok(())
}

type Answer = Result<(), HandlerError>;

#[handler(consumer = "alias")]
async fn returns_an_alias(event: outbox_core::Envelope<self::OrderPlaced>) -> Answer {
    drop(event);
    Ok(())
}

#[handler(consumer = "named")]
async fn takes_the_named_envelope(event: OrderPlacedEnvelope, tx: &Tx) -> Result<(), HandlerError> {
    let _: (Envelope<OrderPlaced>, _) = (event, tx);
    Ok(())
}

/// An event that only sounds like an envelope.
#[derive(Serialize, Deserialize, outbox_core::IntegrationEvent)]
#[event(subject = "post.sealed")]
pub(crate) struct SealedEnvelope;

#[handler(consumer = "sealed")]
async fn takes_an_event_called_envelope(event: SealedEnvelope) -> Result<(), HandlerError> {
    let _: SealedEnvelope = event;
    Ok(())
}

#[handler(consumer = "opaque")]
async fn returns_something(
    _: OrderPlaced,
) -> Result<(), impl std::error::Error + Send + Sync + 'static> {
    "1".parse::<u8>().map(drop)
}

#[handler(consumer = "raw")]
async fn r#match(event: OrderPlaced) -> Result<(), HandlerError> {
    // The names that the expansion uses are free.
    let (call, private, result) = (event.order_id, (), ());
    let _ = (call, private, result);
    Ok(())
}

#[handler(consumer = "call")]
async fn call(event: OrderPlaced, #[allow(unused)] tx: &Tx) -> Result<(), HandlerError> {
    let _ = event;
    Ok(())
}

#[handler(consumer = "batches", batch = 50, linger = "5ms")]
async fn takes_batches(events: Vec<OrderPlaced>, tx: &Tx) -> Result<(), HandlerError> {
    let _: (Vec<OrderPlaced>, _) = (events, tx);
    Ok(())
}

#[handler(consumer = "batches")]
async fn takes_enveloped(events: std::vec::Vec<Envelope<OrderPlaced>>) -> Result<(), HandlerError> {
    drop(events);
    Ok(())
}

#[handler(consumer = "batches")]
async fn takes_named(events: Vec<OrderPlacedEnvelope>, _: Context) -> Result<(), HandlerError> {
    drop(events);
    Ok(())
}

#[test]
fn a_vec_makes_a_handler_of_batches() {
    fn takes_batches_of<E, H: Handler<FakeStore<Tx>, (), Event = E>>(
        _: H,
    ) -> (bool, HandlerOptions) {
        (H::TAKES_BATCHES, H::OPTIONS)
    }
    let plain = HandlerOptions::new("batches");
    let written = plain.batch(50).linger(Duration::from_millis(5));
    assert_eq!(
        takes_batches_of::<OrderPlaced, _>(takes_batches {}),
        (true, written)
    );
    assert_eq!(
        takes_batches_of::<OrderPlaced, _>(takes_enveloped {}),
        (true, plain)
    );
    assert_eq!(
        takes_batches_of::<OrderPlaced, _>(takes_named {}),
        (true, plain)
    );
    let (batches, _) = takes_batches_of::<OrderPlaced, _>(bare {});
    assert!(!batches);
}

#[test]
fn name_and_options_are_constants() {
    let (name, options) = takes_transaction::<App, _>(create_shipment {});
    assert_eq!(name, "expand::handlers::create_shipment");
    let expected = HandlerOptions::new("shipping_1-a")
        .max_attempts(8)
        .max_crashes(2)
        .backoff(Backoff::exponential(
            Duration::from_millis(250),
            Duration::from_secs(300),
        ))
        .concurrency(32)
        .timeout(Duration::from_secs(7200));
    assert_eq!(options, expected);
}

#[test]
fn options_left_out_are_left_to_the_consumer() {
    assert_eq!(
        takes_none::<Tx, (), _>(bare {}).1,
        HandlerOptions::new("bare")
    );
    let fixed = HandlerOptions::new("fixed").backoff(Backoff::fixed(Duration::ZERO));
    assert_eq!(takes_none::<Tx, App, _>(with_state {}).1, fixed);
}

#[test]
fn without_a_transaction_any_store_will_do() {
    takes_none::<u8, String, _>(bare {});
    takes_none::<Tx, (), _>(bare {});
    takes_none::<Tx, (), _>(returns_an_alias {});
    takes_none::<Tx, (), _>(returns_something {});
    takes_none::<Tx, (), _>(takes_an_event_called_envelope {});
    assert_eq!(
        takes_none::<Tx, (), _>(r#match {}).0,
        "expand::handlers::match"
    );
    takes_transaction::<(), _>(call {});
    takes_transaction::<(), _>(takes_the_named_envelope {});
}

#[tokio::test]
async fn the_function_stays_a_function() {
    bare(OrderPlaced { order_id: 1 }).await.unwrap();
    let mailer = || State(Mailer("no such order"));
    let ship = async |order_id| {
        create_shipment(
            OrderPlaced { order_id },
            mailer(),
            &Tx,
            Context::test(),
            Payload(b"{}"),
        )
        .await
    };
    ship(1).await.unwrap();
    assert_eq!(ship(0).await.unwrap_err().kind(), HandlerErrorKind::Reject);
}

#[test]
fn a_handler_may_be_local_to_a_function() {
    #[derive(Serialize, Deserialize, outbox_core::IntegrationEvent)]
    #[event(subject = "a.local")]
    struct Local;

    #[handler(consumer = "local")]
    async fn local(_: Local) -> Result<(), HandlerError> {
        Ok(())
    }

    takes_none::<Tx, (), _>(local {});
}
