//! Who relays: the lease of an outbox, as its row tells.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, Statement};

pub(crate) struct Lease {
    /// Grows whenever the lease is taken.
    pub(crate) epoch: i64,
    /// How long it still runs; `None` if nobody holds it.
    pub(crate) left: Option<Duration>,
}

/// Reads the lease of `target`; `None` if no relay has ever taken it.
pub(crate) async fn read(db: &DatabaseConnection, target: &str) -> Result<Option<Lease>, DbErr> {
    let backend = db.get_database_backend();
    // By the database's clock, which is the one that counts.
    let (left, parameter) = match backend {
        DbBackend::Postgres => (
            "CAST(EXTRACT(EPOCH FROM leased_until - clock_timestamp()) * 1000 AS BIGINT)",
            "$1",
        ),
        DbBackend::MySql => (
            "CAST(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), leased_until) / 1000 AS SIGNED)",
            "?",
        ),
        _ => (
            "CAST(leased_until / 1000 - unixepoch('subsec') * 1000 AS INTEGER)",
            "?",
        ),
    };
    let sql = format!(
        "SELECT epoch, CASE WHEN owner IS NULL THEN 0 ELSE {left} END AS left_ms \
         FROM outbox_lease WHERE target = {parameter}"
    );
    let row = db
        .query_one_raw(Statement::from_sql_and_values(
            backend,
            sql,
            [target.into()],
        ))
        .await?;
    row.map(|row| {
        let left: i64 = row.try_get("", "left_ms")?;
        Ok(Lease {
            epoch: row.try_get("", "epoch")?,
            left: u64::try_from(left)
                .ok()
                .filter(|left| *left > 0)
                .map(Duration::from_millis),
        })
    })
    .transpose()
}
