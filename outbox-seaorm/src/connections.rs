//! The store's own connections, derived from the user's.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sea_orm::{DatabaseConnection, DatabaseConnectionType};
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, pool::PoolOptions};
use tokio::{sync::MutexGuard, time::Instant};

/// How long a statement waits for SQLite's only writer to end.
#[cfg(feature = "sqlite")]
const SQLITE_BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How many connections of its own a store may open, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) consumers: u32,
    pub(crate) system: u32,
    pub(crate) acquire_timeout: Option<Duration>,
    pub(crate) statement_timeout: Duration,
    pub(crate) shared: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            consumers: 10,
            system: 3,
            acquire_timeout: None,
            statement_timeout: Duration::from_secs(30),
            shared: false,
        }
    }
}

/// The user's connections and two pools beside it. Those are opened when they are first needed,
/// since a pool needs a runtime.
pub(crate) struct Connections {
    user: DatabaseConnection,
    limits: Limits,
    consumers: Mutex<Option<Derived>>,
    system: Mutex<Option<Derived>>,
    writer: Option<tokio::sync::Mutex<()>>,
    abandoned: Mutex<Option<Instant>>,
}

/// What finds out that a connection of a pool is dead before work is entrusted to it.
#[derive(Debug, Clone, Copy)]
enum Check {
    /// A round trip before each use, unless the user's pool does without.
    Ping,
    /// The BEGIN, which is repeated on another one.
    Begin,
}

/// A pool and the options of the user's pool that it was derived from.
struct Derived {
    pool: DatabaseConnection,
    from: Arc<dyn Any + Send + Sync>,
}

impl Connections {
    pub(crate) fn new(user: DatabaseConnection, mut limits: Limits) -> Self {
        limits.shared |= is_private_memory(&user);
        let writer = is_sqlite(&user).then(tokio::sync::Mutex::default);
        Self {
            user,
            limits,
            consumers: Mutex::default(),
            system: Mutex::default(),
            writer,
            abandoned: Mutex::default(),
        }
    }

    /// The connections that the user gave.
    pub(crate) const fn user(&self) -> &DatabaseConnection {
        &self.user
    }

    /// Whether the user's connections serve for all.
    pub(crate) const fn shared(&self) -> bool {
        self.limits.shared
    }

    /// The handlers' connections.
    pub(crate) fn consumers(&self) -> DatabaseConnection {
        self.derived(&self.consumers, self.limits.consumers, Check::Begin)
    }

    /// How many there are at most.
    pub(crate) const fn most_consumers(&self) -> u32 {
        self.limits.consumers
    }

    /// The connections of the relay, the ledger, probes and pruning.
    pub(crate) fn system(&self) -> DatabaseConnection {
        self.derived(&self.system, self.limits.system, Check::Ping)
    }

    /// The right to write on the system's connections. Only SQLite has just one: there, statements
    /// that wait for the writer must not take all connections, as the writer itself may be waiting
    /// for one to read.
    pub(crate) async fn writer(&self) -> Option<MutexGuard<'_, ()>> {
        match &self.writer {
            Some(writer) => Some(writer.lock().await),
            None => None,
        }
    }

    /// Waits for `work` as long as a statement may take, and `longer`. On SQLite for ever: it has no
    /// network to lose an answer in.
    ///
    /// `None` if the answer is overdue. The connections may be dead then without the operating
    /// system knowing, on Linux for a quarter of an hour, so what comes next gets new ones.
    pub(crate) async fn bounded<T>(
        &self,
        longer: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        if self.writer.is_some() {
            return Some(work.await);
        }
        let answer = tokio::time::timeout(self.limits.statement_timeout + longer, work)
            .await
            .ok();
        if answer.is_none() {
            self.abandon();
        }
        answer
    }

    /// How long the store waits for a free connection.
    pub(crate) fn acquire_timeout(&self) -> Duration {
        self.limits
            .acquire_timeout
            .unwrap_or(Duration::from_secs(30))
    }

    /// Makes new pools for what is to come; what still runs on the old ones keeps them. Not again
    /// soon: a server that is only slow must not be flooded with connections.
    pub(crate) fn abandon(&self) {
        let mut abandoned = self
            .abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.writer.is_some()
            || abandoned.is_some_and(|at| at.elapsed() < self.limits.statement_timeout)
        {
            return;
        }
        *abandoned = Some(Instant::now());
        for slot in [&self.consumers, &self.system] {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn derived(
        &self,
        slot: &Mutex<Option<Derived>>,
        size: u32,
        check: Check,
    ) -> DatabaseConnection {
        if self.limits.shared {
            return self.user.clone();
        }
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // The user's pool may have got new options meanwhile, such as a rotated password.
        let from = connect_options(&self.user);
        if let Some(derived) = slot
            .as_ref()
            .filter(|derived| Arc::ptr_eq(&derived.from, &from))
        {
            return derived.pool.clone();
        }
        let pool = derive(&self.user, size, self.limits.acquire_timeout, check);
        slot.insert(Derived { pool, from }).pool.clone()
    }
}

/// Options of a pool beside the user's, with the user's hooks: one may set the search path, a role
/// or the character set.
fn options<DB: sqlx::Database>(
    user: &sqlx::Pool<DB>,
    size: u32,
    timeout: Option<Duration>,
    check: Check,
) -> PoolOptions<DB> {
    let options = user
        .options()
        .clone()
        .max_connections(size)
        .min_connections(0);
    let options = match check {
        Check::Ping => options,
        Check::Begin => options.test_before_acquire(false),
    };
    match timeout {
        Some(timeout) => options.acquire_timeout(timeout),
        None => options,
    }
}

fn derive(
    user: &DatabaseConnection,
    size: u32,
    timeout: Option<Duration>,
    check: Check,
) -> DatabaseConnection {
    match &user.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let user = user.get_postgres_connection_pool();
            let connect =
                PgConnectOptions::clone(&user.connect_options()).disable_statement_logging();
            let pool = options(user, size, timeout, check).connect_lazy_with(connect);
            sea_orm::SqlxPostgresConnector::from_sqlx_postgres_pool(pool)
        }
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            let user = user.get_mysql_connection_pool();
            let connect =
                MySqlConnectOptions::clone(&user.connect_options()).disable_statement_logging();
            let pool = options(user, size, timeout, check).connect_lazy_with(connect);
            sea_orm::SqlxMySqlConnector::from_sqlx_mysql_pool(pool)
        }
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            let user = user.get_sqlite_connection_pool();
            let connect =
                SqliteConnectOptions::clone(&user.connect_options()).disable_statement_logging();
            let connect = connect.busy_timeout(SQLITE_BUSY_TIMEOUT);
            // A database in memory lives as long as its last connection.
            let options = options(user, size, timeout, check)
                .idle_timeout(None)
                .max_lifetime(None);
            sea_orm::SqlxSqliteConnector::from_sqlx_sqlite_pool(options.connect_lazy_with(connect))
        }
        _ => user.clone(),
    }
}

/// The options with which the user's pool makes its connections. Replacing them makes another `Arc`.
fn connect_options(user: &DatabaseConnection) -> Arc<dyn Any + Send + Sync> {
    match &user.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            user.get_postgres_connection_pool().connect_options()
        }
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            user.get_mysql_connection_pool().connect_options()
        }
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            user.get_sqlite_connection_pool().connect_options()
        }
        _ => Arc::new(()),
    }
}

const fn is_sqlite(user: &DatabaseConnection) -> bool {
    match &user.inner {
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => true,
        _ => false,
    }
}

/// Whether each connection would have an empty database of its own.
fn is_private_memory(user: &DatabaseConnection) -> bool {
    match &user.inner {
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            let options = user.get_sqlite_connection_pool().connect_options();
            options.get_filename().as_os_str() == ":memory:"
        }
        _ => false,
    }
}

/// Whether each connection of the pool has an empty database of its own.
pub(crate) fn is_scattered(user: &DatabaseConnection) -> bool {
    match &user.inner {
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            let connections = user
                .get_sqlite_connection_pool()
                .options()
                .get_max_connections();
            is_private_memory(user) && connections > 1
        }
        _ => false,
    }
}
