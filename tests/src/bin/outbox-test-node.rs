//! A process that relays and consumes, for tests that kill it.
//!
//! `outbox-test-node relay,consumer` works on `DATABASE_URL` and `NATS_URL` until SIGTERM, and prints
//! `ready` when it has started. Files in the folder `GATES` free the threads that some messages block.

use std::{error::Error, path::Path, time::Duration};

use outbox_core::{Backoff, Bus, Consumer, HandlerError, IntegrationEvent, RelayOptions, handler};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::connect;
use rustix::process::{Resource, Rlimit, setrlimit};
use sea_orm::{ConnectionTrait, DatabaseTransaction};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// What the process may take, in bytes.
const MEMORY: u64 = 1 << 30;

#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", key = customer)]
struct OrderPlaced {
    number: i64,
    customer: Option<String>,
}

#[handler(consumer = "shipping", concurrency = 8)]
async fn ship(order: OrderPlaced, tx: &DatabaseTransaction) -> Result<(), HandlerError> {
    // Number 0 is the message that kills its process, -1 the one that takes all memory, and those below
    // block their thread until there is a file of their name.
    if order.number == 0 {
        std::process::abort();
    }
    if order.number == -1 {
        let mut hoard = Vec::new();
        loop {
            hoard.push(vec![1_u8; 64 << 20]);
        }
    }
    if order.number < -1 {
        let gates = std::env::var("GATES").map_err(HandlerError::reject)?;
        println!("blocked {}", order.number);
        while !Path::new(&gates).join(order.number.to_string()).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
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
    // So that a message that takes all memory does not take that of the machine.
    let memory = Rlimit {
        current: Some(MEMORY),
        maximum: Some(MEMORY),
    };
    setrlimit(Resource::Data, memory)?;
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
        let max_crashes = std::env::var("MAX_CRASHES").map_or(Ok(3), |crashes| crashes.parse())?;
        runtime = runtime.consumer(
            Consumer::of(ship {})
                .ack_wait(Duration::from_secs(1))
                .max_crashes(max_crashes)
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
