//! A process that relays and consumes, for tests that kill it.
//!
//! `outbox-test-node relay,consumer` works on `DATABASE_URL` and `NATS_URL` until SIGTERM, and prints
//! `ready` when it has started.

use std::{error::Error, time::Duration};

use outbox_core::{Backoff, Bus, Consumer, HandlerError, IntegrationEvent, RelayOptions, handler};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::connect;
use sea_orm::{ConnectionTrait, DatabaseTransaction};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", key = customer)]
struct OrderPlaced {
    number: i64,
    customer: Option<String>,
}

#[handler(consumer = "shipping", concurrency = 8)]
async fn ship(order: OrderPlaced, tx: &DatabaseTransaction) -> Result<(), HandlerError> {
    // Number 0 is the message that kills its process.
    if order.number == 0 {
        std::process::abort();
    }
    tx.execute_unprepared(&format!(
        "INSERT INTO effects (number) VALUES ({})",
        order.number
    ))
    .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let roles = std::env::args()
        .nth(1)
        .ok_or("say what to do: relay,consumer")?;
    let db = connect(&std::env::var("DATABASE_URL")?, 10).await?;
    let broker = JetStream::builder()
        .stream(StreamSpec::new("SHOP", ["shop.>"]))
        .wait_for_server()
        .connect(&std::env::var("NATS_URL")?)
        .await?;
    let bus = Bus::new(SeaOrm::new(db));
    let mut runtime = bus.runtime(broker);
    if roles.contains("relay") {
        let options = RelayOptions::default()
            .lease(Duration::from_secs(1))
            .idle_poll(Duration::from_millis(100))
            .standby_poll(Duration::from_millis(100));
        runtime = runtime.relay(options);
    }
    if roles.contains("consumer") {
        let backoff = Backoff::fixed(Duration::from_millis(100));
        runtime = runtime.consumer(
            Consumer::of(ship {})
                .ack_wait(Duration::from_secs(1))
                .backoff(backoff),
        );
    }
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    println!("ready");
    let report = runtime.run(stopped).await?;
    println!("stopped {report:?}");
    Ok(())
}
