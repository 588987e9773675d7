//! Throw-away servers for the other examples: a database and NATS with JetStream, on free ports,
//! with data that is gone when they stop.
//!
//! ```text
//! cargo run --example servers                     # prints their addresses; ctrl-c stops them
//! cargo run --example servers -- COMMAND ARGS..   # runs a command with them and stops them after it
//! cargo run --example servers -- --mariadb        # MariaDB instead of PostgreSQL; or --sqlite
//! ```
//!
//! The programs must be installed; `tests/install` does that on Debian. PostgreSQL is looked for in
//! `/usr/lib/postgresql/*/bin` and `PATH`, nats-server in `.tools` and `PATH`, MariaDB in `PATH`;
//! `POSTGRES_BIN` (a directory) and `NATS_SERVER` (a program) say it otherwise.

use std::{
    env,
    error::Error,
    ffi::OsString,
    fs::{self, File, Permissions},
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};

const USAGE: &str = "usage: servers [--postgres | --mariadb | --sqlite] [COMMAND [ARGS..]]";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Clone, Copy)]
enum Database {
    Postgres,
    MariaDb,
    Sqlite,
}

#[tokio::main]
async fn main() -> ExitCode {
    let (database, command) = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    match run(database, &command).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> std::result::Result<(Database, Vec<OsString>), &'static str> {
    let mut database = Database::Postgres;
    let mut arguments = env::args_os().skip(1).peekable();
    while let Some(option) =
        arguments.next_if(|argument| argument.as_encoded_bytes().starts_with(b"-"))
    {
        database = match option.to_str() {
            Some("--postgres") => Database::Postgres,
            Some("--mariadb") => Database::MariaDb,
            Some("--sqlite") => Database::Sqlite,
            Some("--") => break,
            _ => return Err(USAGE),
        };
    }
    Ok((database, arguments.collect()))
}

async fn run(database: Database, command: &[OsString]) -> Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;

    let dir = tempfile::Builder::new()
        .prefix("outbox-servers-")
        .tempdir()?;
    // Database servers refuse to be root, and have to get through to their data.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o711))?;
    let mut servers = Vec::new();
    let database_url = match database {
        Database::Postgres => start_postgres(&dir, &mut servers).await?,
        Database::MariaDb => start_mariadb(&dir, &mut servers).await?,
        Database::Sqlite => format!("sqlite://{}?mode=rwc", dir.path().join("shop.db").display()),
    };
    let nats_url = start_nats(&dir, &mut servers).await?;
    let payments = dir.path().join("payments");

    let code = if let Some((program, arguments)) = command.split_first() {
        let mut child = Command::new(program)
            .args(arguments)
            .env("DATABASE_URL", database_url)
            .env("NATS_URL", nats_url)
            .env("PAYMENTS_DIR", payments)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        loop {
            tokio::select! {
                status = child.wait() => break status?.code().and_then(|code| code.try_into().ok()).unwrap_or(1),
                // The command has got ctrl-c as well, and decides when it ends.
                _ = interrupt.recv() => {}
                _ = terminate.recv() => tell(&child, "TERM").await,
            }
        }
    } else {
        println!("export DATABASE_URL='{database_url}'");
        println!("export NATS_URL='{nats_url}'");
        println!("export PAYMENTS_DIR='{}'", payments.display());
        eprintln!(
            "\nThe servers are running: paste these lines into other terminals. Ctrl-c stops them."
        );
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        0
    };
    while let Some(server) = servers.pop() {
        server.stop().await;
    }
    Ok(code)
}

// ===== the servers =====

async fn start_postgres(dir: &TempDir, servers: &mut Vec<Server>) -> Result<String> {
    let programs = postgres_programs()?;
    let user = User::for_servers("postgres", dir)?;
    let home = user.home(dir, "postgres")?;
    let data = home.join("data");
    user.run(
        Command::new(programs.join("initdb"))
            .args([
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
            ])
            .args(["--no-sync", "--no-instructions", "--pgdata"])
            .arg(&data),
        &home,
    )
    .await?;
    let port = free_port()?;
    let mut command = Command::new(programs.join("postgres"));
    command.arg("-D").arg(&data);
    for setting in [
        format!("port={port}").as_str(),
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "max_connections=200",
        "fsync=off",
    ] {
        command.args(["-c", setting]);
    }
    let server = Server::start("PostgreSQL", user, command, &home, "INT")?;
    let mut ready = Command::new(programs.join("pg_isready"));
    ready.args(["--host=127.0.0.1", &format!("--port={port}")]);
    servers.push(server.answers(&mut ready).await?);
    Ok(format!("postgres://postgres@127.0.0.1:{port}/postgres"))
}

async fn start_mariadb(dir: &TempDir, servers: &mut Vec<Server>) -> Result<String> {
    let user = User::for_servers("mysql", dir)?;
    let home = user.home(dir, "mariadb")?;
    let common = [
        "--no-defaults".to_owned(),
        format!("--datadir={}", home.join("data").display()),
        format!("--tmpdir={}", home.display()),
        "--innodb-log-file-size=32M".to_owned(),
    ];
    let install = find("mariadb-install-db", &[], "mariadb-server")?;
    user.run(
        Command::new(install)
            .args(&common)
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"]),
        &home,
    )
    .await?;
    let first = home.join("first.sql");
    fs::write(&first, "CREATE DATABASE IF NOT EXISTS shop;\n")?;
    let port = free_port()?;
    let mut command = Command::new(find("mariadbd", &[], "mariadb-server")?);
    command.args(&common).args([
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--socket={}", home.join("socket").display()),
        format!("--pid-file={}", home.join("pid").display()),
        "--skip-name-resolve".to_owned(),
        "--max-connections=200".to_owned(),
        "--character-set-server=utf8mb4".to_owned(),
        format!("--init-file={}", first.display()),
    ]);
    let server = Server::start("MariaDB", user, command, &home, "TERM")?;
    let mut ready = Command::new(find("mariadb-admin", &[], "mariadb-client")?);
    ready.args([
        "--no-defaults",
        "--host=127.0.0.1",
        "--protocol=tcp",
        "--user=root",
    ]);
    ready.args([&format!("--port={port}"), "ping"]);
    servers.push(server.answers(&mut ready).await?);
    Ok(format!("mysql://root@127.0.0.1:{port}/shop"))
}

async fn start_nats(dir: &TempDir, servers: &mut Vec<Server>) -> Result<String> {
    let program = match env::var_os("NATS_SERVER") {
        Some(program) => program.into(),
        None => {
            let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
            find("nats-server", &[tools], "nats-server, 2.10.25 or newer")?
        }
    };
    let home = dir.path().join("nats");
    fs::create_dir(&home)?;
    let port = free_port()?;
    let mut command = Command::new(program);
    command
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .args(["--jetstream", "--store_dir"])
        .arg(&home);
    let mut server = Server::start("nats-server", User::Same, command, &home, "TERM")?;
    server
        .until(async || {
            tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_ok()
        })
        .await?;
    servers.push(server);
    Ok(format!("nats://127.0.0.1:{port}"))
}

/// The directory of PostgreSQL's programs, the newest version's.
fn postgres_programs() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("POSTGRES_BIN") {
        return Ok(dir.into());
    }
    let installed = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<(u32, PathBuf)> = installed
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .collect();
    versions.sort();
    let newest_first: Vec<PathBuf> = versions.into_iter().rev().map(|(_, dir)| dir).collect();
    let initdb = find("initdb", &newest_first, "postgresql")?;
    Ok(initdb.parent().unwrap_or(Path::new("/")).to_owned())
}

// ===== processes =====

struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// What asks it to stop.
    signal: &'static str,
}

impl Server {
    fn start(
        name: &'static str,
        user: User,
        mut command: Command,
        home: &Path,
        signal: &'static str,
    ) -> Result<Self> {
        let log = home.join("log.txt");
        let file = File::create(&log)?;
        user.drop_to(&mut command);
        let child = command
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-c is not for the servers: they stop last.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self {
            name,
            child,
            log,
            signal,
        })
    }

    /// Waits until `question` succeeds.
    async fn answers(mut self, question: &mut Command) -> Result<Self> {
        question
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.until(async || question.status().await.is_ok_and(|status| status.success()))
            .await?;
        Ok(self)
    }

    async fn until(&mut self, mut ready: impl AsyncFnMut() -> bool) -> Result<()> {
        for _ in 0..600 {
            if self.child.try_wait()?.is_some() {
                break;
            }
            if ready().await {
                let process = self.child.id().unwrap_or_default();
                eprintln!("{} is ready (process {process})", self.name);
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        Err(format!("{} does not start:\n{log}", self.name).into())
    }

    async fn stop(mut self) {
        tell(&self.child, self.signal).await;
        if timeout(Duration::from_secs(10), self.child.wait())
            .await
            .is_err()
        {
            eprintln!("{} does not stop and is killed", self.name);
        }
    }
}

/// Sends a signal.
async fn tell(child: &Child, signal: &str) {
    if let Some(pid) = child.id() {
        let sent = Command::new("kill")
            .args([format!("-{signal}"), pid.to_string()])
            .status()
            .await;
        if let Err(error) = sent {
            eprintln!("cannot run kill: {error}");
        }
    }
}

/// The account of a server.
#[derive(Clone, Copy)]
enum User {
    Same,
    Other { uid: u32, gid: u32 },
}

impl User {
    /// Another account if we are root, which database servers refuse to be.
    fn for_servers(preferred: &str, dir: &TempDir) -> Result<Self> {
        if fs::metadata(dir.path())?.uid() != 0 {
            return Ok(Self::Same);
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        let account = |name: &str| {
            accounts.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next()? == name).then_some(())?;
                Some(Self::Other {
                    uid: fields.nth(1)?.parse().ok()?,
                    gid: fields.next()?.parse().ok()?,
                })
            })
        };
        account(preferred)
            .or_else(|| account("nobody"))
            .ok_or_else(|| {
                format!("run as another user than root: there is no account {preferred}").into()
            })
    }

    /// A directory for its data.
    fn home(self, dir: &TempDir, name: &str) -> Result<PathBuf> {
        let home = dir.path().join(name);
        fs::create_dir(&home)?;
        if let Self::Other { uid, gid } = self {
            chown(&home, Some(uid), Some(gid))?;
        }
        Ok(home)
    }

    fn drop_to(self, command: &mut Command) {
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }

    /// Runs a command to its end.
    async fn run(self, command: &mut Command, home: &Path) -> Result<()> {
        self.drop_to(command);
        let output = command
            .current_dir(home)
            .stdin(Stdio::null())
            .output()
            .await?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{:?} failed: {said}", command.as_std().get_program()).into())
    }
}

/// The first program of this name in `first` and `PATH`.
fn find(name: &str, first: &[PathBuf], package: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let dirs = first
        .iter()
        .cloned()
        .chain(env::split_paths(&path))
        .chain(usual);
    dirs.map(|dir| dir.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            format!("{name} is not installed: run tests/install, or install {package}").into()
        })
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}
