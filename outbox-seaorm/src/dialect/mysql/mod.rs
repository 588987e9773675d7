//! MySQL 8.0 or newer, and MariaDB 10.6 or newer.

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
pub(crate) struct MySql;

impl Dialect for MySql {
    fn backend(&self) -> DbBackend {
        DbBackend::MySql
    }

    fn now(&self, clock: &Clock) -> String {
        match clock {
            Clock::Database => "UTC_TIMESTAMP(6)".to_owned(),
            Clock::Manual(clock) => {
                format!(
                    "(TIMESTAMP'1970-01-01 00:00:00.000000' + INTERVAL {} MICROSECOND)",
                    clock.micros()
                )
            }
        }
    }

    fn later(&self, time: &str, micros: &str) -> String {
        format!("({time} + INTERVAL {micros} MICROSECOND)")
    }

    fn micros(&self, time: &str) -> String {
        format!("COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {time}), 0)")
    }

    /// A column of its own: InnoDB keeps long payloads on pages of their own and would read those.
    fn payload_size(&self) -> &'static str {
        "payload_size"
    }

    /// The column is binary, as the text collations that both MySQL and MariaDB have ignore blanks
    /// at the end.
    fn key(&self, key: &str) -> Value {
        key.as_bytes().to_vec().into()
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
        outbox::read(table, query, &self.micros("o.occurred_at"))
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
        statement.sql.push_str(" AND t.target = ?");
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
        inbox::open_start(table, consumer, id, now, lone)
    }

    fn end_start(
        &self,
        table: &Table,
        consumer: &str,
        id: Uuid,
        now: &str,
        end: &AttemptEnd,
    ) -> Statement {
        inbox::end_start(table, consumer, id, now, end)
    }

    fn find_old(
        &self,
        table: &Table,
        column: &str,
        now: &str,
        age: Duration,
        limit: u32,
    ) -> Option<Statement> {
        Some(inbox::find_old(table, column, now, age, limit))
    }

    fn prune(
        &self,
        table: &Table,
        column: &str,
        now: &str,
        age: Duration,
        _limit: u32,
        found: &[(Uuid, String)],
    ) -> Statement {
        inbox::prune(table, column, now, age, found)
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

    fn exists(&self, tables: &Tables, table: &Table) -> Statement {
        schema::exists(tables, table)
    }

    fn lock<'a>(&'a self, connection: &'a DatabaseTransaction, tables: &'a Tables) -> Task<'a, ()> {
        Box::pin(schema::lock(connection, tables))
    }

    fn unlock<'a>(
        &'a self,
        connection: &'a DatabaseTransaction,
        tables: &'a Tables,
    ) -> Task<'a, ()> {
        Box::pin(schema::unlock(connection, tables))
    }

    fn requirements<'a>(
        &'a self,
        connection: &'a dyn Query,
        _tables: &'a Tables,
    ) -> Task<'a, Result<(), String>> {
        Box::pin(schema::requirements(connection))
    }

    /// A deadlock ends the transaction. On our own connections what follows must not be committed
    /// statement by statement then.
    fn guard(&self, own: bool) -> &'static str {
        if own {
            "SET autocommit = 0; SAVEPOINT outbox_guard"
        } else {
            "SAVEPOINT outbox_guard"
        }
    }
}

fn statement(sql: impl Into<String>, values: Vec<Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::MySql, sql, values)
}
