//! Creating the tables, once, whoever asks and however many ask at a time.

use outbox_core::error::{StoreError, StoreErrorKind};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement};

use crate::{
    SeaOrm,
    dialect::{self, Dialect},
    error::{failed, refused},
    guard,
    rows::int,
    tables::{Names, Table, Tables},
};

/// The version of the tables that this build needs.
const VERSION: i32 = 1;

const MIGRATE: &str = "migrate the tables";
const CHECK: &str = "check the tables";

/// The component that all targets share.
const SHARED: &str = "shared";

impl SeaOrm {
    /// Creates the tables that are missing, or brings them up to date.
    ///
    /// Any number of processes may call it at a time: a lock of the database keeps them apart. It
    /// first looks whether there is anything to do, so a process that may not change the schema can
    /// call it too.
    ///
    /// # Errors
    ///
    /// The database refused a statement, or another migration held the lock for a minute (MySQL).
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let system = self.inner.connections.system();
        if self.pending(&system).await.map_err(|error| failed(MIGRATE, &error))?.is_empty() {
            return Ok(());
        }
        let (dialect, tables) = (self.dialect(), self.tables());
        if let Some(prepare) = dialect.prepare() {
            system.execute_unprepared(prepare).await.map_err(|error| failed(MIGRATE, &error))?;
        }
        let tx = guard::begin_plain(system).await.map_err(|error| failed(MIGRATE, &error))?;
        let migrated = async {
            dialect.lock(&tx, tables).await?;
            let done = self.migrate_with(&tx).await;
            dialect.unlock(&tx, tables).await?;
            done
        };
        match migrated.await {
            Ok(()) => {
                guard::commit_plain(tx).await.map_err(|error| failed(MIGRATE, &error))?;
                self.is_one_database(MIGRATE).await
            }
            Err(error) => {
                let _ = tx.rollback().await;
                Err(failed(MIGRATE, &error))
            }
        }
    }

    /// Does what [`migrate`](Self::migrate) does, on a connection or transaction of yours and
    /// without taking a lock: for a migration of your own that is to create these tables too.
    ///
    /// ```ignore
    /// #[async_trait::async_trait]
    /// impl MigrationTrait for Migration {
    ///     async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
    ///         let db = manager.get_connection();
    ///         SeaOrm::new(self.db.clone()).migrate_with(db).await
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The database refused a statement.
    pub async fn migrate_with(&self, connection: &impl ConnectionTrait) -> Result<(), DbErr> {
        for component in self.pending(connection).await? {
            for statement in component.statements(self.dialect(), self.tables()) {
                connection.execute_unprepared(&statement).await?;
            }
        }
        Ok(())
    }

    /// The statements that [`migrate`](Self::migrate) runs on an empty database, as a script.
    #[must_use]
    pub fn migration_sql(&self) -> String {
        script(self.dialect(), self.tables())
    }

    /// With some spellings of a SQLite database in memory each connection has its own.
    async fn is_one_database(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.dialect().backend() != DbBackend::Sqlite || self.inner.connections.shared() {
            return Ok(());
        }
        let pending = self.pending(self.inner.connections.user()).await.map_err(|error| failed(operation, &error))?;
        if pending.is_empty() {
            return Ok(());
        }
        let message = "each connection has a database of its own: use `sqlite::memory:`, which all connections share";
        Err(refused(StoreErrorKind::Schema, operation, message))
    }

    async fn pending(&self, connection: &impl ConnectionTrait) -> Result<Vec<Component<'_>>, DbErr> {
        let mut pending = components(self.tables());
        let migration = &self.tables().migration;
        let exists = connection.query_one_raw(self.dialect().exists(self.tables(), migration)).await?;
        if exists.and_then(|row| int(&row, 0)).unwrap_or_default() == 0 {
            return Ok(pending);
        }
        let sql = format!("SELECT component FROM {migration} WHERE version = {VERSION}");
        let statement = Statement::from_string(connection.get_database_backend(), sql);
        for row in connection.query_all_raw(statement).await? {
            let applied = crate::rows::text(&row, 0).unwrap_or_default();
            pending.retain(|component| component.name != applied);
        }
        Ok(pending)
    }
}

/// Tables that have a version together.
struct Component<'a> {
    name: String,
    outbox: Option<&'a Table>,
}

fn components(tables: &Tables) -> Vec<Component<'_>> {
    let shared = Component { name: SHARED.to_owned(), outbox: None };
    let outboxes = tables.outboxes().map(|(_, table)| Component { name: format!("outbox {}", table.name), outbox: Some(table) });
    std::iter::once(shared).chain(outboxes).collect()
}

impl Component<'_> {
    fn statements(&self, dialect: &dyn Dialect, tables: &Tables) -> Vec<String> {
        let mut statements = match self.outbox {
            Some(table) => dialect.create_outbox(table),
            None => dialect.create_shared(tables),
        };
        let (migration, now) = (&tables.migration, dialect.now(&crate::Clock::Database));
        let name = &self.name;
        let dual = if dialect.backend() == DbBackend::MySql { "FROM DUAL " } else { "" };
        statements.push(format!(
            "INSERT INTO {migration} (component, version, applied_at) SELECT '{name}', {VERSION}, {now} \
             {dual}WHERE NOT EXISTS (SELECT 1 FROM {migration} WHERE component = '{name}' AND version = {VERSION})"
        ));
        statements
    }
}

fn script(dialect: &dyn Dialect, tables: &Tables) -> String {
    let components = components(tables).into_iter().flat_map(|component| component.statements(dialect, tables));
    let statements = dialect.prepare().map(str::to_owned).into_iter().chain(components);
    statements.map(|statement| statement + ";\n").collect::<Vec<_>>().join("\n")
}

/// The statements that create the tables with their default names on `backend`, as a script;
/// `None` if the backend's feature is not enabled. The same scripts are in this crate's folder `sql`.
#[must_use]
pub fn migration_sql(backend: DbBackend) -> Option<String> {
    let dialect = dialect::of(backend)?;
    let tables = Tables::new(&Names::default(), backend).ok()?;
    Some(script(dialect, &tables))
}

/// Checks version and server.
pub(crate) async fn check(store: &SeaOrm) -> Result<(), StoreError> {
    let system = store.inner.connections.system();
    let pending = store.pending(&system).await.map_err(|error| failed(CHECK, &error))?;
    if let Some(component) = pending.first() {
        let message = match component.outbox {
            None => "the tables are missing or older than this build: call `SeaOrm::migrate`, or run the script of \
                     `SeaOrm::migration_sql`"
                .to_owned(),
            Some(table) => format!(
                "the table {table} is missing or older than this build: call `SeaOrm::migrate`, or run the script of \
                 `SeaOrm::migration_sql`"
            ),
        };
        return Err(refused(StoreErrorKind::Schema, CHECK, message));
    }
    store.is_one_database(CHECK).await?;
    let requirements = store.dialect().requirements(&system, store.tables()).await;
    match requirements.map_err(|error| failed(CHECK, &error))? {
        Ok(()) => Ok(()),
        Err(message) => Err(refused(StoreErrorKind::Schema, CHECK, message)),
    }
}

#[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod tests {
    use super::*;

    /// `OUTBOX_WRITE_SQL=1 cargo test -p outbox-seaorm --all-features` writes them anew.
    #[test]
    fn the_scripts_are_up_to_date() {
        for (backend, name) in [(DbBackend::Postgres, "postgres"), (DbBackend::MySql, "mysql"), (DbBackend::Sqlite, "sqlite")] {
            let path = format!("{}/sql/{name}.sql", env!("CARGO_MANIFEST_DIR"));
            let script = migration_sql(backend).unwrap();
            if std::env::var_os("OUTBOX_WRITE_SQL").is_some() {
                std::fs::write(&path, &script).unwrap();
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), script, "{path}");
        }
    }
}
