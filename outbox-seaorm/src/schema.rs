//! What the tables are made of, and what of it is there.

use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement};

use crate::{
    clock::Clock,
    dialect::{self, Dialect},
    rows,
    tables::{Names, Table, Tables},
};

/// A version of tables that have their versions together: those that all targets share, or one
/// target's outbox. A build needs all versions up to its newest one. Each only adds to what there is,
/// so that processes of older builds go on working.
pub(crate) struct Component<'a> {
    name: String,
    version: i32,
    pub(crate) outbox: Option<&'a Table>,
}

impl<'a> Component<'a> {
    fn all(tables: &'a Tables) -> Vec<Self> {
        let shared = |version| Self {
            name: "shared".to_owned(),
            version,
            outbox: None,
        };
        let outboxes = tables.outboxes().map(|(_, table)| Self {
            name: format!("outbox {}", table.name),
            version: 1,
            outbox: Some(table),
        });
        std::iter::once(shared(1))
            .chain(outboxes)
            .chain([shared(2)])
            .collect()
    }

    fn statements(&self, dialect: &dyn Dialect, tables: &Tables) -> Vec<String> {
        let mut statements = match (self.outbox, self.version) {
            (Some(table), _) => dialect.create_outbox(table),
            (None, 1) => dialect.create_shared(tables),
            (None, _) => dialect.create_archive(tables),
        };
        let (migration, now) = (&tables.migration, dialect.now(&Clock::Database));
        let Self { name, version, .. } = self;
        let dual = if dialect.backend() == DbBackend::MySql {
            "FROM DUAL "
        } else {
            ""
        };
        statements.push(format!(
            "INSERT INTO {migration} (component, version, applied_at) SELECT '{name}', {version}, {now} \
             {dual}WHERE NOT EXISTS (SELECT 1 FROM {migration} WHERE component = '{name}' AND version = {version})"
        ));
        statements
    }
}

/// The components that are missing or too old.
pub(crate) async fn pending<'a>(
    connection: &impl ConnectionTrait,
    dialect: &dyn Dialect,
    tables: &'a Tables,
) -> Result<Vec<Component<'a>>, DbErr> {
    let mut pending = Component::all(tables);
    let migration = &tables.migration;
    let exists = connection
        .query_one_raw(dialect.exists(tables, migration))
        .await?;
    if exists
        .and_then(|row| rows::int(&row, 0))
        .unwrap_or_default()
        == 0
    {
        return Ok(pending);
    }
    let sql = format!("SELECT component, version FROM {migration}");
    for row in connection
        .query_all_raw(Statement::from_string(dialect.backend(), sql))
        .await?
    {
        let applied = (rows::text(&row, 0), rows::int(&row, 1));
        pending.retain(|component| {
            (
                Some(component.name.as_str()),
                Some(component.version.into()),
            ) != (applied.0.as_deref(), applied.1)
        });
    }
    Ok(pending)
}

/// Makes what is pending. Nobody else may do so at the same time.
pub(crate) async fn apply(
    connection: &impl ConnectionTrait,
    dialect: &dyn Dialect,
    tables: &Tables,
) -> Result<(), DbErr> {
    for component in pending(connection, dialect, tables).await? {
        for statement in component.statements(dialect, tables) {
            connection.execute_unprepared(&statement).await?;
        }
    }
    Ok(())
}

/// All statements for an empty database.
pub(crate) fn script(dialect: &dyn Dialect, tables: &Tables) -> String {
    let components = Component::all(tables)
        .into_iter()
        .flat_map(|component| component.statements(dialect, tables));
    let statements = dialect
        .prepare()
        .map(str::to_owned)
        .into_iter()
        .chain(components);
    statements
        .map(|statement| statement + ";\n")
        .collect::<Vec<_>>()
        .join("\n")
}

/// The statements that create the tables with their default names on `backend`, as a script;
/// `None` if the backend's feature is not enabled. The same scripts are in this crate's folder `sql`.
#[must_use]
pub fn migration_sql(backend: DbBackend) -> Option<String> {
    let dialect = dialect::of(backend)?;
    let tables = Tables::new(&Names::default(), backend).ok()?;
    Some(script(dialect, &tables))
}

#[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod tests {
    use super::*;

    /// `OUTBOX_WRITE_SQL=1 cargo test -p outbox-seaorm --all-features` writes them anew.
    #[test]
    fn the_scripts_are_up_to_date() {
        for (backend, name) in [
            (DbBackend::Postgres, "postgres"),
            (DbBackend::MySql, "mysql"),
            (DbBackend::Sqlite, "sqlite"),
        ] {
            let path = format!("{}/sql/{name}.sql", env!("CARGO_MANIFEST_DIR"));
            let script = migration_sql(backend).unwrap();
            if std::env::var_os("OUTBOX_WRITE_SQL").is_some() {
                std::fs::write(&path, &script).unwrap();
            }
            assert_eq!(
                std::fs::read_to_string(&path).unwrap_or_default(),
                script,
                "{path}"
            );
        }
    }
}
