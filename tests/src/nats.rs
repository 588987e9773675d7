//! NATS servers.

use std::io;
use std::path::{Path, PathBuf};

use async_nats::jetstream::Context;
use async_nats::{Client, ConnectOptions};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::startup::{find_program, restart, start_on_free_port, workspace};
use crate::{NatsConfig, Recipe, ServerProcess, WorkDir};

const PROGRAM: &str = "nats-server";

/// The variable that names the shared NATS server of a test run.
pub const NATS_URL: &str = "OUTBOX_TEST_NATS_URL";

/// The NATS server that the tests share: one of the run, or else one of this process.
///
/// Streams and subjects on it need names that no other test uses: see [`unique`].
pub async fn shared_nats() -> &'static Nats {
    static SHARED: OnceCell<(Option<NatsServer>, Nats)> = OnceCell::const_new();
    let (_, nats) = SHARED
        .get_or_init(async || match std::env::var(NATS_URL) {
            Ok(url) => (None, Nats { url }),
            Err(_) => {
                let own = NatsServer::start().await;
                let nats = own.nats().clone();
                (Some(own), nats)
            }
        })
        .await;
    nats
}

/// A name that begins with `prefix` and that no other test uses: good for a database, a stream,
/// a consumer, or a token of a subject.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

/// The address of a NATS server; it cannot break the server, so it may be that of a shared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nats {
    url: String,
}

impl Nats {
    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection of its own.
    ///
    /// # Panics
    ///
    /// When the server does not accept it.
    pub async fn connect(&self) -> Client {
        self.connect_with(ConnectOptions::new()).await
    }

    /// A connection of its own with options, such as a user and password.
    ///
    /// # Panics
    ///
    /// When the server does not accept it.
    pub async fn connect_with(&self, options: ConnectOptions) -> Client {
        options.connect(&self.url).await.expect("connect to NATS")
    }

    /// JetStream over a connection of its own.
    pub async fn jetstream(&self) -> Context {
        async_nats::jetstream::new(self.connect().await)
    }
}

/// A NATS server of its own for a test that breaks it; killed on drop.
#[derive(Debug)]
pub struct NatsServer {
    // Fields drop in order: the process ends before its directory goes.
    process: ServerProcess,
    dir: WorkDir,
    port: u16,
    nats: Nats,
}

impl NatsServer {
    /// Starts a server with an empty JetStream store.
    pub async fn start() -> Self {
        Self::start_with(NatsConfig::default()).await
    }

    /// Starts a server that is set up as `config` says.
    ///
    /// # Panics
    ///
    /// When nats-server is not installed or does not start.
    pub async fn start_with(config: NatsConfig) -> Self {
        let dir = WorkDir::new("nats");
        let recipe = |port| {
            let file = dir.path().join("nats.conf");
            let text = config.text(port, &dir.path().join("store"));
            std::fs::write(&file, text).expect("write the NATS configuration");
            // Through a link, so that another version can take its place.
            point_to(dir.path(), config.oldest);
            Recipe::new(dir.path().join(PROGRAM), dir.path()).args(["--config".into(), file])
        };
        let (process, port) = start_on_free_port(recipe, answers).await;
        let nats = Nats {
            url: format!("nats://127.0.0.1:{port}"),
        };
        Self {
            process,
            dir,
            port,
            nats,
        }
    }

    /// Where the server listens.
    #[must_use]
    pub fn nats(&self) -> &Nats {
        &self.nats
    }

    /// Kills the server as a power cut would.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Shuts the server down in an orderly way.
    pub async fn stop(&self) {
        self.process.terminate().await;
    }

    /// Starts the server again on its port with its streams, killing it first if it runs.
    pub async fn restart(&self) {
        restart(&self.process, self.port, answers).await;
    }

    /// Kills the server, and starts the current version of it with its streams.
    pub async fn upgrade(&self) {
        self.kill();
        point_to(self.dir.path(), false);
        self.restart().await;
    }

    /// Kills the server and starts it again without any stream.
    ///
    /// # Panics
    ///
    /// When the store cannot be removed.
    pub async fn wipe(&self) {
        self.kill();
        let store = self.dir.path().join("store");
        if store.exists() {
            std::fs::remove_dir_all(store).expect("remove the JetStream store");
        }
        self.restart().await;
    }

    /// Remembers what is in the server's files now, for [`lose_since_saved`](Self::lose_since_saved).
    ///
    /// # Panics
    ///
    /// When the store cannot be copied.
    pub fn save(&self) {
        let (store, saved) = (self.dir.path().join("store"), self.dir.path().join("saved"));
        copy_directory(&store, &saved).expect("copy the JetStream store");
    }

    /// Kills the server and starts it again with what [`save`](Self::save) remembered: as after a power
    /// cut that came before anything later had been synced.
    ///
    /// # Panics
    ///
    /// When the store cannot be put back.
    pub async fn lose_since_saved(&self) {
        self.kill();
        let (store, saved) = (self.dir.path().join("store"), self.dir.path().join("saved"));
        std::fs::remove_dir_all(&store).expect("remove the JetStream store");
        copy_directory(&saved, &store).expect("put the JetStream store back");
        self.restart().await;
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

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Whether a server greets on the port: it does so only once JetStream has recovered.
async fn answers(port: u16) -> Result<(), String> {
    let greeting = async {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).await?;
        let mut greeting = [0; 5];
        connection.read_exact(&mut greeting).await?;
        std::io::Result::Ok(greeting)
    };
    let greeting = greeting.await.map_err(|error| error.to_string())?;
    if greeting == *b"INFO " {
        Ok(())
    } else {
        Err(format!("greeting {greeting:?}"))
    }
}

/// Lets the server's program in `dir` be the current version, or the oldest that is supported.
fn point_to(dir: &Path, oldest: bool) {
    let link = dir.join(PROGRAM);
    let _ = std::fs::remove_file(&link);
    let program = if oldest { oldest_program() } else { program() };
    let program = program.canonicalize().expect("the path of nats-server");
    std::os::unix::fs::symlink(program, &link).expect("link nats-server");
}

/// The oldest server that the framework takes.
fn oldest_program() -> PathBuf {
    let program = workspace().join(".tools/nats-server-2.10.25");
    assert!(
        program.exists(),
        "no {}: run tests/install",
        program.display()
    );
    program
}

fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("NATS_SERVER") {
        return program.into();
    }
    find_program("nats-server", &[workspace().join(".tools")])
        .unwrap_or_else(|| panic!("no nats-server: run tests/run, or set NATS_SERVER to its path"))
}
