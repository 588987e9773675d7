//! The store: what its clones share, and how its own statements run.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use outbox_core::{
    error::{StoreError, StoreErrorKind},
    failpoint::Failpoint,
    store::{OpenTx, OutboxRecord, Pool, Store},
};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, ExecResult,
    QueryResult, Statement, Value,
};

use crate::{
    builder::SeaOrmBuilder,
    clock::Clock,
    connections::Connections,
    dialect::{self, Dialect},
    error::{self, failed, refused},
    guard, outbox,
    retry::retried,
    sentinel::Sentinel,
    tables::{Table, Tables},
};

/// Events in a database that SeaORM reaches: PostgreSQL, MySQL, MariaDB or SQLite.
///
/// Cheap to clone; clones share their connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_seaorm::SeaOrm;
///
/// let db = sea_orm::Database::connect("postgres://localhost/shop").await?;
/// let store = SeaOrm::new(db);
/// store.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SeaOrm {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) dialect: &'static dyn Dialect,
    pub(crate) tables: Tables,
    pub(crate) clock: Clock,
    pub(crate) connections: Connections,
    pub(crate) sentinel: Sentinel,
}

impl SeaOrm {
    /// A store with the default settings on the database of `db`.
    ///
    /// # Panics
    ///
    /// If `db` is not connected, or to a database whose feature of this crate (`postgres`, `mysql`,
    /// `sqlite`) is not enabled; [`builder`](Self::builder) returns that as an error.
    #[must_use]
    #[allow(
        clippy::panic,
        reason = "a mistake in the program's set-up, documented"
    )]
    pub fn new(db: DatabaseConnection) -> Self {
        match Self::builder(db).build() {
            Ok(store) => store,
            Err(error) => panic!("{error}"),
        }
    }

    /// A store with settings of its own.
    pub fn builder(db: DatabaseConnection) -> SeaOrmBuilder {
        SeaOrmBuilder::new(db)
    }

    pub(crate) fn dialect(&self) -> &'static dyn Dialect {
        self.inner.dialect
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    pub(crate) fn now(&self) -> String {
        self.inner.dialect.now(&self.inner.clock)
    }

    /// The expression for the moment that lies as far ahead as a parameter says, in microseconds.
    pub(crate) fn later(&self) -> String {
        self.dialect().later(&self.now(), "?")
    }

    pub(crate) fn outbox(
        &self,
        target: &str,
        operation: &'static str,
    ) -> Result<&Table, StoreError> {
        self.tables().outbox(target).ok_or_else(|| {
            let target: String = target.chars().take(80).collect();
            let message = format!("the store does not know the target {target:?}: add `.target({target:?})` to its builder");
            refused(StoreErrorKind::Schema, operation, message)
        })
    }

    /// A statement that all databases understand, with `?` for parameters.
    pub(crate) fn sql(&self, sql: &str, values: Vec<Value>) -> Statement {
        dialect::portable(self.dialect().backend(), sql, values)
    }

    /// Runs a statement by itself on the system's connections.
    pub(crate) async fn execute(
        &self,
        operation: &'static str,
        statement: Statement,
    ) -> Result<ExecResult, StoreError> {
        let _writer = self.inner.connections.writer().await;
        let db = self.inner.connections.system();
        let point = Failpoint::after(|| step(operation, &statement));
        let done = self
            .bounded(operation, retried(|| db.execute_raw(statement.clone())))
            .await?;
        point.passed();
        Ok(done)
    }

    /// Asks a question by itself on the system's connections.
    pub(crate) async fn query(
        &self,
        operation: &'static str,
        statement: Statement,
    ) -> Result<Vec<QueryResult>, StoreError> {
        let db = self.inner.connections.system();
        let point = Failpoint::after(|| step(operation, &statement));
        let rows = self
            .bounded(operation, retried(|| db.query_all_raw(statement.clone())))
            .await?;
        point.passed();
        Ok(rows)
    }

    /// Waits for an answer, but not for ever.
    pub(crate) async fn bounded<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, DbErr>>,
    ) -> Result<T, StoreError> {
        match self.inner.connections.bounded(Duration::ZERO, work).await {
            Some(result) => result.map_err(|error| failed(operation, &error)),
            None => Err(overdue(operation)),
        }
    }
}

/// What a statement is to a test that kills the process after it.
pub(crate) fn step(operation: &str, statement: &Statement) -> String {
    let verb = statement.sql.split_whitespace().next().unwrap_or_default();
    format!("{operation}: {verb}")
}

fn overdue(operation: &'static str) -> StoreError {
    refused(
        StoreErrorKind::Unavailable,
        operation,
        "no answer within the statement time-out",
    )
}

impl SeaOrm {
    /// Begins a transaction on the handlers' connections, whose guard is still to be set.
    pub(crate) async fn begin_handling(&self) -> Result<DatabaseTransaction, StoreError> {
        let connections = &self.inner.connections;
        let begun = guard::begin_unguarded(connections.consumers(), connections.most_consumers());
        let begun = connections
            .bounded(connections.acquire_timeout(), begun)
            .await;
        begun.unwrap_or_else(|| Err(overdue(guard::BEGIN)))
    }

    /// What guards a transaction on the handlers' connections.
    pub(crate) fn handling_guard(&self) -> &'static str {
        self.dialect().guard(!self.inner.connections.shared())
    }

    /// A COMMIT that is not answered in time goes on, and nobody knows how it ends.
    async fn committed(
        &self,
        commit: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<(), StoreError> {
        let done = self.inner.connections.bounded(Duration::ZERO, commit).await;
        done.unwrap_or_else(|| {
            let message = "no answer within the statement time-out";
            Err(refused(
                StoreErrorKind::CommitUnknown,
                guard::COMMIT,
                message,
            ))
        })
    }
}

impl Store for SeaOrm {
    type Tx = DatabaseTransaction;

    async fn insert(
        &self,
        tx: &DatabaseTransaction,
        target: &str,
        records: &[OutboxRecord],
    ) -> Result<(), StoreError> {
        outbox::insert(self, tx, target, records).await
    }

    async fn begin(&self, pool: Pool) -> Result<DatabaseTransaction, StoreError> {
        if pool != Pool::Consumer {
            let user = self.inner.connections.user().clone();
            return guard::begin(user, self.dialect().guard(false)).await;
        }
        let tx = self.begin_handling().await?;
        let guarded = guard::set(tx, self.handling_guard());
        let guarded = self
            .inner
            .connections
            .bounded(Duration::ZERO, guarded)
            .await;
        guarded.unwrap_or_else(|| Err(overdue(guard::BEGIN)))
    }

    async fn commit(&self, tx: DatabaseTransaction) -> Result<(), StoreError> {
        self.committed(guard::commit(tx)).await
    }

    async fn commit_with(
        &self,
        tx: DatabaseTransaction,
        target: &str,
        records: Vec<OutboxRecord>,
    ) -> Result<(), StoreError> {
        let (store, target) = (self.clone(), target.to_owned());
        self.committed(guard::commit_after(tx, |tx| async move {
            let written = outbox::insert(&store, &tx, &target, &records).await;
            (tx, written)
        }))
        .await
    }

    async fn rollback(&self, tx: DatabaseTransaction) -> Result<(), StoreError> {
        let done = self
            .inner
            .connections
            .bounded(Duration::ZERO, guard::rollback(tx))
            .await;
        done.unwrap_or_else(|| Err(overdue(guard::ROLLBACK)))
    }

    async fn ping(&self) -> Result<u64, StoreError> {
        const TIMEOUT: Duration = Duration::from_secs(5);
        const OPERATION: &str = "reach the database";
        let connections = &self.inner.connections;
        if connections.shared() || self.dialect().backend() == DbBackend::Sqlite {
            let answer = self.query(OPERATION, self.sql("SELECT 1", vec![]));
            return match tokio::time::timeout(TIMEOUT, answer).await {
                Ok(answer) => answer.map(|_| self.epoch()),
                Err(_) => Err(refused(
                    StoreErrorKind::Unavailable,
                    OPERATION,
                    "no answer within five seconds",
                )),
            };
        }
        let answer = self.inner.sentinel.ask(connections.user(), TIMEOUT).await;
        answer.map_err(|error| {
            connections.abandon();
            failed(OPERATION, &error)
        })
    }

    fn epoch(&self) -> u64 {
        self.inner.sentinel.epoch()
    }

    fn classify(&self, error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
        error::classify(error)
    }

    async fn check_schema(&self) -> Result<(), StoreError> {
        crate::migrate::check(self).await
    }
}

impl OpenTx<SeaOrm> for DatabaseTransaction {
    fn open_tx(&self) -> &Self {
        self
    }
}

impl fmt::Debug for SeaOrm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeaOrm")
            .field("backend", &self.dialect().backend())
            .field(
                "targets",
                &self
                    .tables()
                    .outboxes()
                    .map(|(target, _)| target)
                    .collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}
