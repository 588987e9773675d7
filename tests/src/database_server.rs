//! Where a database server listens, and how a test gets a database of its own there.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sea_orm::{ConnectOptions, ConnectionTrait, DatabaseConnection, DbErr};

use crate::unique;

/// The address of a database server, as a URL of its administrative database.
///
/// It cannot break the server, so it may be that of a shared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseServer {
    url: String,
}

impl DatabaseServer {
    /// The server behind a URL such as `postgres://postgres@127.0.0.1:5432/postgres`, whose user
    /// may create databases.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    /// The URL of the administrative database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the database `name` of this server.
    ///
    /// # Panics
    ///
    /// When the server's own URL names no database.
    #[must_use]
    pub fn database_url(&self, name: &str) -> String {
        let (server, database) = self.url.rsplit_once('/').expect("a URL with a database");
        match database.split_once('?') {
            Some((_, options)) => format!("{server}/{name}?{options}"),
            None => format!("{server}/{name}"),
        }
    }

    /// Creates an empty database and returns its URL.
    ///
    /// # Panics
    ///
    /// When the server does not create it.
    pub async fn create_database(&self) -> String {
        let name = unique("test");
        let admin = connect(&self.url, 1)
            .await
            .expect("connect to the database server");
        let create = format!("CREATE DATABASE {name}");
        admin
            .execute_unprepared(&create)
            .await
            .expect("create a database");
        admin.close().await.expect("close the connection");
        self.database_url(&name)
    }

    /// Whether the server answers a query.
    pub(crate) async fn answers(&self) -> Result<(), String> {
        let ping = async {
            let admin = connect(&self.url, 1).await?;
            admin.execute_unprepared("SELECT 1").await?;
            admin.close().await
        };
        ping.await.map_err(|error: DbErr| error.to_string())
    }
}

/// A pool of connections to a database, without the statement log.
///
/// The future is boxed: those of the driver nest so deep that the compiler gives up on the type of
/// a test around them.
///
/// While the server is down, a statement waits up to ten seconds for a connection and then fails.
#[must_use]
pub fn connect(
    url: &str,
    connections: u32,
) -> BoxFuture<'static, Result<DatabaseConnection, DbErr>> {
    let mut options = ConnectOptions::new(url);
    options
        .max_connections(connections)
        .connect_timeout(Duration::from_secs(10))
        .acquire_timeout(Duration::from_secs(10))
        .sqlx_logging(false);
    Box::pin(sea_orm::Database::connect(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_url_are_kept() {
        let server = DatabaseServer::new("mysql://root@127.0.0.1:1/mysql?ssl-mode=disabled");
        assert_eq!(
            server.database_url("a"),
            "mysql://root@127.0.0.1:1/a?ssl-mode=disabled"
        );
    }
}
