//! The three databases: what each needs said in its own way.
//!
//! Statements that all three understand stand beside their use in [`crate::outbox`] and
//! [`crate::inbox`], with `?` for parameters; the others are methods of [`Dialect`], so that each
//! database's are in one folder.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod conflict;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod values;

use std::time::Duration;

use outbox_core::store::{AttemptEnd, HeldChange, HoldMove, OutboxRecord, ReadQuery, Settled};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, Statement, Value};
use uuid::Uuid;

use crate::{
    clock::Clock,
    tables::{Table, Tables},
};

pub(crate) use values::{binds, padded, tuples};
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) use values::{gaps, pairs_json, published_json};

/// The columns of a message, in the order in which they are written and read, without `seq` and
/// the time.
pub(crate) const MESSAGE: &str =
    "message_id, event_type, event_version, subject, ordering_key, headers, payload";

/// A boxed future, as these methods must be callable through `dyn`.
pub(crate) type Task<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T, DbErr>> + Send + 'a>>;

/// What one database needs said in its own way.
pub(crate) trait Dialect: Sync {
    fn backend(&self) -> DbBackend;

    // ===== Expressions =====

    /// The present.
    fn now(&self, clock: &Clock) -> String;

    /// `time` and `micros` microseconds more.
    fn later(&self, time: &str, micros: &str) -> String;

    /// `time` as microseconds since 1970, as a 64-bit integer and never NULL.
    fn micros(&self, time: &str) -> String;

    /// The size of a row's payload, without reading the payload if that can be avoided.
    fn payload_size(&self) -> &'static str {
        "octet_length(payload)"
    }

    /// An ordering key as a parameter; keys are compared by bytes.
    fn key(&self, key: &str) -> Value {
        key.into()
    }

    // ===== The outbox =====

    /// How many pairs, moves or changes go into one statement.
    fn pairs(&self) -> usize {
        512
    }

    /// How many of `rows` the next INSERT takes.
    fn chunk(&self, rows: usize) -> usize;

    /// Inserts `rows` in their order.
    fn insert(&self, table: &Table, now: &str, rows: &[&OutboxRecord]) -> Statement;

    /// Inserts `rows`, which all have a delay, as scheduled.
    fn schedule(&self, table: &Table, target: &str, now: &str, rows: &[&OutboxRecord])
    -> Statement;

    /// Reads the outbox.
    fn read(&self, table: &Table, query: &ReadQuery) -> Statement;

    /// Deletes rows by number and id.
    fn settle(&self, table: &Table, rows: &[Settled]) -> Statement;

    // ===== The held table =====

    /// Copies rows to the held table, by number and id.
    fn hold(
        &self,
        tables: &Tables,
        table: &Table,
        target: &str,
        now: &str,
        moves: &[HoldMove],
    ) -> Statement;

    /// Deletes moved rows by number and id.
    fn remove(&self, table: &Table, moves: &[HoldMove]) -> Statement;

    /// Changes held rows by id and message id.
    fn change(&self, table: &Table, target: &str, now: &str, changes: &[HeldChange]) -> Statement;

    /// Deletes held rows by id and message id.
    fn settle_held(&self, table: &Table, target: &str, rows: &[(i64, Uuid)]) -> Statement;

    // ===== The archive =====

    /// Moves published rows into the archive. No row stands twice in `rows`.
    fn archive(
        &self,
        tables: &Tables,
        source: Source<'_>,
        target: &str,
        now: &str,
        rows: &[Published<'_>],
    ) -> Relocation;

    /// Moves archived rows into the outbox, by id and message id. No row stands twice in `rows`.
    fn republish(
        &self,
        archive: &Table,
        table: &Table,
        target: &str,
        rows: &[(i64, Uuid)],
    ) -> Relocation;

    // ===== The inbox =====

    /// Inserts the ids that are not there yet, and tells for each whether it is new. No id stands
    /// twice in `ids`, and they ascend.
    fn record<'a>(
        &'a self,
        tx: &'a DatabaseTransaction,
        table: &'a Table,
        consumer: &'a str,
        now: &'a str,
        ids: &'a [Uuid],
    ) -> Task<'a, Vec<bool>>;

    /// Sets the guard of a transaction and inserts the id if it is not there yet, in one round trip if
    /// that saves one. Tells whether it is new.
    fn record_guarded<'a>(
        &'a self,
        tx: &'a DatabaseTransaction,
        guard: &'static str,
        table: &'a Table,
        consumer: &'a str,
        now: &'a str,
        id: Uuid,
    ) -> Task<'a, bool>;

    /// Adds a start to the ledger.
    fn open_start(
        &self,
        table: &Table,
        consumer: &str,
        id: Uuid,
        now: &str,
        lone: bool,
    ) -> Statement;

    /// Adds an end to the ledger.
    fn end_start(
        &self,
        table: &Table,
        consumer: &str,
        id: Uuid,
        now: &str,
        end: &AttemptEnd,
    ) -> Statement;

    /// Finds what [`prune`](Self::prune) is to delete: message id and consumer. Only where a deletion
    /// that looks for its rows itself would wait for rows that handlers have just written.
    fn find_old(
        &self,
        _table: &Table,
        _column: &str,
        _now: &str,
        _age: Duration,
        _limit: u32,
    ) -> Option<Statement> {
        None
    }

    /// Deletes up to `limit` rows of `table` whose `column` lies `age` back; of those that were found, if
    /// they were to be found first.
    fn prune(
        &self,
        table: &Table,
        column: &str,
        now: &str,
        age: Duration,
        limit: u32,
        found: &[(Uuid, String)],
    ) -> Statement;

    // ===== The schema =====

    /// What has to be done once before, outside a transaction.
    fn prepare(&self) -> Option<&'static str> {
        None
    }

    /// The statements that create the tables that all targets share.
    fn create_shared(&self, tables: &Tables) -> Vec<String>;

    /// The statements that create the outbox of one target.
    fn create_outbox(&self, table: &Table) -> Vec<String>;

    /// The statements that create the archive.
    fn create_archive(&self, tables: &Tables) -> Vec<String>;

    /// Tells whether `table` exists: one row with a number above zero.
    fn exists(&self, tables: &Tables, table: &Table) -> Statement;

    /// Takes the lock that keeps migrations apart, on the transaction's connection.
    fn lock<'a>(&'a self, connection: &'a DatabaseTransaction, tables: &'a Tables) -> Task<'a, ()>;

    /// Gives the lock back, if that does not happen with the end of the transaction.
    fn unlock<'a>(
        &'a self,
        _connection: &'a DatabaseTransaction,
        _tables: &'a Tables,
    ) -> Task<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Looks for what the server lacks. The answer is what to do about it.
    fn requirements<'a>(
        &'a self,
        connection: &'a dyn Query,
        tables: &'a Tables,
    ) -> Task<'a, Result<(), String>>;

    // ===== Transactions =====

    /// What guards a transaction, right after it began.
    fn guard(&self, own: bool) -> &'static str {
        let _ = own;
        "SAVEPOINT outbox_guard"
    }
}

/// A published row: where it stands, and where the broker stored it.
pub(crate) struct Published<'a> {
    /// Its number in the outbox, or its id in the held table.
    pub(crate) number: i64,
    pub(crate) id: Uuid,
    pub(crate) stream: &'a str,
    pub(crate) stream_seq: u64,
}

impl Published<'_> {
    pub(crate) fn stream_seq(&self) -> i64 {
        i64::try_from(self.stream_seq).unwrap_or(i64::MAX)
    }
}

/// Where a published row comes from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Outbox(&'a Table),
    Held(&'a Table),
}

impl<'a> Source<'a> {
    pub(crate) const fn table(self) -> &'a Table {
        match self {
            Self::Outbox(table) | Self::Held(table) => table,
        }
    }

    /// The column that the row is found by, with its message id.
    pub(crate) const fn number(self) -> &'static str {
        match self {
            Self::Outbox(_) => "seq",
            Self::Held(_) => "id",
        }
    }

    /// Whether rows of several targets share the table.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::Held(_))
    }
}

/// How rows get from one table to another.
#[allow(dead_code, reason = "depends on the features")]
pub(crate) enum Relocation {
    /// One statement does both.
    Whole(Statement),
    /// Two statements of one transaction, which must find as many rows each.
    Parts { copy: Statement, delete: Statement },
}

/// A connection that answers queries, as a trait object.
pub(crate) trait Query: Sync {
    fn row<'a>(&'a self, statement: Statement) -> Task<'a, Option<sea_orm::QueryResult>>;
}

impl<C: ConnectionTrait> Query for C {
    fn row<'a>(&'a self, statement: Statement) -> Task<'a, Option<sea_orm::QueryResult>> {
        Box::pin(async move { self.query_one_raw(statement).await })
    }
}

/// The dialect of `backend`, if its feature is enabled.
pub(crate) fn of(backend: DbBackend) -> Option<&'static dyn Dialect> {
    match backend {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => Some(&postgres::Postgres),
        #[cfg(feature = "mysql")]
        DbBackend::MySql => Some(&mysql::MySql),
        #[cfg(feature = "sqlite")]
        DbBackend::Sqlite => Some(&sqlite::Sqlite),
        #[allow(unreachable_patterns, reason = "depends on the features")]
        _ => None,
    }
}

/// A statement that all databases understand, with `?` for parameters.
pub(crate) fn portable(backend: DbBackend, sql: &str, values: Vec<Value>) -> Statement {
    if backend != DbBackend::Postgres {
        return Statement::from_sql_and_values(backend, sql, values);
    }
    let mut numbered = String::with_capacity(sql.len() + 2 * values.len());
    let mut number = 0;
    for part in sql.split_inclusive('?') {
        match part.strip_suffix('?') {
            Some(text) => {
                number += 1;
                numbered.push_str(text);
                numbered.push('$');
                numbered.push_str(&number.to_string());
            }
            None => numbered.push_str(part),
        }
    }
    Statement::from_sql_and_values(backend, numbered, values)
}
