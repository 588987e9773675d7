//! A connection pooler in front of PostgreSQL.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::startup::{restart, start_on_free_port, workspace};
use crate::user::User;
use crate::{DatabaseServer, Recipe, ServerProcess, WorkDir};

/// A PgBouncer in transaction mode, which gives each transaction any of its connections; killed on
/// drop.
#[derive(Debug)]
pub struct PgBouncer {
    // Fields drop in order: the process ends before its directory goes.
    process: ServerProcess,
    _dir: WorkDir,
    port: u16,
    server: DatabaseServer,
}

impl PgBouncer {
    /// Starts one in front of the PostgreSQL server on a port of this machine.
    ///
    /// # Panics
    ///
    /// When PgBouncer is not installed or does not start.
    pub async fn start(postgres: u16) -> Self {
        // It refuses to run as root, and the account may not read the workspace.
        let user = User::unprivileged("postgres");
        let dir = WorkDir::owned_by("pgbouncer", user);
        let programs = dir.path().join("programs");
        copy(&workspace().join(".tools/pgbouncer"), &programs);
        let recipe = |port| {
            let file = dir.path().join("pgbouncer.ini");
            let text = format!(
                "[databases]\n* = host=127.0.0.1 port={postgres} user=postgres\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = transaction\nmax_prepared_statements = 200\n\
                 default_pool_size = 8\nmax_client_conn = 500\n\
                 ignore_startup_parameters = extra_float_digits\n"
            );
            std::fs::write(&file, text).expect("write the configuration of PgBouncer");
            let mut recipe = Recipe::new(loader(&programs), dir.path());
            recipe.user = user;
            recipe.stop = Signal::INT;
            recipe.args([
                "--library-path".into(),
                programs.join("lib"),
                programs.join("pgbouncer"),
                file,
            ])
        };
        let (process, port) = start_on_free_port(recipe, answers).await;
        Self {
            process,
            _dir: dir,
            port,
            server: server(port),
        }
    }

    /// The PostgreSQL server as it is seen through the pooler.
    #[must_use]
    pub fn server(&self) -> &DatabaseServer {
        &self.server
    }

    /// Starts the pooler again on its port, killing it first.
    pub async fn restart(&self) {
        restart(&self.process, self.port, answers).await;
    }
}

fn server(port: u16) -> DatabaseServer {
    DatabaseServer::new(format!("postgres://postgres@127.0.0.1:{port}/postgres"))
}

async fn answers(port: u16) -> Result<(), String> {
    server(port).answers().await
}

/// The dynamic loader that belongs to the program's libraries.
fn loader(programs: &Path) -> PathBuf {
    let libraries = std::fs::read_dir(programs.join("lib")).expect("read the libraries");
    libraries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("ld-linux")
        })
        .expect("the dynamic loader of PgBouncer: run tests/install")
}

fn copy(from: &Path, to: &Path) {
    assert!(
        from.join("pgbouncer").exists(),
        "no PgBouncer in {}: run tests/install",
        from.display()
    );
    std::fs::create_dir_all(to.join("lib")).expect("make a directory for PgBouncer");
    for part in ["", "lib"] {
        let files = std::fs::read_dir(from.join(part)).expect("read the files of PgBouncer");
        for file in files.flatten().filter(|file| file.path().is_file()) {
            let target = to.join(part).join(file.file_name());
            std::fs::copy(file.path(), target).expect("copy PgBouncer");
        }
    }
}
