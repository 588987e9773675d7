//! The databases' error codes. Never their messages, which come in the server's language; SQLite's alone
//! come in one language, and it has no code of its own for a missing table.

use outbox_core::error::StoreErrorKind;
use sqlx::error::DatabaseError;

/// A database's own error code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Code {
    /// PostgreSQL's SQLSTATE.
    Postgres(String),
    /// MySQL's or MariaDB's number.
    MySql(u16),
    /// SQLite's extended result code.
    Sqlite(i32),
    /// The same, of a statement that names a table or column which is not there.
    SqliteMissing(i32),
    /// Of another driver.
    Unknown,
}

impl Code {
    pub(crate) fn of(error: &dyn DatabaseError) -> Self {
        #[cfg(feature = "postgres")]
        if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
            return Self::Postgres(error.code().to_owned());
        }
        #[cfg(feature = "mysql")]
        if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            return Self::MySql(error.number());
        }
        #[cfg(feature = "sqlite")]
        if error
            .try_downcast_ref::<sqlx::sqlite::SqliteError>()
            .is_some()
        {
            let code = error.code().and_then(|code| code.parse().ok());
            return match code {
                Some(code) if is_missing(code, error.message()) => Self::SqliteMissing(code),
                Some(code) => Self::Sqlite(code),
                None => Self::Unknown,
            };
        }
        let _ = error;
        Self::Unknown
    }

    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Postgres(code) => Some(code.clone()),
            Self::MySql(code) => Some(code.to_string()),
            Self::Sqlite(code) | Self::SqliteMissing(code) => Some(code.to_string()),
            Self::Unknown => None,
        }
    }

    /// Whether the message that belongs to it can quote values of rows or parameters.
    pub(crate) fn may_quote_data(&self) -> bool {
        match self {
            // Data exceptions, integrity violations, check option, P0: raised by the user's own code.
            Self::Postgres(code) => ["22", "23", "44", "P0"]
                .iter()
                .any(|class| code.starts_with(class)),
            // Only codes whose messages are known to hold names at most.
            Self::MySql(code) => !matches!(
                code,
                1021 | 1037
                    | 1040
                    | 1041
                    | 1044
                    | 1045
                    | 1047
                    | 1049
                    | 1053
                    | 1054
                    | 1114
                    | 1142
                    | 1146
                    | 1153
                    | 1205
                    | 1213
                    | 1290
                    | 1305
                    | 1317
                    | 1792
                    | 1836
                    | 1927
                    | 3024
                    | 4031
            ),
            // Its messages name tables and columns, never values.
            Self::Sqlite(_) | Self::SqliteMissing(_) => false,
            Self::Unknown => true,
        }
    }

    pub(crate) fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Postgres(code) => postgres(code),
            Self::MySql(code) => mysql(*code),
            Self::Sqlite(code) => sqlite(*code),
            Self::SqliteMissing(_) => StoreErrorKind::Schema,
            Self::Unknown => StoreErrorKind::Other,
        }
    }
}

/// Whether SQLite says, by its general code 1, that a table or column does not exist.
#[cfg(feature = "sqlite")]
fn is_missing(code: i32, message: &str) -> bool {
    code == 1
        && (["no such table: ", "no such column: "]
            .iter()
            .any(|beginning| message.starts_with(beginning))
            || message.contains(" has no column named "))
}

/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
fn postgres(code: &str) -> StoreErrorKind {
    match code {
        // Serialisation failure, deadlock, lock not available, and a cancelled statement: time-outs.
        "40001" | "40P01" | "55P03" | "57014" => StoreErrorKind::Busy,
        // Undefined table and column, invalid schema name.
        "42P01" | "42703" | "3F000" => StoreErrorKind::Schema,
        // Read-only: a failover left this connection on a standby.
        "25006" => StoreErrorKind::Unavailable,
        // Shutdown and start-up.
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => StoreErrorKind::Unavailable,
        // Connection exceptions, refused log-ins, no such database, too few resources, system errors.
        _ if ["08", "28", "3D", "53", "58"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Other,
    }
}

/// <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html> and
/// <https://mariadb.com/kb/en/mariadb-error-code-reference/>
const fn mysql(code: u16) -> StoreErrorKind {
    match code {
        // Lock wait time-out, deadlock, changed since last read, XA deadlock, NOWAIT, statement
        // time-outs, an interrupted query.
        1205 | 1213 | 1020 | 1614 | 3572 | 1969 | 3024 | 1317 => StoreErrorKind::Busy,
        // No such database, column, table.
        1049 | 1054 | 1146 => StoreErrorKind::Schema,
        // Too many connections, out of resources, refused log-ins.
        1021 | 1037 | 1040 | 1041 | 1045 | 1114 | 1129 | 1130 | 1135 | 1203 | 1226 => {
            StoreErrorKind::Unavailable
        }
        // Cluster node not ready, shutdown, lost and killed connections.
        1047 | 1053 | 1152 | 1158..=1161 | 1184 | 1927 | 2006 | 2013 | 4031 => {
            StoreErrorKind::Unavailable
        }
        // Read-only: a failover left this connection on a replica.
        1290 | 1792 | 1836 => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

/// <https://www.sqlite.org/rescode.html>: the low byte is the primary code.
const fn sqlite(code: i32) -> StoreErrorKind {
    match code & 0xff {
        // SQLITE_BUSY, SQLITE_LOCKED.
        5 | 6 => StoreErrorKind::Busy,
        // SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN.
        8 | 10 | 13 | 14 => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_codes() {
        for (code, kind) in [
            ("40P01", StoreErrorKind::Busy),
            ("57P01", StoreErrorKind::Unavailable),
            ("53300", StoreErrorKind::Unavailable),
            ("08006", StoreErrorKind::Unavailable),
            ("25006", StoreErrorKind::Unavailable),
            ("42P01", StoreErrorKind::Schema),
            ("23505", StoreErrorKind::Other),
        ] {
            assert_eq!(Code::Postgres(code.into()).kind(), kind, "{code}");
        }
        assert_eq!(Code::Sqlite(517).kind(), StoreErrorKind::Busy);
        assert_eq!(Code::Sqlite(261).kind(), StoreErrorKind::Busy);
        assert_eq!(Code::Sqlite(2067).kind(), StoreErrorKind::Other);
        assert_eq!(Code::MySql(1213).kind(), StoreErrorKind::Busy);
        assert_eq!(Code::MySql(1062).kind(), StoreErrorKind::Other);
    }

    #[test]
    fn messages_that_quote_values_are_dropped() {
        assert!(Code::MySql(1062).may_quote_data());
        assert!(Code::MySql(1366).may_quote_data());
        assert!(Code::Postgres("22P02".into()).may_quote_data());
        assert!(!Code::Postgres("42P01".into()).may_quote_data());
    }
}
