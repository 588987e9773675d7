//! Runs a command with servers that all its tests share: `outbox-test-servers COMMAND [ARGS..]`.

use std::process::{Command, ExitCode};

use outbox_tests::{
    MARIADB_URL, MariaDb, NATS_URL, NatsServer, POSTGRES_URL, Postgres, TEMPLATES, templates,
};

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: outbox-test-servers COMMAND [ARGS..]");
        return ExitCode::from(2);
    };
    let (postgres, mariadb, nats) =
        tokio::join!(Postgres::start(), MariaDb::start(), NatsServer::start());
    let mut command = Command::new(&program);
    command
        .args(args)
        .env(TEMPLATES, templates())
        .env(POSTGRES_URL, postgres.server().url())
        .env(MARIADB_URL, mariadb.server().url())
        .env(NATS_URL, nats.nats().url());
    let status = tokio::task::spawn_blocking(move || command.status()).await;
    match status.expect("the command is waited for") {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            // A signal has no code: 128 and more is what a shell says then.
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            ExitCode::from(code.unwrap_or(128))
        }
        Err(error) => {
            eprintln!("start {}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}
