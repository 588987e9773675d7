//! The archive's statements on MySQL and MariaDB. Rows come as one JSON parameter, so that the text is the same
//! for any number of them.

use sea_orm::Value;
use uuid::Uuid;

use super::{
    super::{MESSAGE, Published, Relocation, Source, pairs_json, published_json},
    outbox::delete_pairs,
    statement,
};
use crate::tables::Table;

pub(super) fn archive(
    archive: &Table,
    source: Source<'_>,
    target: &str,
    now: &str,
    rows: &[Published<'_>],
) -> Relocation {
    let (table, number) = (source.table(), source.number());
    let columns = MESSAGE.replace(", ", ", t.");
    let mut values: Vec<Value> = vec![target.into(), published_json(rows).into()];
    let mut sql = format!(
        "INSERT INTO {archive} (target, seq, {MESSAGE}, occurred_at, stream, stream_seq, published_at) \
         SELECT ?, t.seq, t.{columns}, t.occurred_at, r.c, r.d, {now} \
         FROM JSON_TABLE(?, '$[*]' COLUMNS (a BIGINT PATH '$[0]', b CHAR(32) PATH '$[1]', \
         c VARCHAR(255) PATH '$[2]', d BIGINT PATH '$[3]')) AS r \
         STRAIGHT_JOIN {table} AS t FORCE INDEX (PRIMARY) ON t.{number} = r.a AND t.message_id = UNHEX(r.b)"
    );
    let pairs: Vec<_> = rows.iter().map(|row| (row.number, row.id)).collect();
    let mut delete = delete_pairs(table, number, &pairs);
    if source.is_shared() {
        sql.push_str(" WHERE t.target = ?");
        values.push(target.into());
        delete.sql.push_str(" AND t.target = ?");
        if let Some(values) = &mut delete.values {
            values.0.push(target.into());
        }
    }
    Relocation::Parts {
        copy: statement(sql, values),
        delete,
    }
}

pub(super) fn republish(
    archive: &Table,
    table: &Table,
    target: &str,
    rows: &[(i64, Uuid)],
) -> Relocation {
    let columns = MESSAGE.replace(", ", ", t.");
    let sql = format!(
        "INSERT INTO {table} ({MESSAGE}, occurred_at) SELECT t.{columns}, t.occurred_at \
         FROM JSON_TABLE(?, '$[*]' COLUMNS (a BIGINT PATH '$[0]', b CHAR(32) PATH '$[1]')) AS r \
         STRAIGHT_JOIN {archive} AS t FORCE INDEX (PRIMARY) ON t.id = r.a AND t.message_id = UNHEX(r.b) \
         WHERE t.target = ? ORDER BY t.seq, t.id"
    );
    let mut delete = delete_pairs(archive, "id", rows);
    delete.sql.push_str(" AND t.target = ?");
    if let Some(values) = &mut delete.values {
        values.0.push(target.into());
    }
    Relocation::Parts {
        copy: statement(sql, vec![pairs_json(rows).into(), target.into()]),
        delete,
    }
}
