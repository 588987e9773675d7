//! PostgreSQL servers.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tokio::sync::OnceCell;

use crate::startup::{find_program, restart, start_on_free_port};
use crate::user::User;
use crate::{DatabaseServer, Recipe, ServerProcess, WorkDir, template};

/// The variable that names the shared PostgreSQL server of a test run.
pub const POSTGRES_URL: &str = "OUTBOX_TEST_POSTGRES_URL";

/// The PostgreSQL server that the tests share: one of the run, or else one of this process.
pub async fn shared_postgres() -> &'static DatabaseServer {
    static SHARED: OnceCell<(Option<Postgres>, DatabaseServer)> = OnceCell::const_new();
    let (_, server) = SHARED
        .get_or_init(async || match std::env::var(POSTGRES_URL) {
            Ok(url) => (None, DatabaseServer::new(url)),
            Err(_) => {
                let own = Postgres::start().await;
                let server = own.server().clone();
                (Some(own), server)
            }
        })
        .await;
    server
}

/// How a PostgreSQL server is set up.
#[derive(Clone, Debug, Default)]
pub struct PostgresConfig {
    durable: bool,
    settings: Vec<String>,
}

impl PostgresConfig {
    /// Commits reach the disk (`fsync = on`), as in production; off by default for speed.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Adds a server setting.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    fn args(&self, port: u16) -> Vec<String> {
        let mut settings = vec![
            format!("port={port}"),
            "listen_addresses=127.0.0.1".to_owned(),
            // Relative to the data directory: no limit on the length of a path is met.
            "unix_socket_directories=.".to_owned(),
            "max_connections=200".to_owned(),
            "shared_buffers=64MB".to_owned(),
            // In files of the data directory, which go with it.
            "dynamic_shared_memory_type=mmap".to_owned(),
            format!("fsync={}", if self.durable { "on" } else { "off" }),
        ];
        settings.extend(self.settings.iter().cloned());
        settings
            .into_iter()
            .flat_map(|setting| ["-c".to_owned(), setting])
            .collect()
    }
}

/// A PostgreSQL server of its own for a test that breaks it; killed on drop.
#[derive(Debug)]
pub struct Postgres {
    // Fields drop in order: the process ends before what it used goes.
    process: ServerProcess,
    _memory: SharedMemory,
    _dir: WorkDir,
    port: u16,
    server: DatabaseServer,
}

impl Postgres {
    /// Starts a server with an empty cluster.
    pub async fn start() -> Self {
        Self::start_with(PostgresConfig::default()).await
    }

    /// Starts a server that is set up as `config` says.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed or does not start.
    pub async fn start_with(config: PostgresConfig) -> Self {
        let user = User::unprivileged("postgres");
        let dir = WorkDir::owned_by("postgres", user);
        let data = template::data_dir("postgres", &dir, user, move |data| init(data, user)).await;
        let recipe = |port| {
            let mut recipe = Recipe::new(program("postgres"), dir.path());
            recipe.user = user;
            // "Fast" shutdown: SIGTERM would wait for the clients.
            recipe.stop = Signal::INT;
            recipe
                .args(["-D".into(), data.clone()])
                .args(config.args(port))
        };
        let (process, port) = start_on_free_port(recipe, answers).await;
        Self {
            process,
            _memory: SharedMemory(data.join("postmaster.pid")),
            _dir: dir,
            port,
            server: server(port),
        }
    }

    /// Where the server listens.
    #[must_use]
    pub fn server(&self) -> &DatabaseServer {
        &self.server
    }

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database and returns its URL.
    pub async fn create_database(&self) -> String {
        self.server.create_database().await
    }

    /// Kills the server as a power cut would.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Shuts the server down in an orderly way.
    pub async fn stop(&self) {
        self.process.terminate().await;
    }

    /// Starts the server again on its port with its data, killing it first if it runs.
    pub async fn restart(&self) {
        restart(&self.process, self.port, answers).await;
    }

    /// Stops the server in its tracks: connections stay open, nothing answers.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.process.thaw();
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

/// The System V segment that a killed server leaves behind, named in its pid file.
#[derive(Debug)]
struct SharedMemory(PathBuf);

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let pid_file = std::fs::read_to_string(&self.0).unwrap_or_default();
        // Line 7: the key and the id.
        let segment = pid_file.lines().nth(6);
        if let Some(id) = segment.and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).status();
        }
    }
}

fn server(port: u16) -> DatabaseServer {
    DatabaseServer::new(format!("postgres://postgres@127.0.0.1:{port}/postgres"))
}

async fn answers(port: u16) -> Result<(), String> {
    server(port).answers().await
}

fn init(data: &Path, user: Option<User>) {
    let mut recipe = Recipe::new(
        program("initdb"),
        data.parent().expect("a parent directory"),
    );
    recipe.user = user;
    recipe = recipe.args(["--auth=trust", "--username=postgres", "--encoding=UTF8"]);
    recipe = recipe.args(["--locale=C", "--no-sync", "--no-instructions"]);
    template::run(recipe.args(["--pgdata".into(), data.to_owned()]).command());
}

fn program(name: &str) -> PathBuf {
    find_program(name, &installed_versions())
        .unwrap_or_else(|| panic!("no {name}: run tests/run, or apt-get install postgresql"))
}

/// The program directories of Debian's packages, the newest version first.
fn installed_versions() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_unstable();
    versions
        .into_iter()
        .rev()
        .map(|(_, programs)| programs)
        .collect()
}
