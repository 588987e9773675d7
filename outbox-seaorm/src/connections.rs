//! The store's own connections, derived from the user's.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sea_orm::{DatabaseConnection, DatabaseConnectionType};

/// How many connections of its own a store may open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) consumers: u32,
    pub(crate) system: u32,
    pub(crate) acquire_timeout: Option<Duration>,
    pub(crate) shared: bool,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { consumers: 10, system: 3, acquire_timeout: None, shared: false }
    }
}

/// The user's connections and two pools beside it. Those are opened when they are first needed,
/// since a pool needs a runtime.
pub(crate) struct Connections {
    user: DatabaseConnection,
    sizes: Sizes,
    consumers: Mutex<Option<DatabaseConnection>>,
    system: Mutex<Option<DatabaseConnection>>,
}

impl Connections {
    pub(crate) fn new(user: DatabaseConnection, mut sizes: Sizes) -> Self {
        sizes.shared |= is_private_memory(&user);
        Self { user, sizes, consumers: Mutex::default(), system: Mutex::default() }
    }

    /// The connections that the user gave.
    pub(crate) const fn user(&self) -> &DatabaseConnection {
        &self.user
    }

    /// Whether the user's connections serve for all.
    pub(crate) const fn shared(&self) -> bool {
        self.sizes.shared
    }

    /// The handlers' connections.
    pub(crate) fn consumers(&self) -> DatabaseConnection {
        self.derived(&self.consumers, self.sizes.consumers)
    }

    /// The connections of the relay, the ledger, probes and pruning.
    pub(crate) fn system(&self) -> DatabaseConnection {
        self.derived(&self.system, self.sizes.system)
    }

    fn derived(&self, slot: &Mutex<Option<DatabaseConnection>>, size: u32) -> DatabaseConnection {
        if self.sizes.shared {
            return self.user.clone();
        }
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| derive(&self.user, size, self.sizes.acquire_timeout)).clone()
    }
}

/// A pool of its own with the user's options and hooks: a hook may set the search path, a role or
/// the character set.
macro_rules! pool {
    ($user:expr, $size:expr, $timeout:expr, $options:expr) => {{
        let user = $user;
        let mut pool = user.options().clone().max_connections($size).min_connections(0);
        if let Some(timeout) = $timeout {
            pool = pool.acquire_timeout(timeout);
        }
        pool.connect_lazy_with(sqlx::ConnectOptions::disable_statement_logging($options))
    }};
}

fn derive(user: &DatabaseConnection, size: u32, timeout: Option<Duration>) -> DatabaseConnection {
    match &user.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let user = user.get_postgres_connection_pool();
            let options = sqlx::postgres::PgConnectOptions::clone(&user.connect_options());
            sea_orm::SqlxPostgresConnector::from_sqlx_postgres_pool(pool!(user, size, timeout, options))
        }
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            let user = user.get_mysql_connection_pool();
            let options = sqlx::mysql::MySqlConnectOptions::clone(&user.connect_options());
            sea_orm::SqlxMySqlConnector::from_sqlx_mysql_pool(pool!(user, size, timeout, options))
        }
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            let user = user.get_sqlite_connection_pool();
            let options = sqlx::sqlite::SqliteConnectOptions::clone(&user.connect_options());
            let options = options.busy_timeout(Duration::from_secs(30));
            sea_orm::SqlxSqliteConnector::from_sqlx_sqlite_pool(pool!(user, size, timeout, options))
        }
        _ => user.clone(),
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
