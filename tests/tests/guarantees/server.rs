//! A database server that a test may break.

use outbox_tests::{Database, MariaDb, Postgres, TestDatabase};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend};

/// A database server to break.
pub(crate) enum Server {
    Postgres(Postgres),
    MariaDb(MariaDb),
}

impl Server {
    pub(crate) async fn start(kind: Database) -> (Self, TestDatabase) {
        let (server, url) = match kind {
            Database::Postgres => {
                let server = Postgres::start().await;
                let url = server.create_database().await;
                (Self::Postgres(server), url)
            }
            _ => {
                let server = MariaDb::start().await;
                let url = server.create_database().await;
                (Self::MariaDb(server), url)
            }
        };
        (server, TestDatabase::on(kind, url).await)
    }

    pub(crate) fn kill(&self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::MariaDb(server) => server.kill(),
        }
    }

    pub(crate) async fn restart(&self) {
        match self {
            Self::Postgres(server) => server.restart().await,
            Self::MariaDb(server) => server.restart().await,
        }
    }

    pub(crate) fn freeze(&self) {
        match self {
            Self::Postgres(server) => server.freeze(),
            Self::MariaDb(server) => server.freeze(),
        }
    }

    pub(crate) fn thaw(&self) {
        match self {
            Self::Postgres(server) => server.thaw(),
            Self::MariaDb(server) => server.thaw(),
        }
    }
}

/// Ends a session of the database; one that has ended by itself meanwhile is as good.
pub(crate) async fn end_session(db: &DatabaseConnection, id: i64) {
    const UNKNOWN_THREAD: &str = "1094";
    let sql = match db.get_database_backend() {
        DbBackend::Postgres => format!("SELECT pg_terminate_backend({id})"),
        _ => format!("KILL {id}"),
    };
    if let Err(error) = db.execute_unprepared(&sql).await {
        assert!(error.to_string().contains(UNKNOWN_THREAD), "{sql}: {error}");
    }
}

/// A test on a server of its own for each kind of database that has one.
macro_rules! on_servers {
    ($($(#[$doc:meta])* async fn $name:ident($kind:ident: Database) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::*;

            async fn body($kind: Database) $body

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                body(Database::Postgres).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn mariadb() {
                body(Database::MariaDb).await;
            }
        }
    )*};
}

pub(crate) use on_servers;
