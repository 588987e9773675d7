//! One test body against every kind of database.

use sea_orm::{ConnectionTrait, DatabaseConnection};

use crate::database_server::connect;
use crate::{SqliteFile, shared_mariadb, shared_postgres};

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// MariaDB, which speaks the MySQL protocol.
    MariaDb,
    /// SQLite in a file, in WAL mode.
    Sqlite,
}

impl Database {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::MariaDb, Self::Sqlite];

    /// An empty database on the shared server, or in a file of its own.
    ///
    /// # Panics
    ///
    /// When the database cannot be created.
    pub async fn fresh(self) -> TestDatabase {
        let (url, file) = match self {
            Self::Postgres => (shared_postgres().await.create_database().await, None),
            Self::MariaDb => (shared_mariadb().await.create_database().await, None),
            Self::Sqlite => {
                let file = SqliteFile::new();
                (file.url(), Some(file))
            }
        };
        let connection = connect(&url, 10)
            .await
            .expect("connect to the fresh database");
        if self == Self::Sqlite {
            // The file remembers it.
            let wal = connection
                .execute_unprepared("PRAGMA journal_mode = WAL")
                .await;
            wal.expect("switch to WAL mode");
        }
        TestDatabase {
            url,
            connection,
            kind: self,
            _file: file,
        }
    }
}

impl TestDatabase {
    /// A database on a server of the test's own, which it may break.
    ///
    /// # Panics
    ///
    /// When the database cannot be reached.
    pub async fn on(kind: Database, url: String) -> Self {
        let connection = connect(&url, 10).await.expect("connect to the database");
        Self {
            url,
            connection,
            kind,
            _file: None,
        }
    }
}

/// A database that belongs to one test.
#[derive(Debug)]
pub struct TestDatabase {
    /// Its URL, for further connections.
    pub url: String,
    /// A pool of up to ten connections.
    pub connection: DatabaseConnection,
    /// What it is.
    pub kind: Database,
    _file: Option<SqliteFile>,
}

impl TestDatabase {
    /// Another pool of up to `connections` connections to the same database.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn connect(&self, connections: u32) -> DatabaseConnection {
        connect(&self.url, connections)
            .await
            .expect("connect to the test's database")
    }
}

/// Turns each function into three tests, one for each kind of database.
///
/// The tests of `async fn name(db: TestDatabase)` are `name::postgres`, `name::mariadb` and
/// `name::sqlite`. A function may return a `Result`, as any test may.
///
/// ```
/// use outbox_tests::{TestDatabase, on_every_database};
/// use sea_orm::{ConnectionTrait, DbErr};
///
/// on_every_database! {
///     /// The database answers.
///     async fn the_database_answers(db: TestDatabase) -> Result<(), DbErr> {
///         db.connection.execute_unprepared("SELECT 1").await?;
///         Ok(())
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! on_every_database {
    ($(
        $(#[$meta:meta])*
        async fn $name:ident($db:ident: $type:ty) $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn body($db: $type) $(-> $result)? $body

            #[::tokio::test(flavor = "multi_thread")]
            async fn postgres() $(-> $result)? {
                body($crate::Database::Postgres.fresh().await).await
            }

            #[::tokio::test(flavor = "multi_thread")]
            async fn mariadb() $(-> $result)? {
                body($crate::Database::MariaDb.fresh().await).await
            }

            #[::tokio::test(flavor = "multi_thread")]
            async fn sqlite() $(-> $result)? {
                body($crate::Database::Sqlite.fresh().await).await
            }
        }
    )+};
}
