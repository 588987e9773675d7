//! A connection that does nothing but live.
//!
//! When a handler fails because its connection broke, a fresh connection may work again already: a
//! server that restarted, a failover, a cut network. A connection that was open before and was not
//! touched by the handler tells the difference. If it broke as well, the database was away; if it
//! lives, the handler broke its own.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseConnectionType, DbErr, Statement};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use sqlx::{ConnectOptions as _, pool::PoolOptions};

#[derive(Default)]
pub(crate) struct Sentinel {
    pool: Mutex<Option<DatabaseConnection>>,
    connects: Arc<AtomicU64>,
}

impl Sentinel {
    /// How often it had to connect: a number that has changed tells that the database was away.
    pub(crate) fn epoch(&self) -> u64 {
        self.connects.load(Ordering::Acquire)
    }

    /// Asks for a sign of life, over a new connection if the old one is dead.
    pub(crate) async fn ask(
        &self,
        user: &DatabaseConnection,
        timeout: Duration,
    ) -> Result<u64, DbErr> {
        let pool = {
            let mut slot = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
            match slot.as_ref() {
                Some(pool) => pool.clone(),
                None => slot.insert(single(user, timeout, &self.connects)).clone(),
            }
        };
        let question = Statement::from_string(pool.get_database_backend(), "SELECT 1");
        match tokio::time::timeout(timeout, pool.query_one_raw(question)).await {
            Ok(Ok(_)) => Ok(self.epoch()),
            Ok(Err(error)) => {
                self.forget();
                Err(error)
            }
            Err(_) => {
                self.forget();
                Err(DbErr::ConnectionAcquire(sea_orm::ConnAcquireErr::Timeout))
            }
        }
    }

    /// The next question gets a new pool, with the user's options of then.
    fn forget(&self) {
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn lonely<DB: sqlx::Database>(timeout: Duration, connects: &Arc<AtomicU64>) -> PoolOptions<DB> {
    let connects = Arc::clone(connects);
    PoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(true)
        .acquire_timeout(timeout)
        .after_connect(move |_, _| {
            connects.fetch_add(1, Ordering::AcqRel);
            Box::pin(std::future::ready(Ok(())))
        })
}

#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql")),
    allow(unused_variables, reason = "SQLite has no network to lose")
)]
fn single(
    user: &DatabaseConnection,
    timeout: Duration,
    connects: &Arc<AtomicU64>,
) -> DatabaseConnection {
    match &user.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let connect = (*user.get_postgres_connection_pool().connect_options())
                .clone()
                .disable_statement_logging();
            let pool = lonely::<sqlx::Postgres>(timeout, connects).connect_lazy_with(connect);
            sea_orm::SqlxPostgresConnector::from_sqlx_postgres_pool(pool)
        }
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            let connect = (*user.get_mysql_connection_pool().connect_options())
                .clone()
                .disable_statement_logging();
            let pool = lonely::<sqlx::MySql>(timeout, connects).connect_lazy_with(connect);
            sea_orm::SqlxMySqlConnector::from_sqlx_mysql_pool(pool)
        }
        // A file has no network to lose.
        _ => user.clone(),
    }
}
