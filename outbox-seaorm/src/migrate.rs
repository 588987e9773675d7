//! Creating the tables, once, whoever asks and however many ask at a time.

use std::time::{Duration, Instant};

use outbox_core::error::{StoreError, StoreErrorKind};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, RuntimeErr};

use crate::{
    SeaOrm, SeaOrmBuilder, dialect,
    error::{failed, refused},
    guard, schema,
    tables::Tables,
};

const MIGRATE: &str = "migrate the tables";
const CHECK: &str = "check the tables";
/// How long a migration waits for another one, and for whoever else keeps the database busy.
const PATIENCE: Duration = Duration::from_secs(60);

impl SeaOrm {
    /// Creates the tables that are missing, or brings them up to date.
    ///
    /// What it does to tables of an older version only adds to them: processes of older builds go on
    /// working on them.
    ///
    /// Any number of processes may call it at a time: a lock of the database keeps them apart. It
    /// first looks whether there is anything to do, so a process that may not change the schema can
    /// call it too. On SQLite it switches the file to WAL mode.
    ///
    /// # Errors
    ///
    /// The database refused a statement, or others kept it busy for a minute.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        loop {
            match self.migrate_now().await {
                // SQLite does not wait for others when it changes the mode of a file.
                Err(error)
                    if error.kind() == StoreErrorKind::Busy && began.elapsed() < PATIENCE =>
                {
                    let pause = Duration::from_millis(fastrand::u64(5..=50));
                    tokio::time::sleep(pause).await;
                }
                done => return done,
            }
        }
    }

    async fn migrate_now(&self) -> Result<(), StoreError> {
        let (dialect, tables) = (self.dialect(), self.tables());
        let system = self.inner.connections.system();
        let pending = schema::pending(&system, dialect, tables).await;
        if pending.map_err(|error| failed(MIGRATE, &error))?.is_empty() {
            return Ok(());
        }
        if let Some(prepare) = dialect.prepare() {
            system
                .execute_unprepared(prepare)
                .await
                .map_err(|error| failed(MIGRATE, &error))?;
        }
        let tx = guard::begin_plain(system)
            .await
            .map_err(|error| failed(MIGRATE, &error))?;
        let migrated = async {
            dialect.lock(&tx, tables).await?;
            let done = schema::apply(&tx, dialect, tables).await;
            dialect.unlock(&tx, tables).await?;
            done
        };
        match migrated.await {
            Ok(()) => {
                guard::commit_plain(tx)
                    .await
                    .map_err(|error| failed(MIGRATE, &error))?;
                self.is_one_database(MIGRATE).await
            }
            Err(error) => {
                let _ = tx.rollback().await;
                Err(failed(MIGRATE, &error))
            }
        }
    }

    /// The statements that [`migrate`](Self::migrate) runs on an empty database, as a script.
    #[must_use]
    pub fn migration_sql(&self) -> String {
        schema::script(self.dialect(), self.tables())
    }

    /// With some spellings of a SQLite database in memory each connection has its own.
    async fn is_one_database(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.dialect().backend() != DbBackend::Sqlite || self.inner.connections.shared() {
            return Ok(());
        }
        let pending =
            schema::pending(self.inner.connections.user(), self.dialect(), self.tables()).await;
        if pending
            .map_err(|error| failed(operation, &error))?
            .is_empty()
        {
            return Ok(());
        }
        let message = "each connection has a database of its own: use `sqlite::memory:`, which all connections share";
        Err(refused(StoreErrorKind::Schema, operation, message))
    }
}

impl SeaOrmBuilder {
    /// Creates the tables with the names set so far on a connection or transaction of yours, without
    /// a lock: for a migration of your own that is to make these tables too. What is there already is
    /// left alone, so a later migration of yours that calls it once more brings the tables up to date
    /// with a newer release. The builder's own connection is not used.
    ///
    /// ```
    /// use outbox_seaorm::SeaOrm;
    /// use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
    ///
    /// /// What `MigrationTrait::up` calls with `manager.get_connection()`.
    /// async fn up(connection: &impl ConnectionTrait) -> Result<(), DbErr> {
    ///     SeaOrm::builder(DatabaseConnection::default()).prefix("shop_").migrate_with(connection).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The database refused a statement, or its feature of this crate is not enabled.
    pub async fn migrate_with(&self, connection: &impl ConnectionTrait) -> Result<(), DbErr> {
        let backend = connection.get_database_backend();
        let refuse = |message: String| DbErr::Exec(RuntimeErr::Internal(message));
        let dialect = dialect::of(backend)
            .ok_or_else(|| refuse(format!("the feature of {backend:?} is not enabled")))?;
        let tables =
            Tables::new(self.names(), backend).map_err(|error| refuse(error.to_string()))?;
        schema::apply(connection, dialect, &tables).await
    }
}

/// Checks version and server.
pub(crate) async fn check(store: &SeaOrm) -> Result<(), StoreError> {
    let (dialect, tables) = (store.dialect(), store.tables());
    let system = store.inner.connections.system();
    let pending = schema::pending(&system, dialect, tables)
        .await
        .map_err(|error| failed(CHECK, &error))?;
    if let Some(component) = pending.first() {
        let what = component.outbox.map_or_else(
            || "the tables are".to_owned(),
            |table| format!("the table {table} is"),
        );
        let message = format!(
            "{what} missing or older than this build: call `SeaOrm::migrate`, or run the script of `SeaOrm::migration_sql`"
        );
        return Err(refused(StoreErrorKind::Schema, CHECK, message));
    }
    store.is_one_database(CHECK).await?;
    match dialect
        .requirements(&system, tables)
        .await
        .map_err(|error| failed(CHECK, &error))?
    {
        Ok(()) => Ok(()),
        Err(message) => Err(refused(StoreErrorKind::Schema, CHECK, message)),
    }
}
