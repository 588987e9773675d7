//! Servers, tables and streams.

use std::time::Duration;

use async_nats::jetstream::Context;
use outbox_core::Bus;
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use outbox_tests::{
    Database, MariaDb, MariaDbConfig, NatsServer, Postgres, PostgresConfig, SqliteFile, connect,
};
use sea_orm::{ConnectionTrait, DatabaseConnection, Statement, TransactionTrait};

use crate::{
    Outcome,
    event::{Placed, Shape},
};

/// The stream.
pub(crate) const STREAM: &str = "BENCH";

/// A database whose commits reach the disk, a nats-server with its stream in files, and the framework.
pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) url: String,
    pub(crate) db: DatabaseConnection,
    pub(crate) store: SeaOrm,
    pub(crate) bus: Bus<SeaOrm>,
    pub(crate) broker: JetStream,
    pub(crate) nats: NatsServer,
    _server: Server,
}

/// Stopped when it is dropped.
enum Server {
    Postgres(#[expect(dead_code, reason = "kept until the end")] Postgres),
    MariaDb(#[expect(dead_code, reason = "kept until the end")] MariaDb),
    Sqlite(#[expect(dead_code, reason = "kept until the end")] SqliteFile),
}

impl World {
    pub(crate) async fn start(database: Database) -> Outcome<Self> {
        let (server, url) = match database {
            Database::Postgres => {
                let config = PostgresConfig::default()
                    .durable()
                    .setting("shared_buffers", "512MB");
                let server = Postgres::start_with(config).await;
                let url = server.create_database().await;
                (Server::Postgres(server), url)
            }
            Database::MariaDb => {
                let config = MariaDbConfig::default()
                    .durable()
                    .setting("innodb-buffer-pool-size", "512M");
                let server = MariaDb::start_with(config).await;
                let url = server.create_database().await;
                (Server::MariaDb(server), url)
            }
            Database::Sqlite => {
                let file = SqliteFile::new();
                let url = file.url();
                (Server::Sqlite(file), url)
            }
        };
        let db = connect(&url, 10).await?;
        let id = match database {
            Database::Postgres => "BIGSERIAL PRIMARY KEY",
            Database::MariaDb => "BIGINT AUTO_INCREMENT PRIMARY KEY",
            Database::Sqlite => "INTEGER PRIMARY KEY",
        };
        for table in [
            format!("orders (id {id}, note TEXT NOT NULL)"),
            "effects (number BIGINT NOT NULL)".to_owned(),
        ] {
            db.execute_unprepared(&format!("CREATE TABLE {table}"))
                .await?;
        }
        let store = SeaOrm::new(db.clone());
        store.migrate().await?;
        let nats = NatsServer::start().await;
        let broker = JetStream::builder()
            .stream(StreamSpec::new(STREAM, ["bench.>"]))
            .connect(nats.nats().url())
            .await?;
        Ok(Self {
            bus: Bus::new(store.clone()),
            database,
            url,
            db,
            store,
            broker,
            nats,
            _server: server,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.database {
            Database::Postgres => "PostgreSQL",
            Database::MariaDb => "MariaDB",
            Database::Sqlite => "SQLite",
        }
    }

    pub(crate) async fn jetstream(&self) -> Context {
        self.nats.nats().jetstream().await
    }

    /// Empties a table.
    pub(crate) async fn empty(&self, table: &str) -> Outcome {
        let sql = match self.database {
            Database::Sqlite => format!("DELETE FROM {table}"),
            _ => format!("TRUNCATE TABLE {table}"),
        };
        self.db.execute_unprepared(&sql).await?;
        Ok(())
    }

    /// An empty stream, and an outbox with so many rows in a settled database.
    pub(crate) async fn fill(&self, rows: usize, shape: Shape) -> Outcome {
        self.empty("outbox").await?;
        self.add(rows, shape).await?;
        self.settle_down().await?;
        self.purge().await
    }

    /// Adds rows to the outbox.
    pub(crate) async fn add(&self, rows: usize, shape: Shape) -> Outcome {
        let mut number = 0;
        while number < rows {
            let end = rows.min(number + 1000);
            let events: Vec<_> = (number..end)
                .map(|number| Placed::new(number as u64, shape))
                .collect();
            number = end;
            let tx = self.db.begin().await?;
            self.bus.publish_all(&tx, &events).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Lets the database do now what it would do meanwhile.
    pub(crate) async fn settle_down(&self) -> Outcome {
        let statements: &[&str] = match self.database {
            Database::Postgres => &["VACUUM ANALYZE outbox", "CHECKPOINT"],
            Database::MariaDb => &["ANALYZE TABLE outbox"],
            Database::Sqlite => &["PRAGMA wal_checkpoint(TRUNCATE)"],
        };
        for statement in statements {
            self.db.execute_unprepared(statement).await?;
        }
        Ok(())
    }

    /// Creates the stream if there is none, and empties it.
    pub(crate) async fn purge(&self) -> Outcome {
        use outbox_core::Broker;
        // The publisher makes what is missing.
        let publisher = self.broker.publisher().await?;
        drop(publisher);
        let jetstream = self.jetstream().await;
        outbox_tests::eventually("the stream", Duration::from_secs(10), async || {
            jetstream.get_stream(STREAM).await
        })
        .await
        .purge()
        .await?;
        Ok(())
    }

    /// How many messages the stream has.
    pub(crate) async fn stored(&self) -> Outcome<u64> {
        let stream = self.jetstream().await.get_stream(STREAM).await?;
        Ok(stream.cached_info().state.messages)
    }

    pub(crate) async fn exists(&self, sql: &str) -> Outcome<bool> {
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        Ok(self.db.query_one_raw(statement).await?.is_some())
    }

    pub(crate) async fn count(&self, table: &str) -> Outcome<i64> {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        let row = self.db.query_one_raw(statement).await?;
        Ok(row.ok_or("a count without a row")?.try_get_by_index(0)?)
    }
}
