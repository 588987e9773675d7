//! Proving that no row at or below a number can appear any more, on PostgreSQL.
//!
//! 1. Read the last number that the sequence has given: the candidate.
//! 2. Take a transaction id afterwards: the marker. Whoever has a number up to the candidate took
//!    their own id before the number (see the INSERT), and so before the marker.
//! 3. Once the oldest running transaction is younger than the marker, all of those have ended. The
//!    next reads see what they committed, and as far as those have come, up to the candidate, is a floor.
//!
//! The horizon counts for all databases of a server: a long transaction elsewhere delays the proof.

use outbox_core::{error::StoreError, store::FloorProbe};
use sea_orm::DbBackend;

use crate::{
    SeaOrm,
    error::{DatabaseError, cause},
    rows::int,
};

const PROBE: &str = "prove a floor";

pub(super) async fn probe(
    store: &SeaOrm,
    target: &str,
    last: Option<FloorProbe>,
) -> Result<Option<FloorProbe>, StoreError> {
    let table = store.outbox(target, PROBE)?;
    if store.dialect().backend() != DbBackend::Postgres {
        return Ok(None);
    }
    if let Some(last) = last.filter(|probe| !probe.passed) {
        let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
        let row = store.query(PROBE, store.sql(sql, vec![])).await?;
        let passed = row
            .first()
            .and_then(|row| int(row, 0))
            .is_some_and(|oldest| oldest >= last.marker);
        return Ok(Some(FloorProbe { passed, ..last }));
    }
    let sql =
        "SELECT COALESCE(pg_sequence_last_value(to_regclass(pg_get_serial_sequence(?, 'seq'))), 0)";
    let row = match store
        .query(PROBE, store.sql(sql, vec![table.to_string().into()]))
        .await
    {
        Ok(row) => row,
        // No right to look at the sequence: the relay works without floors, only slower at times.
        Err(error) if cause(&error).and_then(DatabaseError::code) == Some("42501") => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let Some(candidate) = row.first().and_then(|row| int(row, 0)) else {
        return Ok(None);
    };
    let row = store
        .query(
            PROBE,
            store.sql("SELECT pg_current_xact_id()::text::bigint", vec![]),
        )
        .await?;
    let Some(marker) = row.first().and_then(|row| int(row, 0)) else {
        return Ok(None);
    };
    Ok(Some(FloorProbe {
        candidate,
        marker,
        passed: false,
    }))
}
