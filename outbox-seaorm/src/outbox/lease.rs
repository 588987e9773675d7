//! The lease that makes one relay the active one.

use std::time::Duration;

use outbox_core::{
    error::{StoreError, StoreErrorKind},
    store::Lease,
};
use sea_orm::Statement;
use uuid::Uuid;

use crate::{
    SeaOrm,
    clock::duration_micros,
    error::{DatabaseError, cause, refused},
    rows::int,
};

const ACQUIRE: &str = "take the relay's lease";
const RENEW: &str = "renew the relay's lease";
const RELEASE: &str = "give the relay's lease up";

/// Looks first, so that the many who stand by write nothing. What is taken is decided by the
/// conditional UPDATE, or by the primary key if there is no row yet.
pub(super) async fn acquire(
    store: &SeaOrm,
    target: &str,
    owner: Uuid,
    length: Duration,
) -> Result<Option<i64>, StoreError> {
    store.outbox(target, ACQUIRE)?;
    let lease = &store.tables().lease;
    let now = store.now();
    let far = store.dialect().later(&now, "(2000 * lease_ms)");
    let free = format!("(owner IS NULL OR leased_until <= {now} OR leased_until > {far})");

    let sql = format!("SELECT CASE WHEN {free} THEN 1 ELSE 0 END FROM {lease} WHERE target = ?");
    let seen = store
        .query(ACQUIRE, store.sql(&sql, vec![target.into()]))
        .await?;
    let length_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX / 2000);
    match seen.first().map(|row| int(row, 0)) {
        None => {
            let until = store.later();
            let sql = format!(
                "INSERT INTO {lease} (target, owner, epoch, leased_until, lease_ms) VALUES (?, ?, 1, {until}, ?)"
            );
            let values = vec![
                target.into(),
                owner.into(),
                duration_micros(length).into(),
                length_ms.into(),
            ];
            match store.execute(ACQUIRE, store.sql(&sql, values)).await {
                Ok(_) => Ok(Some(1)),
                Err(error) if cause(&error).is_some_and(DatabaseError::is_duplicate) => Ok(None),
                Err(error) => Err(error),
            }
        }
        Some(Some(1)) => {
            let until = store.later();
            let sql = format!(
                "UPDATE {lease} SET owner = ?, epoch = epoch + 1, leased_until = {until}, lease_ms = ? \
                 WHERE target = ? AND {free}"
            );
            let values = vec![
                owner.into(),
                duration_micros(length).into(),
                length_ms.into(),
                target.into(),
            ];
            if store
                .execute(ACQUIRE, store.sql(&sql, values))
                .await?
                .rows_affected()
                == 0
            {
                return Ok(None);
            }
            // The owner is random for each acquisition, so a row with it is this one.
            let sql = format!("SELECT epoch FROM {lease} WHERE target = ? AND owner = ?");
            let row = store
                .query(ACQUIRE, store.sql(&sql, vec![target.into(), owner.into()]))
                .await?;
            Ok(row.first().and_then(|row| int(row, 0)))
        }
        Some(_) => Ok(None),
    }
}

/// A lease that ran out and that nobody has taken may be renewed: nothing happened meanwhile.
pub(super) fn renewal(store: &SeaOrm, lease: &Lease) -> Statement {
    let sql = format!(
        "UPDATE {} SET leased_until = {} WHERE target = ? AND owner = ? AND epoch = ?",
        store.tables().lease,
        store.later()
    );
    let values = vec![
        duration_micros(lease.length).into(),
        lease.target.as_str().into(),
        lease.owner.into(),
        lease.epoch.into(),
    ];
    store.sql(&sql, values)
}

pub(super) async fn renew(store: &SeaOrm, lease: &Lease) -> Result<(), StoreError> {
    match store
        .execute(RENEW, renewal(store, lease))
        .await?
        .rows_affected()
    {
        0 => Err(lost(RENEW)),
        _ => Ok(()),
    }
}

pub(super) fn lost(operation: &'static str) -> StoreError {
    refused(
        StoreErrorKind::Fenced,
        operation,
        "another process has taken the lease",
    )
}

pub(super) async fn release(store: &SeaOrm, lease: &Lease) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE {} SET owner = NULL, leased_until = {} WHERE target = ? AND owner = ? AND epoch = ?",
        store.tables().lease,
        store.now()
    );
    let values = vec![
        lease.target.as_str().into(),
        lease.owner.into(),
        lease.epoch.into(),
    ];
    store
        .execute(RELEASE, store.sql(&sql, values))
        .await
        .map(drop)
}
