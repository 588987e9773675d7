//! What the framework is compared with.

use std::{collections::VecDeque, future::IntoFuture, sync::Arc, time::Instant};

use async_nats::{
    HeaderMap,
    jetstream::{Context, context::PublishAckFuture},
};
use bytes::Bytes;
use outbox_core::{
    store::{OutboxRow, OutboxStore, ReadQuery, SeqRuns, Settled},
    wire,
};
use outbox_tests::Database;
use sea_orm::{ConnectionTrait, DatabaseConnection, Statement, TransactionTrait};

use crate::{Outcome, world::World};

/// Rows of a batch, and messages that are not confirmed: those of the relay.
pub(crate) const BATCH: u32 = 1000;
/// Rows of a batch as those who write a relay by hand mostly have them.
pub(crate) const SMALL_BATCH: u32 = 100;
const WINDOW: usize = 512;

const MAX_BYTES: usize = 8 << 20;

/// A message with the headers that the framework gives it.
#[derive(Debug, Clone)]
struct Message {
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
}

impl Message {
    fn of(row: &OutboxRow) -> Outcome<Self> {
        let wire = wire::outgoing(row, "bench")?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", row.id.to_string());
        for (name, value) in wire.headers.iter() {
            headers.insert(name, value);
        }
        Ok(Self {
            subject: wire.subject,
            headers,
            payload: wire.payload,
        })
    }
}

/// Publishes through async-nats, so many at a time, and waits for all confirmations.
struct Pipeline {
    jetstream: Context,
    open: VecDeque<PublishAckFuture>,
}

impl Pipeline {
    fn new(jetstream: Context) -> Self {
        Self {
            jetstream,
            open: VecDeque::new(),
        }
    }

    async fn send(&mut self, message: Message) -> Outcome {
        if self.open.len() >= WINDOW
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.into_future().await?;
        }
        let Message {
            subject,
            headers,
            payload,
        } = message;
        let sent = self
            .jetstream
            .publish_with_headers(subject, headers, payload);
        self.open.push_back(sent.await?);
        Ok(())
    }

    async fn finish(&mut self) -> Outcome {
        for open in self.open.drain(..) {
            open.into_future().await?;
        }
        Ok(())
    }
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// Messages a second of publishing alone: the rows as they are, from memory.
pub(crate) async fn publish(world: &World) -> Outcome<f64> {
    let mut messages = Vec::new();
    let mut floor = 0;
    loop {
        let rows = world.store.read("default", &query(floor)).await?;
        let Some(last) = rows.last() else { break };
        floor = last.seq;
        for row in &rows {
            messages.push(Message::of(row)?);
        }
    }
    let mut pipeline = Pipeline::new(world.jetstream().await);
    let count = messages.len();
    tokio::spawn(async move {
        let began = Instant::now();
        for message in messages {
            pipeline.send(message).await?;
        }
        pipeline.finish().await?;
        Ok(rate(count, began))
    })
    .await?
}

fn query(floor: i64) -> ReadQuery {
    ReadQuery {
        floor,
        exclude: SeqRuns::default(),
        limit: BATCH,
        max_bytes: MAX_BYTES,
    }
}

/// Rows a second of reading and deleting them in batches, with a broker that does nothing.
pub(crate) async fn read_and_delete(world: &World) -> Outcome<f64> {
    let store = world.store.clone();
    tokio::spawn(async move {
        let began = Instant::now();
        let stream: Arc<str> = Arc::from("none");
        let mut count = 0;
        loop {
            let rows = store.read("default", &query(0)).await?;
            if rows.is_empty() {
                return Ok(rate(count, began));
            }
            count += rows.len();
            let settled: Vec<_> = rows
                .iter()
                .map(|row| Settled {
                    seq: row.seq,
                    id: row.id,
                    stream: Arc::clone(&stream),
                    stream_seq: 1,
                })
                .collect();
            store.settle("default", &settled).await?;
        }
    })
    .await?
}

/// The table of the hand-written relay, with the outbox's rows.
pub(crate) async fn prepare_by_hand(world: &World) -> Outcome {
    let db = &world.db;
    db.execute_unprepared("DROP TABLE IF EXISTS hand_outbox")
        .await?;
    // Not every database counts an empty column by itself: the number of the row is taken over.
    let (text, bytes, time, id, new_id, index) = match world.database {
        Database::Postgres => (
            "TEXT",
            "BYTEA",
            "TIMESTAMPTZ",
            "UUID",
            "gen_random_uuid()",
            "CREATE INDEX hand_unsent ON hand_outbox (seq) WHERE NOT sent",
        ),
        Database::MariaDb => (
            "VARCHAR(255)",
            "MEDIUMBLOB",
            "DATETIME(6)",
            "BINARY(16)",
            "UNHEX(REPLACE(UUID(), '-', ''))",
            "CREATE INDEX hand_unsent ON hand_outbox (sent, seq)",
        ),
        Database::Sqlite => (
            "TEXT",
            "BLOB",
            "TEXT",
            "BLOB",
            "randomblob(16)",
            "CREATE INDEX IF NOT EXISTS hand_unsent ON hand_outbox (seq) WHERE NOT sent",
        ),
    };
    db.execute_unprepared(&format!(
        "CREATE TABLE hand_outbox (seq BIGINT PRIMARY KEY, message_id {id} NOT NULL, event_type {text} NOT NULL, \
         subject {text} NOT NULL, ordering_key {text}, payload {bytes} NOT NULL, occurred_at {time} NOT NULL, \
         sent BOOLEAN NOT NULL)"
    ))
    .await?;
    // With ids of their own: the stream would take the relay's messages for repetitions.
    db.execute_unprepared(&format!(
        "INSERT INTO hand_outbox SELECT seq, {new_id}, event_type, subject, ordering_key, payload, occurred_at, \
         FALSE FROM outbox"
    ))
    .await?;
    db.execute_unprepared(index).await?;
    match world.database {
        Database::Postgres => {
            db.execute_unprepared("VACUUM ANALYZE hand_outbox").await?;
            db.execute_unprepared("CHECKPOINT").await?;
        }
        Database::MariaDb => {
            db.execute_unprepared("ANALYZE TABLE hand_outbox").await?;
        }
        Database::Sqlite => {}
    }
    Ok(())
}

/// Messages a second of a relay as one writes it by hand: rows are locked, published in a pipeline,
/// marked as sent by one statement, and committed, batch after batch.
pub(crate) async fn by_hand(world: &World, batch: u32) -> Outcome<f64> {
    let (db, backend) = (world.db.clone(), world.database);
    let mut pipeline = Pipeline::new(world.jetstream().await);
    tokio::spawn(async move {
        let began = Instant::now();
        let mut count = 0;
        loop {
            let done = batch_by_hand(&db, backend, &mut pipeline, batch).await?;
            if done == 0 {
                return Ok(rate(count, began));
            }
            count += done;
        }
    })
    .await?
}

async fn batch_by_hand(
    db: &DatabaseConnection,
    database: Database,
    pipeline: &mut Pipeline,
    limit: u32,
) -> Outcome<usize> {
    let backend = db.get_database_backend();
    let lock = match database {
        Database::Sqlite => "",
        _ => " FOR UPDATE SKIP LOCKED",
    };
    let tx = db.begin().await?;
    let read = format!(
        "SELECT seq, message_id, event_type, subject, ordering_key, payload, occurred_at FROM hand_outbox \
         WHERE NOT sent ORDER BY seq LIMIT {limit}{lock}"
    );
    let rows = tx
        .query_all_raw(Statement::from_string(backend, read))
        .await?;
    let mut sent = Vec::with_capacity(rows.len());
    for row in &rows {
        let row = OutboxRow {
            seq: row.try_get_by_index(0)?,
            id: row.try_get_by_index(1)?,
            event_type: row.try_get_by_index(2)?,
            version: 1,
            subject: row.try_get_by_index(3)?,
            key: row.try_get_by_index(4)?,
            headers: String::new(),
            payload: row.try_get_by_index::<Vec<u8>>(5)?.into(),
            occurred_at: match database {
                Database::Postgres => row.try_get_by_index(6)?,
                _ => time::OffsetDateTime::now_utc(),
            },
        };
        sent.push(row.seq);
        pipeline.send(Message::of(&row)?).await?;
    }
    pipeline.finish().await?;
    if let (Some(first), Some(last)) = (sent.first(), sent.last()) {
        let mark = match database {
            Database::Postgres => Statement::from_sql_and_values(
                backend,
                "UPDATE hand_outbox SET sent = TRUE WHERE seq = ANY($1)",
                [sent.clone().into()],
            ),
            _ => Statement::from_string(
                backend,
                format!(
                    "UPDATE hand_outbox SET sent = TRUE WHERE seq BETWEEN {first} AND {last} AND NOT sent"
                ),
            ),
        };
        tx.execute_raw(mark).await?;
    }
    tx.commit().await?;
    Ok(sent.len())
}
