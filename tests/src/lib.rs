//! The test harness: real servers with throw-away data, faults, and child processes.
//!
//! | Need | Use |
//! |---|---|
//! | a database for one test | [`Database::fresh`], or [`on_every_database!`] for all three kinds |
//! | a database server to break | [`Postgres::start`], [`MariaDb::start`] |
//! | a pooler in front of one | [`PgBouncer::start`] |
//! | a NATS server with JetStream | [`shared_nats`], or [`NatsServer::start`] to break it |
//! | a cluster of them | [`nats_cluster`] |
//! | a whole shop under random faults | [`history`] |
//! | a broken network | [`Proxy::start`] |
//! | what is logged | [`Log::of_this_thread`] |
//! | a process to kill | [`Child::spawn`] |
//! | something that becomes true | [`eventually`] |
//!
//! Shared servers are started once per test process, or once per test run when the
//! `outbox-test-servers` binary runs it: it passes their addresses in
//! [`OUTBOX_TEST_POSTGRES_URL`](POSTGRES_URL), [`OUTBOX_TEST_MARIADB_URL`](MARIADB_URL) and
//! [`OUTBOX_TEST_NATS_URL`](NATS_URL).
//!
//! To run one test again and again, start the servers once: `outbox-test-servers bash`, and in that
//! shell `cargo test -p outbox-tests --test harness`.
//!
//! Nothing outlives the test process: every server and child works below one directory, and a
//! guard process kills whatever works there and removes it, even after a SIGKILL of the tests.
//! The directory is in memory where there is room, or where
//! [`OUTBOX_TEST_DATA_DIR`](DATA_DIR) says.

pub mod conformance;
pub mod history;

mod backend;
mod child;
mod database_server;
mod eventually;
mod log;
mod mariadb;
mod nats;
mod nats_cluster;
mod nats_config;
mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod proxy;
mod sqlite;
mod startup;
mod stream;
mod template;
mod tree;
mod user;
mod workdir;

pub use self::backend::{Database, TestDatabase};
pub use self::child::Child;
pub use self::database_server::{DatabaseServer, connect};
pub use self::eventually::{Probe, eventually};
pub use self::log::Log;
pub use self::mariadb::{MARIADB_URL, MariaDb, MariaDbConfig, shared_mariadb};
pub use self::nats::{NATS_URL, Nats, NatsServer, shared_nats, unique};
pub use self::nats_cluster::nats_cluster;
pub use self::nats_config::NatsConfig;
pub use self::pgbouncer::PgBouncer;
pub use self::ports::free_port;
pub use self::postgres::{POSTGRES_URL, Postgres, PostgresConfig, shared_postgres};
pub use self::process::{Recipe, ServerProcess};
pub use self::proxy::{Direction, Proxy};
pub use self::sqlite::SqliteFile;
pub use self::stream::{StoredMessage, count_messages, create_stream, read_stream};
pub use self::template::{TEMPLATES, templates};
pub use self::workdir::{DATA_DIR, WorkDir};
