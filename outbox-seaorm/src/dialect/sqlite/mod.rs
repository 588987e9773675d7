//! SQLite 3.42 or newer.

mod archive;
mod inbox;
mod outbox;
mod schema;

use std::time::Duration;

use outbox_core::store::{AttemptEnd, HeldChange, HoldMove, OutboxRecord, ReadQuery, Settled};
use sea_orm::{DatabaseTransaction, DbBackend, Statement, Value};
use uuid::Uuid;

use super::{Dialect, Published, Query, Relocation, Source, Task};
use crate::{
    clock::Clock,
    tables::{Table, Tables},
};

#[derive(Debug)]
pub(crate) struct Sqlite;

impl Dialect for Sqlite {
    fn backend(&self) -> DbBackend {
        DbBackend::Sqlite
    }

    /// Times are integers: microseconds since 1970. The clock itself shows milliseconds.
    fn now(&self, clock: &Clock) -> String {
        match clock {
            Clock::Database => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)".to_owned(),
            Clock::Manual(clock) => clock.micros().to_string(),
        }
    }

    fn later(&self, time: &str, micros: &str) -> String {
        format!("({time} + {micros})")
    }

    fn micros(&self, time: &str) -> String {
        format!("COALESCE({time}, 0)")
    }

    /// Of a blob; `octet_length` came with SQLite 3.43.
    fn payload_size(&self) -> &'static str {
        "length(payload)"
    }

    fn chunk(&self, rows: usize) -> usize {
        super::values::chunk(rows)
    }

    fn insert(&self, table: &Table, now: &str, rows: &[&OutboxRecord]) -> Statement {
        outbox::insert(table, now, rows)
    }

    fn schedule(
        &self,
        table: &Table,
        target: &str,
        now: &str,
        rows: &[&OutboxRecord],
    ) -> Statement {
        outbox::schedule(table, target, now, rows)
    }

    fn read(&self, table: &Table, query: &ReadQuery) -> Statement {
        outbox::read(table, query)
    }

    fn settle(&self, table: &Table, rows: &[Settled]) -> Statement {
        outbox::delete_pairs(
            table,
            "seq",
            &rows.iter().map(|row| (row.seq, row.id)).collect::<Vec<_>>(),
        )
    }

    fn hold(
        &self,
        tables: &Tables,
        table: &Table,
        target: &str,
        now: &str,
        moves: &[HoldMove],
    ) -> Statement {
        outbox::hold(&tables.held, table, target, now, moves)
    }

    fn remove(&self, table: &Table, moves: &[HoldMove]) -> Statement {
        outbox::delete_pairs(
            table,
            "seq",
            &moves
                .iter()
                .map(|row| (row.seq, row.id))
                .collect::<Vec<_>>(),
        )
    }

    fn change(&self, table: &Table, target: &str, now: &str, changes: &[HeldChange]) -> Statement {
        outbox::change(table, target, now, changes)
    }

    fn settle_held(&self, table: &Table, target: &str, rows: &[(i64, Uuid)]) -> Statement {
        let mut statement = outbox::delete_pairs(table, "id", rows);
        statement.sql.push_str(" AND target = ?");
        if let Some(values) = &mut statement.values {
            values.0.push(target.into());
        }
        statement
    }

    fn archive(
        &self,
        tables: &Tables,
        source: Source<'_>,
        target: &str,
        now: &str,
        rows: &[Published<'_>],
    ) -> Relocation {
        archive::archive(&tables.archive, source, target, now, rows)
    }

    fn republish(
        &self,
        archive: &Table,
        table: &Table,
        target: &str,
        rows: &[(i64, Uuid)],
    ) -> Relocation {
        archive::republish(archive, table, target, rows)
    }

    fn record<'a>(
        &'a self,
        tx: &'a DatabaseTransaction,
        table: &'a Table,
        consumer: &'a str,
        now: &'a str,
        ids: &'a [Uuid],
    ) -> Task<'a, Vec<bool>> {
        Box::pin(inbox::record(tx, table, consumer, now, ids))
    }

    fn record_guarded<'a>(
        &'a self,
        tx: &'a DatabaseTransaction,
        guard: &'static str,
        table: &'a Table,
        consumer: &'a str,
        now: &'a str,
        id: Uuid,
    ) -> Task<'a, bool> {
        Box::pin(inbox::record_guarded(tx, guard, table, consumer, now, id))
    }

    fn open_start(
        &self,
        table: &Table,
        consumer: &str,
        id: Uuid,
        now: &str,
        lone: bool,
    ) -> Statement {
        super::conflict::open_start(self, table, consumer, id, now, lone)
    }

    fn end_start(
        &self,
        table: &Table,
        consumer: &str,
        id: Uuid,
        now: &str,
        end: &AttemptEnd,
    ) -> Statement {
        super::conflict::end_start(self, table, consumer, id, now, end)
    }

    fn prune(
        &self,
        table: &Table,
        column: &str,
        now: &str,
        age: Duration,
        limit: u32,
        _found: &[(Uuid, String)],
    ) -> Statement {
        inbox::prune(table, column, now, age, limit)
    }

    /// The mode stays with the file. In it readers and the writer do not wait for each other.
    fn prepare(&self) -> Option<&'static str> {
        Some("PRAGMA journal_mode = WAL")
    }

    fn create_shared(&self, tables: &Tables) -> Vec<String> {
        schema::create_shared(tables)
    }

    fn create_outbox(&self, table: &Table) -> Vec<String> {
        schema::create_outbox(table)
    }

    fn create_archive(&self, tables: &Tables) -> Vec<String> {
        schema::create_archive(tables)
    }

    fn exists(&self, _tables: &Tables, table: &Table) -> Statement {
        schema::exists(table)
    }

    /// The transaction is immediate and so the only one that writes.
    fn lock<'a>(
        &'a self,
        _connection: &'a DatabaseTransaction,
        _tables: &'a Tables,
    ) -> Task<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn requirements<'a>(
        &'a self,
        connection: &'a dyn Query,
        _tables: &'a Tables,
    ) -> Task<'a, Result<(), String>> {
        Box::pin(schema::requirements(connection))
    }
}

fn statement(sql: impl Into<String>, values: Vec<Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::Sqlite, sql, values)
}
