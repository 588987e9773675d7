//! A shop as a service: an HTTP API that takes orders, a relay that publishes what they left in the
//! outbox, and three consumers (shipping, billing, search), over a database and NATS JetStream.
//!
//! ```text
//! cargo run --example shop --features shop        # against DATABASE_URL and NATS_URL
//! cargo run --example servers                     # throw-away servers for it
//! ```
//!
//! `DATABASE_URL` may be `postgres://`, `mysql://` or `sqlite://`. `LISTEN` is the API's address
//! (`127.0.0.1:3000`), `PAYMENTS_DIR` where the fake payment provider keeps its books. With
//! `--no-relay` another process has to relay: see `relay_only`. `shop/README.md` walks through it.

mod http;

use std::{env, path::PathBuf, process::ExitCode};

use outbox_core::{Bus, Consumer, RelayOptions, error::BoxError};
use outbox_examples::{
    program::{connect_database, exit_code, setting, shutdown_on_signal, start_logging},
    shop::{
        billing::charge_customer,
        entity,
        payments::PaymentProvider,
        search::{index_order, index_shipment},
        shipping::create_shipment,
    },
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use tokio::net::TcpListener;

const USAGE: &str = "usage: shop [--no-relay]";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let with_relay = match arguments.as_slice() {
        [] => true,
        [option] if option == "--no-relay" => false,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    start_logging();
    exit_code(run(with_relay).await)
}

async fn run(with_relay: bool) -> Result<(), BoxError> {
    let shutdown = shutdown_on_signal()?;

    // The database: the shop's tables and the framework's.
    let db = connect_database().await?;
    let store = SeaOrm::builder(db.clone())
        // One for each handler that runs at once: three consumers with a concurrency of eight.
        .consumer_connections(24)
        .build()?;
    store.migrate().await?;
    entity::create_tables(&db).await?;

    // The broker: a stream for everything that the shop tells. NATS may be away when the shop starts.
    let nats = setting("NATS_URL", "nats://localhost:4222")?;
    let broker = JetStream::builder()
        .name("shop")
        .stream(StreamSpec::new("SHOP", ["shop.>"]))
        .wait_for_server()
        .connect(nats)
        .await?;

    // Relay and consumers.
    let bus = Bus::builder(store).source("shop").build();
    let payments = env::var_os("PAYMENTS_DIR").map_or_else(
        || env::temp_dir().join("outbox-shop-payments"),
        PathBuf::from,
    );
    let provider = PaymentProvider::open(payments)?.losing_answers();
    let mut runtime = bus
        .runtime(broker)
        .state(provider)
        .consumer(Consumer::of(create_shipment {}))
        .consumer(Consumer::of(charge_customer {}))
        .consumer(Consumer::of(index_order {}).handler(index_shipment {}));
    if with_relay {
        runtime = runtime.relay(RelayOptions::default());
    }

    // The API. Both stop on the same token: the API first finishes the requests that it has taken,
    // the runtime the messages that it has begun. What is still in the outbox then waits for the
    // next process.
    let api = http::router(db, bus, runtime.health());
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}"))?;
    eprintln!(
        "the shop is open: http://{} (process {})",
        listener.local_addr()?,
        std::process::id()
    );
    let serve =
        axum::serve(listener, api).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    // If one of them cannot go on, neither should the other.
    let serving = async {
        let ended = serve.await;
        shutdown.cancel();
        ended
    };
    let running = async {
        let ended = runtime.run(shutdown.clone()).await;
        shutdown.cancel();
        ended
    };
    let (served, stopped) = tokio::join!(serving, running);
    served?;
    let stopped = stopped?;
    eprintln!(
        "the shop is closed: {} handlers abandoned, relay's lease given up: {}",
        stopped.abandoned, stopped.relay_released
    );
    Ok(())
}
