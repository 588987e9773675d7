//! Settings of a store.

use std::{fmt, sync::Arc, time::Duration};

use outbox_core::error::{StoreError, StoreErrorKind};
use sea_orm::{DatabaseConnection, DatabaseConnectionType, DbBackend};

use crate::{
    clock::Clock,
    connections::{Connections, Limits, is_scattered},
    dialect,
    error::refused,
    sentinel::Sentinel,
    store::{Inner, SeaOrm},
    tables::{Names, Tables},
};

const BUILD: &str = "set up the store";

/// Settings of a [`SeaOrm`] store.
///
/// ```no_run
/// # async fn example(db: sea_orm::DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_seaorm::SeaOrm;
///
/// let store = SeaOrm::builder(db)
///     .schema("messaging")
///     .prefix("shop_")
///     .target("analytics")
///     .consumer_connections(20)
///     .build()?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct SeaOrmBuilder {
    db: DatabaseConnection,
    names: Names,
    clock: Clock,
    limits: Limits,
}

impl SeaOrmBuilder {
    pub(crate) fn new(db: DatabaseConnection) -> Self {
        Self {
            db,
            names: Names::default(),
            clock: Clock::Database,
            limits: Limits::default(),
        }
    }

    /// The schema (on MySQL: the database) of the tables. Without it they are where the
    /// connection looks first. SQLite has no schemas.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.names.schema = Some(schema.into());
        self
    }

    /// What stands before the name of each table that has no name of its own: `"shop_"` makes
    /// `shop_outbox`, `shop_inbox` and so on.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.names.prefix = prefix.into();
        self
    }

    /// The name of the default target's outbox; those of other targets are this and `_<target>`.
    pub fn outbox_table(mut self, name: impl Into<String>) -> Self {
        self.names.outbox = Some(name.into());
        self
    }

    /// The name of the table of held events, `outbox_held` by default.
    pub fn held_table(mut self, name: impl Into<String>) -> Self {
        self.names.held = Some(name.into());
        self
    }

    /// The name of the table of leases, `outbox_lease` by default.
    pub fn lease_table(mut self, name: impl Into<String>) -> Self {
        self.names.lease = Some(name.into());
        self
    }

    /// The name of the inbox, `inbox` by default.
    pub fn inbox_table(mut self, name: impl Into<String>) -> Self {
        self.names.inbox = Some(name.into());
        self
    }

    /// The name of the table of attempts, `inbox_attempt` by default.
    pub fn attempt_table(mut self, name: impl Into<String>) -> Self {
        self.names.attempt = Some(name.into());
        self
    }

    /// The name of the archive of published events, `outbox_archive` by default.
    pub fn archive_table(mut self, name: impl Into<String>) -> Self {
        self.names.archive = Some(name.into());
        self
    }

    /// The name of the table of applied migrations, `outbox_migration` by default.
    pub fn migration_table(mut self, name: impl Into<String>) -> Self {
        self.names.migration = Some(name.into());
        self
    }

    /// Adds a target with an outbox of its own, beside the default one.
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.names.targets.push(target.into());
        self
    }

    /// Where times come from: the database, unless a test plugs in another clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How many connections the handlers may use at once: 10 by default. Each running handler
    /// needs one, so give as many as all consumers of this process run at once, and a few.
    pub fn consumer_connections(mut self, connections: u32) -> Self {
        self.limits.consumers = connections.max(1);
        self
    }

    /// How many connections the relay, the ledger, probes and pruning may use: 3 by default.
    pub fn system_connections(mut self, connections: u32) -> Self {
        self.limits.system = connections.max(1);
        self
    }

    /// How long to wait for a free connection; by default as long as the user's pool does.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.limits.acquire_timeout = Some(timeout);
        self
    }

    /// How long a statement of the framework's own may take: 30 seconds by default. After that its
    /// connection counts as dead, and new ones are made. A COMMIT that is not answered in time is
    /// reported as [`CommitUnknown`](StoreErrorKind::CommitUnknown). SQLite has no such limit.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.limits.statement_timeout = timeout;
        self
    }

    /// Uses the given connections for all, instead of opening some of its own. Handlers that hang
    /// can then starve the relay, and on MySQL what a handler does after a deadlock whose error it
    /// swallowed is committed statement by statement.
    pub fn share_connections(mut self) -> Self {
        self.limits.shared = true;
        self
    }

    pub(crate) const fn names(&self) -> &Names {
        &self.names
    }

    /// Builds the store. Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// A name is not allowed; the connection is none; or its database's feature is not enabled.
    pub fn build(self) -> Result<SeaOrm, StoreError> {
        let dialect = backend(&self.db).and_then(dialect::of).ok_or_else(|| {
            let message = "the connection is to no database whose feature (`postgres`, `mysql`, `sqlite`) is enabled";
            refused(StoreErrorKind::Other, BUILD, message)
        })?;
        let tables = Tables::new(&self.names, dialect.backend())
            .map_err(|error| StoreError::new(StoreErrorKind::Schema, BUILD, error))?;
        if is_scattered(&self.db) {
            let message = "each connection of the pool would have an empty database of its own: use `sqlite::memory:`, \
                           which all connections share, or a pool of one connection";
            return Err(refused(StoreErrorKind::Schema, BUILD, message));
        }
        let connections = Connections::new(self.db, self.limits);
        Ok(SeaOrm {
            inner: Arc::new(Inner {
                dialect,
                tables,
                clock: self.clock,
                connections,
                sentinel: Sentinel::default(),
            }),
        })
    }
}

/// The connection's own question panics if there is no connection.
fn backend(db: &DatabaseConnection) -> Option<DbBackend> {
    match &db.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => Some(DbBackend::Postgres),
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => Some(DbBackend::MySql),
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => Some(DbBackend::Sqlite),
        _ => None,
    }
}

impl fmt::Debug for SeaOrmBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeaOrmBuilder")
            .field("names", &self.names)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
