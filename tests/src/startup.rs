//! Starting a server on a free port and waiting until it answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::{Recipe, ServerProcess, eventually, free_port};

const STARTUP: Duration = Duration::from_secs(60);

/// Starts a server, on another port whenever it gives up before it answers.
///
/// # Panics
///
/// When the server gives up on five ports; the message holds its log.
pub(crate) async fn start_on_free_port(
    recipe: impl Fn(u16) -> Recipe,
    answers: impl AsyncFn(u16) -> Result<(), String>,
) -> (ServerProcess, u16) {
    let mut log = String::new();
    for _ in 0..5 {
        let port = free_port();
        let process = ServerProcess::spawn(recipe(port));
        if ready(&process, port, &answers).await {
            return (process, port);
        }
        log = process.log_tail();
    }
    panic!("the server does not start; its log ends with:\n{log}");
}

/// Starts a server again on the port it had.
///
/// # Panics
///
/// When it does not answer within a minute.
pub(crate) async fn restart(
    process: &ServerProcess,
    port: u16,
    answers: impl AsyncFn(u16) -> Result<(), String>,
) {
    eventually("the restarted server answers", STARTUP, async || {
        // A server refuses to start while remains of the killed one hold its resources.
        process.respawn();
        if ready(process, port, &answers).await {
            Ok(())
        } else {
            Err(process.log_tail())
        }
    })
    .await;
}

/// Waits until the server answers; `false` if it ended before.
async fn ready(
    process: &ServerProcess,
    port: u16,
    answers: &impl AsyncFn(u16) -> Result<(), String>,
) -> bool {
    eventually("the server answers", STARTUP, async || {
        if process.exit_status().is_some() {
            return Ok(false);
        }
        let connection = TcpStream::connect(("127.0.0.1", port)).await;
        drop(connection.map_err(|error| format!("{error}; log:\n{}", process.log_tail()))?);
        answers(port).await.map(|()| true)
    })
    .await
}

/// The first of the programs that exists in a directory of `extra` or `PATH`.
pub(crate) fn find_program(name: &str, extra: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/bin", "/usr/local/sbin"].map(PathBuf::from);
    let directories = extra
        .iter()
        .cloned()
        .chain(std::env::split_paths(&path))
        .chain(usual);
    directories
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// The root of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
