//! One listing over the dead letters of both sides.

use std::fmt;

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{DeadLetterId, OperateError};
use crate::{
    broker::{Broker, DeadLetter, Origin},
    bus::Bus,
    headers::Headers,
    store::{HeldFilter, HeldReason, HeldRow, OutboxStore},
    telemetry::one_line,
    wire,
};

/// The dead letters of one target's outbox and of one broker's consumers.
pub struct DeadLetters<S: OutboxStore, B> {
    bus: Bus<S>,
    broker: B,
}

/// Which dead letters.
#[derive(Debug, Clone, Default)]
#[allow(
    clippy::exhaustive_structs,
    reason = "callers build it with `..Default::default()`"
)]
pub struct DeadLetterFilter {
    /// Only those of this consumer; leaves out rows of the outbox.
    pub consumer: Option<String>,
    /// Only rows of the outbox with a higher id: for paging.
    pub after_outbox: i64,
    /// Only messages of consumers with a higher number: for paging.
    pub after_consumer: u64,
    /// At most this many of each side; 0 means 100.
    pub limit: u32,
}

/// A dead letter without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterSummary {
    /// Its id.
    pub id: DeadLetterId,
    /// The consumer that gave it up; `None` for a row of the outbox.
    pub consumer: Option<String>,
    /// The message's id, if it could be read.
    pub message_id: Option<Uuid>,
    /// The event's stable name, if it could be read.
    pub event_type: Option<String>,
    /// The subject.
    pub subject: String,
    /// The ordering key.
    pub key: Option<String>,
    /// Why it is dead.
    pub reason: String,
    /// The last error, on one line.
    pub error: String,
    /// The first error, if another.
    pub first_error: Option<String>,
    /// Counted failures.
    pub attempts: u32,
    /// How often the consumer got it; `None` for a row of the outbox.
    pub deliveries: Option<u64>,
    /// How often it had been replayed.
    pub replays: u32,
    /// When it failed first, if that is known: of a row, when it was first held.
    pub first_failed_at: Option<OffsetDateTime>,
    /// When it was given up.
    pub dead_at: OffsetDateTime,
    /// Where the original is stored; `None` for a row of the outbox.
    pub origin: Option<Origin>,
    /// The body's size in bytes.
    pub size: usize,
}

/// A dead letter with its headers and body.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterDetail {
    /// What a listing shows.
    pub summary: DeadLetterSummary,
    /// The headers as they were or would be on the wire.
    pub headers: Headers,
    /// The body. Showing it is the caller's decision: it may hold personal data.
    pub payload: Bytes,
}

impl fmt::Debug for DeadLetterDetail {
    /// Shows neither header values nor the body: both can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterDetail")
            .field("summary", &self.summary)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl<S: OutboxStore, B: Broker> DeadLetters<S, B> {
    pub(super) const fn new(bus: Bus<S>, broker: B) -> Self {
        Self { bus, broker }
    }

    /// Lists dead letters, oldest first, the outbox's before the consumers'.
    ///
    /// # Errors
    ///
    /// [`OperateError`].
    pub async fn list(
        &self,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetterSummary>, OperateError> {
        let limit = if filter.limit == 0 { 100 } else { filter.limit };
        let mut found = Vec::new();
        if filter.consumer.is_none() {
            self.list_rows(filter.after_outbox, limit, &mut found)
                .await?;
        }
        self.list_letters(filter, limit as usize, &mut found)
            .await?;
        Ok(found)
    }

    /// Adds up to `limit` letters of consumers, a part at a time.
    async fn list_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: usize,
        found: &mut Vec<DeadLetterSummary>,
    ) -> Result<(), OperateError> {
        let (consumer, mut after) = (filter.consumer.as_deref(), filter.after_consumer);
        let mut left = limit;
        while left > 0 {
            let letters = self.broker.dead_letters(consumer, after, left).await?;
            let Some((last, _)) = letters.last() else {
                break;
            };
            after = *last;
            left = left.saturating_sub(letters.len());
            let summaries = letters
                .iter()
                .map(|(number, letter)| of_letter(*number, letter));
            found.extend(summaries);
        }
        Ok(())
    }

    /// Adds up to `limit` dead rows. Large ones are read a part at a time, and their bodies dropped.
    async fn list_rows(
        &self,
        mut after: i64,
        limit: u32,
        found: &mut Vec<DeadLetterSummary>,
    ) -> Result<(), OperateError> {
        let mut left = limit;
        while left > 0 {
            let dead = HeldFilter {
                reasons: vec![HeldReason::Dead],
                after_id: Some(after),
                limit: left,
                max_bytes: super::LISTING_BYTES,
                ..HeldFilter::default()
            };
            let rows = self.bus.store().held(self.bus.target_name(), &dead).await?;
            let Some(last) = rows.last() else { break };
            after = last.id;
            left = left.saturating_sub(u32::try_from(rows.len()).unwrap_or(left));
            found.extend(rows.iter().map(of_row));
        }
        Ok(())
    }

    /// One dead letter with its body; `None` if there is none of this id (any more).
    ///
    /// # Errors
    ///
    /// [`OperateError`].
    pub async fn show(&self, id: DeadLetterId) -> Result<Option<DeadLetterDetail>, OperateError> {
        match id {
            DeadLetterId::Outbox(id) => {
                let row = self
                    .bus
                    .store()
                    .held_row(self.bus.target_name(), id)
                    .await?;
                Ok(row
                    .filter(|row| row.reason == HeldReason::Dead)
                    .map(|row| DeadLetterDetail {
                        summary: of_row(&row),
                        headers: wire::outgoing(&row.row, self.bus.prepare().source())
                            .map(|message| message.headers)
                            .unwrap_or_default(),
                        payload: row.row.payload,
                    }))
            }
            DeadLetterId::Consumer(number) => {
                let letter = self.broker.dead_letter_by_number(number).await?;
                Ok(letter.map(|letter| DeadLetterDetail {
                    summary: of_letter(number, &letter),
                    headers: letter.message.headers,
                    payload: letter.message.payload,
                }))
            }
        }
    }

    /// Sends a dead letter on its way again, with no attempts spent: a row to the broker, a message
    /// to the one consumer that gave it up. `false` if it is not there (any more), so that repeating
    /// it is harmless.
    ///
    /// # Errors
    ///
    /// [`OperateError`]; the letter is still there.
    pub async fn replay(&self, id: DeadLetterId) -> Result<bool, OperateError> {
        match id {
            DeadLetterId::Outbox(id) => {
                let replayed = self
                    .bus
                    .store()
                    .replay_dead(self.bus.target_name(), id)
                    .await?;
                self.bus.wake();
                Ok(replayed)
            }
            DeadLetterId::Consumer(number) => Ok(self.broker.replay(number).await?),
        }
    }

    /// Gives a dead letter up for good. `false` if it is not there (any more).
    ///
    /// # Errors
    ///
    /// [`OperateError`].
    pub async fn discard(&self, id: DeadLetterId) -> Result<bool, OperateError> {
        match id {
            DeadLetterId::Outbox(id) => {
                let discarded = self
                    .bus
                    .store()
                    .discard_dead(self.bus.target_name(), id)
                    .await?;
                self.bus.wake();
                Ok(discarded)
            }
            DeadLetterId::Consumer(number) => Ok(self.broker.discard(number).await?),
        }
    }
}

fn of_row(held: &HeldRow) -> DeadLetterSummary {
    DeadLetterSummary {
        id: DeadLetterId::Outbox(held.id),
        consumer: None,
        message_id: Some(held.row.id),
        event_type: Some(one_line(&held.row.event_type, 200)),
        subject: one_line(&held.row.subject, 200),
        key: held.row.key.as_deref().map(|key| one_line(key, 200)),
        reason: "not-published".to_owned(),
        error: one_line(held.last_error.as_deref().unwrap_or("unknown"), 1000),
        first_error: held
            .first_error
            .as_deref()
            .filter(|first| Some(*first) != held.last_error.as_deref())
            .map(|error| one_line(error, 1000)),
        attempts: held.attempts,
        deliveries: None,
        replays: 0,
        first_failed_at: Some(held.held_at),
        dead_at: held.changed_at,
        origin: None,
        size: held.row.payload.len(),
    }
}

fn of_letter(number: u64, letter: &DeadLetter) -> DeadLetterSummary {
    let envelope = wire::incoming(&letter.message, letter.origin.stored_at).ok();
    DeadLetterSummary {
        id: DeadLetterId::Consumer(number),
        consumer: Some(one_line(&letter.consumer, 200)),
        message_id: envelope.as_ref().map(|envelope| envelope.id),
        event_type: envelope
            .as_ref()
            .map(|envelope| one_line(&envelope.event_type, 200)),
        subject: one_line(&letter.message.subject, 200),
        key: envelope
            .and_then(|envelope| envelope.key)
            .map(|key| one_line(&key, 200)),
        reason: letter.reason.to_string(),
        error: one_line(&letter.error, 1000),
        first_error: letter
            .first_error
            .as_deref()
            .map(|error| one_line(error, 1000)),
        attempts: letter.attempts,
        deliveries: Some(letter.deliveries),
        replays: letter.replays,
        first_failed_at: letter.first_failed_at,
        dead_at: letter.dead_at,
        origin: Some(letter.origin.clone()),
        size: letter.message.payload.len(),
    }
}

impl<S: OutboxStore, B> fmt::Debug for DeadLetters<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters")
            .field("bus", &self.bus)
            .finish_non_exhaustive()
    }
}
