//! What a program needs around its work: settings, a database, a log, signals, a last word.

use std::{env, error::Error, fmt, process::ExitCode, time::Duration};

use outbox_core::error::BoxError;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend};
use tokio_util::sync::CancellationToken;

/// A setting from the environment.
///
/// # Errors
///
/// It is not there; the text says what belongs there.
pub fn setting(name: &str, example: &str) -> Result<String, BoxError> {
    env::var(name).map_err(|_| format!("set {name}, for example {name}={example}").into())
}

/// Connects to the database of `DATABASE_URL`: `postgres://..`, `mysql://..` or `sqlite://..`.
///
/// # Errors
///
/// It is not set, cannot be reached, or is of a kind that was not compiled in.
pub async fn connect_database() -> Result<DatabaseConnection, BoxError> {
    let url = setting("DATABASE_URL", "postgres://postgres@localhost/shop")?;
    let mut options = ConnectOptions::new(url);
    options.sqlx_logging(false);
    options.acquire_timeout(Duration::from_secs(5));
    let db = Database::connect(options).await?;
    if db.get_database_backend() == DbBackend::Sqlite {
        // Readers and the one writer do not wait for each other; the file remembers it.
        db.execute_unprepared("PRAGMA journal_mode = WAL").await?;
    }
    Ok(db)
}

/// Writes the log to the standard error; `RUST_LOG` chooses what.
#[cfg(feature = "nats")]
pub fn start_logging() {
    use std::io::IsTerminal;
    use tracing_subscriber::EnvFilter;

    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,async_nats=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .compact()
        .init();
}

/// A token that is cancelled when the process is asked to stop: by ctrl-c, or by SIGTERM, which is
/// what Kubernetes, systemd and `kill` send.
///
/// # Errors
///
/// The signals cannot be watched.
pub fn shutdown_on_signal() -> Result<CancellationToken, BoxError> {
    let token = CancellationToken::new();
    let asked = stop_signal()?;
    let cancelled = token.clone();
    tokio::spawn(async move {
        asked.await;
        eprintln!("asked to stop; finishing what has begun");
        cancelled.cancel();
    });
    Ok(token)
}

#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
#[allow(clippy::unnecessary_wraps, reason = "as on unix")]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Nobody can ask it to stop then; the process can still be killed.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// The exit code of a program, after its error has been told with all its causes.
#[must_use]
pub fn exit_code(result: Result<(), BoxError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", Chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, on one line.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}
