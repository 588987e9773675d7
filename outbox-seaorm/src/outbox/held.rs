//! Looking at held rows.

use std::time::Duration;

use outbox_core::{
    error::StoreError,
    store::{HeldFilter, HeldReason, HeldRow},
};
use sea_orm::Value;

use crate::{
    SeaOrm,
    clock::to_duration,
    dialect::{MESSAGE, binds, padded},
    rows,
};

const LIST: &str = "read held rows";
const KEYS: &str = "read the keys of held rows";
const NEXT_DUE: &str = "read when the next held row is due";

/// The columns that [`rows::held`] reads.
fn columns(store: &SeaOrm) -> String {
    let dialect = store.dialect();
    format!(
        "COALESCE(h.seq, 0), h.{}, {}, h.id, h.reason, h.attempts, {} - {}, h.first_error, h.last_error, {}, {}",
        MESSAGE.replace(", ", ", h."),
        dialect.micros("h.occurred_at"),
        dialect.micros("h.due_at"),
        dialect.micros(&store.now()),
        dialect.micros("h.held_at"),
        dialect.micros("h.changed_at"),
    )
}

struct Condition {
    sql: String,
    values: Vec<Value>,
}

impl Condition {
    fn and(&mut self, sql: &str, values: impl IntoIterator<Item = Value>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(sql);
        self.values.extend(values);
    }

    fn and_not_in(&mut self, column: &str, values: &[Value]) {
        if !values.is_empty() {
            let list = binds(padded(values).count());
            self.and(
                &format!("({column} IS NULL OR {column} NOT IN ({list}))"),
                padded(values).cloned(),
            );
        }
    }
}

fn condition(store: &SeaOrm, target: &str, filter: &HeldFilter) -> Condition {
    let mut condition = Condition {
        sql: "target = ?".to_owned(),
        values: vec![target.into()],
    };
    if !filter.reasons.is_empty() {
        let reasons = filter.reasons.iter().map(|reason| reason.as_str().into());
        condition.and(
            &format!("reason IN ({})", binds(filter.reasons.len())),
            reasons,
        );
    }
    if filter.due {
        condition.and(&format!("due_at <= {}", store.now()), []);
    }
    if let Some(key) = &filter.key {
        condition.and("ordering_key = ?", [store.dialect().key(key)]);
    }
    if let Some(id) = filter.after_id {
        condition.and("id > ?", [id.into()]);
    }
    let keys: Vec<Value> = filter
        .exclude_keys
        .iter()
        .map(|key| store.dialect().key(key))
        .collect();
    condition.and_not_in("ordering_key", &keys);
    let subjects: Vec<Value> = filter
        .exclude_subjects
        .iter()
        .map(|subject| subject.as_str().into())
        .collect();
    condition.and_not_in("subject", &subjects);
    let ids: Vec<Value> = filter.exclude_ids.iter().map(|id| (*id).into()).collect();
    condition.and_not_in("id", &ids);
    condition
}

/// As with the outbox, the running sum goes over sizes only.
pub(super) async fn held(
    store: &SeaOrm,
    target: &str,
    filter: &HeldFilter,
) -> Result<Vec<HeldRow>, StoreError> {
    if filter.limit == 0 {
        return Ok(Vec::new());
    }
    let table = &store.tables().held;
    let order = if filter.after_id.is_some() {
        "id"
    } else if filter.reasons == [HeldReason::Scheduled] {
        "due_at, id"
    } else {
        "CASE WHEN seq IS NULL THEN 1 ELSE 0 END, seq, due_at, id"
    };
    let Condition {
        sql: condition,
        mut values,
    } = condition(store, target, filter);
    let sql = format!(
        "SELECT {columns} FROM (\
           SELECT id, position, SUM(size) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) AS total FROM (\
             SELECT id, {size} AS size, ROW_NUMBER() OVER (ORDER BY {order}) AS position \
             FROM {table} WHERE {condition} ORDER BY {order} LIMIT ?\
           ) AS s\
         ) AS r JOIN {table} AS h ON h.id = r.id \
         WHERE r.total <= ? OR r.position = 1 ORDER BY r.position",
        columns = columns(store),
        size = store.dialect().payload_size(),
    );
    values.push(i64::from(filter.limit).into());
    values.push(i64::try_from(filter.max_bytes).unwrap_or(i64::MAX).into());
    let rows = store.query(LIST, store.sql(&sql, values)).await?;
    Ok(rows.iter().map(rows::held).collect())
}

pub(super) async fn row(
    store: &SeaOrm,
    target: &str,
    id: i64,
) -> Result<Option<HeldRow>, StoreError> {
    let sql = format!(
        "SELECT {} FROM {} AS h WHERE h.id = ? AND h.target = ?",
        columns(store),
        store.tables().held
    );
    let rows = store
        .query(LIST, store.sql(&sql, vec![id.into(), target.into()]))
        .await?;
    Ok(rows.first().map(rows::held))
}

pub(super) async fn keys(
    store: &SeaOrm,
    target: &str,
    dead_too: bool,
) -> Result<Vec<String>, StoreError> {
    let ignored = if dead_too {
        "('scheduled')"
    } else {
        "('scheduled', 'dead')"
    };
    let sql = format!(
        "SELECT DISTINCT ordering_key FROM {} \
         WHERE target = ? AND ordering_key IS NOT NULL AND reason NOT IN {ignored}",
        store.tables().held
    );
    let rows = store
        .query(KEYS, store.sql(&sql, vec![target.into()]))
        .await?;
    Ok(rows.iter().filter_map(|row| rows::text(row, 0)).collect())
}

pub(super) async fn next_due(store: &SeaOrm, target: &str) -> Result<Option<Duration>, StoreError> {
    let held = &store.tables().held;
    let next = |reason| {
        format!("SELECT MIN(due_at) AS due_at FROM {held} WHERE target = ? AND reason = '{reason}'")
    };
    let micros = |time| store.dialect().micros(time);
    let sql = format!(
        "SELECT {} - {} FROM ({} UNION ALL {}) AS d WHERE due_at IS NOT NULL ORDER BY 1 LIMIT 1",
        micros("due_at"),
        micros(&store.now()),
        next("failing"),
        next("scheduled"),
    );
    let rows = store
        .query(
            NEXT_DUE,
            store.sql(&sql, vec![target.into(), target.into()]),
        )
        .await?;
    Ok(rows
        .first()
        .and_then(|row| rows::int(row, 0))
        .map(to_duration))
}
