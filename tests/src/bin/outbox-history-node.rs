//! A process of the shop of histories: `outbox-history-node SLOT ROLES`, see [`outbox_tests::history`].

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_ansi(false)
        .init();
    let mut args = std::env::args().skip(1);
    let slot = args.next().ok_or("say which slot")?.parse()?;
    let roles = args
        .next()
        .ok_or("say what to do: orders,relay,consumer,operator")?;
    outbox_tests::history::run_node(slot, &roles).await
}
