//! MariaDB servers.

use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use crate::startup::{find_program, restart, start_on_free_port};
use crate::user::User;
use crate::{DatabaseServer, Recipe, ServerProcess, WorkDir, template};

/// The variable that names the shared MariaDB server of a test run.
pub const MARIADB_URL: &str = "OUTBOX_TEST_MARIADB_URL";

/// The MariaDB server that the tests share: one of the run, or else one of this process.
pub async fn shared_mariadb() -> &'static DatabaseServer {
    static SHARED: OnceCell<(Option<MariaDb>, DatabaseServer)> = OnceCell::const_new();
    let (_, server) = SHARED
        .get_or_init(async || match std::env::var(MARIADB_URL) {
            Ok(url) => (None, DatabaseServer::new(url)),
            Err(_) => {
                let own = MariaDb::start().await;
                let server = own.server().clone();
                (Some(own), server)
            }
        })
        .await;
    server
}

/// How a MariaDB server is set up.
#[derive(Clone, Debug, Default)]
pub struct MariaDbConfig {
    durable: bool,
    settings: Vec<String>,
}

impl MariaDbConfig {
    /// Commits reach the disk (`innodb_flush_log_at_trx_commit = 1`), as in production; they
    /// survive only the server's own death by default, for speed.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Adds a server setting.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("--{name}={value}"));
        self
    }

    fn args(&self, port: u16) -> Vec<String> {
        let flush = if self.durable { 1 } else { 2 };
        let mut args = vec![
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            // Relative to the data directory: no limit on the length of a path is met.
            "--socket=mariadb.sock".to_owned(),
            "--pid-file=mariadb.pid".to_owned(),
            "--max-connections=500".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--character-set-server=utf8mb4".to_owned(),
            "--collation-server=utf8mb4_unicode_ci".to_owned(),
            "--innodb-buffer-pool-size=64M".to_owned(),
            format!("--innodb-flush-log-at-trx-commit={flush}"),
        ];
        args.extend(self.settings.iter().cloned());
        args
    }
}

/// A MariaDB server of its own for a test that breaks it; killed on drop.
#[derive(Debug)]
pub struct MariaDb {
    // Fields drop in order: the process ends before its directory goes.
    process: ServerProcess,
    _dir: WorkDir,
    port: u16,
    server: DatabaseServer,
}

impl MariaDb {
    /// Starts a server without data.
    pub async fn start() -> Self {
        Self::start_with(MariaDbConfig::default()).await
    }

    /// Starts a server that is set up as `config` says.
    ///
    /// # Panics
    ///
    /// When MariaDB is not installed or does not start.
    pub async fn start_with(config: MariaDbConfig) -> Self {
        let user = User::unprivileged("mysql");
        let dir = WorkDir::owned_by("mariadb", user);
        let data = template::data_dir("mariadb", &dir, user, move |data| init(data, user)).await;
        let recipe = |port| {
            let mut recipe = Recipe::new(program("mariadbd"), dir.path());
            recipe.user = user;
            recipe.args(base_args(&data)).args(config.args(port))
        };
        let (process, port) = start_on_free_port(recipe, answers).await;
        Self {
            process,
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

fn server(port: u16) -> DatabaseServer {
    DatabaseServer::new(format!("mysql://root@127.0.0.1:{port}/mysql"))
}

async fn answers(port: u16) -> Result<(), String> {
    server(port).answers().await
}

/// What both the server and the making of its data directory need.
fn base_args(data: &Path) -> [String; 4] {
    let dir = data.parent().expect("a parent directory");
    [
        "--no-defaults".to_owned(),
        format!("--datadir={}", data.display()),
        // A starting server deletes the temporary tables that it finds, of whatever server.
        format!("--tmpdir={}", dir.display()),
        "--innodb-log-file-size=32M".to_owned(),
    ]
}

fn init(data: &Path, user: Option<User>) {
    let dir = data.parent().expect("a parent directory");
    let mut recipe = Recipe::new(program("mariadb-install-db"), dir).args(base_args(data));
    recipe.user = user;
    // Root without a password, for connections over TCP too.
    recipe = recipe.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    template::run(recipe.command());
}

fn program(name: &str) -> PathBuf {
    find_program(name, &[])
        .unwrap_or_else(|| panic!("no {name}: run tests/run, or apt-get install mariadb-server"))
}
