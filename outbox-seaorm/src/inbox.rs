//! The consumers' side.

use std::{collections::HashMap, time::Duration};

use outbox_core::{
    error::StoreError,
    failpoint::Failpoint,
    store::{AttemptEnd, InboxStore, Ledger, Pool, Store as _},
};
use sea_orm::{ConnectionTrait, DatabaseTransaction};
use uuid::Uuid;

use crate::{SeaOrm, clock::moment, error::failed, rows, tables::Table};

const RECORD: &str = "record a message in the inbox";
const IS_RECORDED: &str = "look a message up in the inbox";
const LEDGER: &str = "read the attempts at a message";
const OPEN: &str = "record an attempt's start";
const END: &str = "record an attempt's end";
const CLEAR: &str = "forget the attempts at a message";
const PRUNE: &str = "prune the inbox";

impl InboxStore for SeaOrm {
    /// The ids are written in ascending order, so that two transactions with several of the same
    /// ids wait for each other instead of getting into a deadlock.
    async fn record(
        &self,
        tx: &DatabaseTransaction,
        consumer: &str,
        ids: &[Uuid],
    ) -> Result<Vec<bool>, StoreError> {
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now();
        let fresh = self
            .dialect()
            .record(tx, &self.tables().inbox, consumer, &now, &sorted)
            .await;
        let fresh = fresh.map_err(|error| failed(RECORD, &error))?;
        Failpoint::after(|| format!("{RECORD}: INSERT")).passed();
        // Taken out at its first place, an id that stands twice is new only once.
        let mut fresh: HashMap<Uuid, bool> = sorted.into_iter().zip(fresh).collect();
        Ok(ids
            .iter()
            .map(|id| fresh.remove(id).unwrap_or(false))
            .collect())
    }

    /// The guard and the row of a single message take one round trip.
    async fn begin_recorded(
        &self,
        consumer: &str,
        ids: &[Uuid],
    ) -> Result<(DatabaseTransaction, Vec<bool>), StoreError> {
        let id = match ids {
            // In the text of a statement a NUL character would end it.
            [id] if !consumer.contains('\0') => *id,
            _ => {
                let tx = self.begin(Pool::Consumer).await?;
                let fresh = self.record(&tx, consumer, ids).await?;
                return Ok((tx, fresh));
            }
        };
        let tx = self.begin_handling().await?;
        let guard = self.handling_guard();
        let now = self.now();
        let fresh = self
            .dialect()
            .record_guarded(&tx, guard, &self.tables().inbox, consumer, &now, id)
            .await;
        let fresh = fresh.map_err(|error| failed(RECORD, &error))?;
        Failpoint::after(|| format!("{RECORD}: INSERT")).passed();
        Ok((tx, vec![fresh]))
    }

    async fn is_recorded(&self, consumer: &str, id: Uuid) -> Result<bool, StoreError> {
        let sql = format!(
            "SELECT 1 FROM {} WHERE message_id = ? AND consumer = ?",
            self.tables().inbox
        );
        let rows = self
            .query(
                IS_RECORDED,
                self.sql(&sql, vec![id.into(), consumer.into()]),
            )
            .await?;
        Ok(!rows.is_empty())
    }

    async fn ledger(&self, consumer: &str, id: Uuid) -> Result<Ledger, StoreError> {
        let dialect = self.dialect();
        let sql = format!(
            "SELECT attempts, open_starts, lone_starts, uncounted, first_error, last_error, \
             CASE WHEN first_failed_at IS NOT NULL THEN {} END, CASE WHEN last_failed_at IS NOT NULL THEN {} END \
             FROM {} WHERE message_id = ? AND consumer = ?",
            dialect.micros("first_failed_at"),
            dialect.micros("last_failed_at"),
            self.tables().attempt
        );
        let rows = self
            .query(LEDGER, self.sql(&sql, vec![id.into(), consumer.into()]))
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Ledger::default());
        };
        let count =
            |index| u32::try_from(rows::int(row, index).unwrap_or_default()).unwrap_or_default();
        Ok(Ledger {
            attempts: count(0),
            open_starts: count(1),
            lone_starts: count(2),
            uncounted: count(3),
            first_error: rows::text(row, 4),
            last_error: rows::text(row, 5),
            first_failed_at: rows::int(row, 6).map(moment),
            last_failed_at: rows::int(row, 7).map(moment),
        })
    }

    async fn open_start(&self, consumer: &str, id: Uuid, lone: bool) -> Result<(), StoreError> {
        let statement =
            self.dialect()
                .open_start(&self.tables().attempt, consumer, id, &self.now(), lone);
        self.execute(OPEN, statement).await.map(drop)
    }

    async fn end_start(
        &self,
        consumer: &str,
        id: Uuid,
        end: &AttemptEnd,
    ) -> Result<Ledger, StoreError> {
        let statement =
            self.dialect()
                .end_start(&self.tables().attempt, consumer, id, &self.now(), end);
        self.execute(END, statement).await?;
        self.ledger(consumer, id).await
    }

    async fn clear_in(
        &self,
        tx: &DatabaseTransaction,
        consumer: &str,
        id: Uuid,
    ) -> Result<(), StoreError> {
        let sql = format!(
            "DELETE FROM {} WHERE message_id = ? AND consumer = ?",
            self.tables().attempt
        );
        let statement = self.sql(&sql, vec![id.into(), consumer.into()]);
        tx.execute_raw(statement)
            .await
            .map_err(|error| failed(CLEAR, &error))?;
        Failpoint::after(|| format!("{CLEAR}: DELETE with the effect")).passed();
        Ok(())
    }

    async fn clear(&self, consumer: &str, id: Uuid) -> Result<(), StoreError> {
        let sql = format!(
            "DELETE FROM {} WHERE message_id = ? AND consumer = ?",
            self.tables().attempt
        );
        self.execute(CLEAR, self.sql(&sql, vec![id.into(), consumer.into()]))
            .await
            .map(drop)
    }

    async fn prune(&self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        let tables = self.tables();
        let inbox = prune(self, &tables.inbox, "processed_at", age, limit).await?;
        let ledger = prune(self, &tables.attempt, "changed_at", age, limit).await?;
        Ok(inbox + ledger)
    }
}

async fn prune(
    store: &SeaOrm,
    table: &Table,
    column: &str,
    age: Duration,
    limit: u32,
) -> Result<u64, StoreError> {
    let (dialect, now) = (store.dialect(), store.now());
    let mut found = Vec::new();
    if let Some(find) = dialect.find_old(table, column, &now, age, limit) {
        for row in store.query(PRUNE, find).await? {
            let id = row.try_get_by_index(0);
            found.extend(id.ok().zip(rows::text(&row, 1)));
        }
        if found.is_empty() {
            return Ok(0);
        }
    }
    let statement = dialect.prune(table, column, &now, age, limit, &found);
    Ok(store.execute(PRUNE, statement).await?.rows_affected())
}
