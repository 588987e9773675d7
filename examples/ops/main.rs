//! An operator's command: what waits, what is held, what is dead and why, what the broker has lost,
//! and the way back.
//!
//! ```text
//! cargo run --example ops --features shop -- status
//! ```
//!
//! It asks the database of `DATABASE_URL` and the broker of `NATS_URL` itself, so the services may
//! run, be down, or be stuck meanwhile. What it finds goes to the standard output, what went wrong
//! to the standard error; it ends with 0 if it did what was asked, 1 if it could not, and 2 if it
//! did not understand. Everything that others wrote is shown with control characters escaped.

mod audit;
mod command;
mod consumers;
mod dead_letters;
mod held;
mod lease;
mod output;
mod status;

use std::{io, process::ExitCode};

use outbox_core::{Bus, error::BoxError, store::Store};
use outbox_examples::program::{connect_database, exit_code, setting};
use outbox_nats::{JetStream, Topology};
use outbox_seaorm::SeaOrm;
use sea_orm::DatabaseConnection;

use command::{Command, Invocation};
use output::Output;

/// What the commands work with.
struct Desk {
    db: DatabaseConnection,
    bus: Bus<SeaOrm>,
    nats_url: String,
    out: Output,
}

impl Desk {
    /// The broker. Nothing is created or changed there, and a server that is away is an error of
    /// whoever asks it something, not of the whole command.
    async fn broker(&self) -> Result<JetStream, BoxError> {
        let builder = JetStream::builder()
            .name("outbox-ops")
            .topology(Topology::Verify)
            .wait_for_server();
        Ok(builder.connect(&self.nats_url).await?)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match command::parse(std::env::args().skip(1)) {
        Ok(Invocation {
            command: Command::Help,
            ..
        }) => {
            print!("{}", command::USAGE);
            ExitCode::SUCCESS
        }
        Ok(invocation) => exit_code(or_closed(run(invocation).await)),
        Err(mistake) => {
            eprint!("{mistake}\n\n{}", command::USAGE);
            ExitCode::from(2)
        }
    }
}

async fn run(invocation: Invocation) -> Result<(), BoxError> {
    let db = connect_database().await?;
    let store = SeaOrm::builder(db.clone()).share_connections().build()?;
    store.check_schema().await?;
    let desk = Desk {
        db,
        bus: Bus::new(store),
        nats_url: setting("NATS_URL", "nats://localhost:4222")?,
        out: Output::new(invocation.json),
    };
    match invocation.command {
        Command::Help => Ok(()),
        Command::Status => status::show(&desk).await,
        Command::HeldList { reason } => held::list(&desk, reason).await,
        Command::DlqList { consumer } => dead_letters::list(&desk, consumer).await,
        Command::DlqShow { id, payload } => dead_letters::show(&desk, id, payload).await,
        Command::DlqReplay { ids } => dead_letters::replay(&desk, &ids).await,
        Command::DlqDiscard { ids } => dead_letters::discard(&desk, &ids).await,
        Command::Audit { hours, republish } => audit::run(&desk, hours, republish).await,
    }
}

/// Whoever reads our output has seen enough (`ops dlq list | head`): that is no failure.
fn or_closed(result: Result<(), BoxError>) -> Result<(), BoxError> {
    match result {
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        other => other,
    }
}
