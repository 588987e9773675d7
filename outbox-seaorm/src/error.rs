//! What the database said, without what it said about data; and what kind of error it is.

use std::{error::Error, fmt};

use outbox_core::error::{StoreError, StoreErrorKind};
use sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};

/// What the database or its driver reported, as the source of a
/// [`StoreError`](outbox_core::error::StoreError).
///
/// Databases quote values in their messages. So only the message of errors that concern no data is
/// kept, and never the detail or the statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseError {
    code: Option<String>,
    message: String,
    duplicate: bool,
}

impl DatabaseError {
    pub(crate) fn text(message: impl Into<String>) -> Self {
        Self {
            code: None,
            message: message.into(),
            duplicate: false,
        }
    }

    /// Whether a unique key refused the row.
    pub(crate) const fn is_duplicate(&self) -> bool {
        self.duplicate
    }

    /// The database's own code: PostgreSQL's SQLSTATE, MySQL's number, SQLite's extended code.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{} (code {code})", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Error for DatabaseError {}

impl From<&DbErr> for DatabaseError {
    fn from(error: &DbErr) -> Self {
        match error {
            DbErr::Conn(RuntimeErr::SqlxError(error))
            | DbErr::Exec(RuntimeErr::SqlxError(error))
            | DbErr::Query(RuntimeErr::SqlxError(error)) => Self::from(error.as_ref()),
            DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => {
                Self::text("no connection of the pool became free in time")
            }
            DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed) => {
                Self::text("the pool is closed")
            }
            DbErr::Conn(_) => Self::text("not connected"),
            // Texts of this crate, and of SeaORM about itself.
            DbErr::Exec(RuntimeErr::Internal(message)) => Self::text(message.as_str()),
            DbErr::Type(_) | DbErr::TryIntoErr { .. } => {
                Self::text("a column had another type than expected")
            }
            _ => Self::text("an error of the database library"),
        }
    }
}

impl From<&sqlx::Error> for DatabaseError {
    fn from(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => {
                let code = Code::of(error.as_ref());
                let message = if code.may_quote_data() {
                    "the data was refused".to_owned()
                } else {
                    error.message().chars().take(300).collect()
                };
                Self {
                    code: code.text(),
                    message,
                    duplicate: error.is_unique_violation(),
                }
            }
            sqlx::Error::Io(error) => Self::text(format!("connection: {error}")),
            sqlx::Error::Tls(_) => Self::text("TLS with the database failed"),
            sqlx::Error::Protocol(_) => {
                Self::text("the connection is out of step with its protocol")
            }
            sqlx::Error::PoolTimedOut => {
                Self::text("no connection of the pool became free in time")
            }
            sqlx::Error::PoolClosed => Self::text("the pool is closed"),
            sqlx::Error::WorkerCrashed => Self::text("the connection's thread ended"),
            sqlx::Error::BeginFailed => Self::text("BEGIN did not begin a transaction"),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                Self::text("a column had another type than expected")
            }
            _ => Self::text("an error of the database driver"),
        }
    }
}

/// Makes the store's error of `error`.
pub(crate) fn failed(operation: &'static str, error: &DbErr) -> StoreError {
    let kind = kind(error).unwrap_or(StoreErrorKind::Other);
    let mut cause = DatabaseError::from(error);
    if kind == StoreErrorKind::Schema {
        cause
            .message
            .push_str("; `SeaOrm::migrate` makes the tables");
    }
    StoreError::new(kind, operation, cause)
}

/// An error without a database error behind it.
pub(crate) fn refused(
    kind: StoreErrorKind,
    operation: &'static str,
    message: impl Into<String>,
) -> StoreError {
    StoreError::new(kind, operation, DatabaseError::text(message))
}

/// What the database reported behind `error`.
pub(crate) fn cause(error: &StoreError) -> Option<&DatabaseError> {
    error.source().and_then(|cause| cause.downcast_ref())
}

/// The kind of the first database error among `error` and its sources.
///
/// This is asked about the errors of handlers, when the database is known to answer. A pool that gives no
/// connection in time is busy then.
pub(crate) fn classify(error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return Some(error.kind());
        }
        if is_exhausted(error) {
            return Some(StoreErrorKind::Busy);
        }
        let found = error
            .downcast_ref::<DbErr>()
            .map(kind)
            .or_else(|| error.downcast_ref::<RuntimeErr>().map(runtime_kind))
            .or_else(|| {
                error
                    .downcast_ref::<sqlx::Error>()
                    .map(|error| Some(sqlx_kind(error)))
            });
        if let Some(kind) = found {
            return kind;
        }
        next = error.source();
    }
    None
}

/// Whether a pool had no free connection in time.
fn is_exhausted(error: &(dyn Error + 'static)) -> bool {
    matches!(
        error.downcast_ref(),
        Some(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout))
    ) || matches!(error.downcast_ref(), Some(sqlx::Error::PoolTimedOut))
}

/// The kind of an error of SeaORM; `None` if it does not come from the database.
pub(crate) fn kind(error: &DbErr) -> Option<StoreErrorKind> {
    match error {
        DbErr::ConnectionAcquire(_) | DbErr::Conn(RuntimeErr::Internal(_)) => {
            Some(StoreErrorKind::Unavailable)
        }
        DbErr::Conn(error) | DbErr::Exec(error) | DbErr::Query(error) => runtime_kind(error),
        _ => None,
    }
}

fn runtime_kind(error: &RuntimeErr) -> Option<StoreErrorKind> {
    match error {
        RuntimeErr::SqlxError(error) => Some(sqlx_kind(error)),
        RuntimeErr::Internal(_) => Some(StoreErrorKind::Other),
    }
}

fn sqlx_kind(error: &sqlx::Error) -> StoreErrorKind {
    match error {
        sqlx::Error::Database(error) => Code::of(error.as_ref()).kind(),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

/// Whether a unique key refused the row. By code: messages come in the server's language.
pub(crate) fn is_duplicate(error: &DbErr) -> bool {
    database_error(error).is_some_and(|error| error.is_unique_violation())
}

/// Whether the server answered, so that the statement certainly failed.
pub(crate) fn was_answered(error: &DbErr) -> bool {
    database_error(error).is_some()
}

/// The database's own code of the error.
pub(crate) fn code(error: &DbErr) -> Option<Code> {
    database_error(error).map(Code::of)
}

fn database_error(error: &DbErr) -> Option<&dyn sqlx::error::DatabaseError> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => error.as_database_error(),
        _ => None,
    }
}

pub(crate) use crate::code::Code;
