//! The relay as a process of its own. The producers are elsewhere: they write to the outbox of the
//! same database and know neither this process nor NATS.
//!
//! ```text
//! cargo run --example relay_only --features shop      # against DATABASE_URL and NATS_URL
//! cargo run --example shop --features shop -- --no-relay      # a producer for it
//! ```
//!
//! Start it twice: one relays, the other stands by, and takes over at once when the first is stopped,
//! or after the lease of ten seconds when it is killed.

use std::{process::ExitCode, time::Duration};

use outbox_core::{Bus, Relay, RelayOptions, RelayState, error::BoxError};
use outbox_examples::program::{
    Chain, connect_database, exit_code, setting, shutdown_on_signal, start_logging,
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use tokio::time::sleep;

#[tokio::main]
async fn main() -> ExitCode {
    start_logging();
    exit_code(run().await)
}

async fn run() -> Result<(), BoxError> {
    let shutdown = shutdown_on_signal()?;
    let store = SeaOrm::new(connect_database().await?);
    store.migrate().await?;
    let nats = setting("NATS_URL", "nats://localhost:4222")?;
    let broker = JetStream::builder()
        .name("relay")
        .stream(StreamSpec::new("SHOP", ["shop.>"]))
        .wait_for_server()
        .connect(nats)
        .await?;

    // No producer of this process can wake it, so it looks more often than once a second.
    let options = RelayOptions::default().idle_poll(Duration::from_millis(100));
    let bus = Bus::new(store);
    let relay = Relay::new(bus.clone(), broker).options(options);
    // It waits out every outage, and ends only when it is asked to.
    tokio::select! {
        () = relay.run(shutdown) => {}
        () = tell(&relay, &bus) => {}
    }
    Ok(())
}

/// Tells what the relay does, whenever that changes.
async fn tell(relay: &Relay<SeaOrm, JetStream>, bus: &Bus<SeaOrm>) {
    let mut told = String::new();
    loop {
        let waiting = match bus.backlog().await {
            Ok(backlog) => format!("{} events wait", backlog.waiting),
            Err(error) => Chain(&error).to_string(),
        };
        let status = relay.status();
        let state = match (status.state, status.problem) {
            (_, Some(problem)) => problem,
            (RelayState::Active, None) if status.broker_connected => "relaying".to_owned(),
            (RelayState::Active, None) => "no connection to NATS".to_owned(),
            (RelayState::Standby, None) => "standing by: another process relays".to_owned(),
            (_, None) => "not running".to_owned(),
        };
        let now = format!("{state}; {waiting}");
        if now != told {
            println!("{now}");
            told = now;
        }
        sleep(Duration::from_secs(1)).await;
    }
}
