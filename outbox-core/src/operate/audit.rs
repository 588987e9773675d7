//! Comparing what was published with what the broker still holds, and publishing again what it lost.

use std::{fmt, time::Duration};

use time::OffsetDateTime;
use uuid::Uuid;

use super::OperateError;
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, Confirmed, Holding},
    bus::Bus,
    store::{ArchivedIds, ArchivedRow, OutboxStore},
    telemetry::one_line,
};

/// Archived rows that are read and looked up at a time.
const PAGE: u32 = 500;
/// Missing messages that a report shows at most.
const SHOWN: usize = 100;

impl<S: OutboxStore> Bus<S> {
    /// Compares the published events of this bus's target with what the broker holds. There is
    /// something to compare if its relay keeps them: see [`Retention::Keep`](crate::Retention::Keep).
    #[must_use]
    pub fn audit<B: Broker>(&self, broker: B) -> Audit<S, B> {
        Audit {
            bus: self.clone(),
            broker,
        }
    }
}

/// Compares one target's archive of published events with what its broker still holds.
///
/// ```no_run
/// use std::time::Duration;
///
/// use outbox_core::{AuditRange, Broker, Bus, OperateError, store::OutboxStore};
///
/// /// After the broker's power has failed and it is back.
/// async fn mend<S: OutboxStore>(bus: &Bus<S>, broker: impl Broker) -> Result<(), OperateError> {
///     let audit = bus.audit(broker);
///     let range = AuditRange {
///         oldest: Some(Duration::from_secs(3600)),
///         ..AuditRange::default()
///     };
///     let found = audit.check(&range).await?;
///     println!("{} of {} messages are missing", found.missing, found.checked);
///     if found.missing > 0 {
///         let mended = audit.republish(&range).await?;
///         println!("{} are on their way again", mended.republished);
///     }
///     Ok(())
/// }
/// ```
///
/// # What is guaranteed
///
/// A message counts as [`present`](AuditReport::present) only if the broker has shown it, at the place
/// where it was confirmed and with its id. If the broker does not answer, that is an error.
///
/// What is republished goes out at least once, with its old id and time. Consumers that have handled it
/// drop it, as long as their inbox remembers it.
///
/// # What is not
///
/// That a present message has reached the broker's disk: a broker that loses power a second time can
/// lose more. And the order of a key: a republished event comes after the later ones of its key that
/// were not lost.
pub struct Audit<S: OutboxStore, B> {
    bus: Bus<S>,
    broker: B,
}

/// Which published events, by how long ago they were confirmed; by default all that the archive has.
///
/// Times are those of the database's clock. Events that were archived at about the same time may be
/// checked as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_structs,
    reason = "callers build it with `..Default::default()`"
)]
pub struct AuditRange {
    /// Only those that were confirmed at most this long ago.
    pub oldest: Option<Duration>,
    /// Only those that were confirmed at least this long ago.
    pub newest: Option<Duration>,
}

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// Archived messages that were looked up: the sum of the next three.
    pub checked: u64,
    /// Those that the broker has shown, at their place and with their id.
    pub present: u64,
    /// Those that it does not have, which its stream's own settings explain: age, a limit that drops the
    /// oldest, or a stream that drops what was consumed or replaced.
    pub expired: u64,
    /// Those that it does not have, and nothing explains that.
    pub missing: u64,
    /// Those of the missing ones that were put back into the outbox; the relay publishes them again.
    pub republished: u64,
    /// The first missing messages, at most 100 of them.
    pub examples: Vec<MissingMessage>,
}

/// A message that the broker confirmed and does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingMessage {
    /// Its id.
    pub message_id: Uuid,
    /// The event's stable name.
    pub event_type: String,
    /// The subject.
    pub subject: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The stream that had confirmed it.
    pub stream: String,
    /// Its sequence there, then.
    pub sequence: u64,
    /// When it was confirmed, by the database's clock.
    pub published_at: OffsetDateTime,
}

impl<S: OutboxStore, B: Broker> Audit<S, B> {
    /// Looks each archived message up, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`OperateError`]: the database or the broker could not be asked. Nothing is known of what was not
    /// looked up yet.
    pub async fn check(&self, range: &AuditRange) -> Result<AuditReport, OperateError> {
        self.run(range, false).await
    }

    /// Looks each archived message up, and puts the missing ones back into the outbox, each in one
    /// transaction with its removal from the archive. The relay publishes them again under their old
    /// ids. Repeating it is harmless, also while another one runs.
    ///
    /// A broker that answers with its duplicate window's knowledge of a lost message has not stored it
    /// again; the next audit finds it missing as before. So repeat the audit until it finds nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check). What was put back before stays so.
    pub async fn republish(&self, range: &AuditRange) -> Result<AuditReport, OperateError> {
        self.run(range, true).await
    }

    async fn run(&self, range: &AuditRange, republish: bool) -> Result<AuditReport, OperateError> {
        let (store, target) = (self.bus.store(), self.bus.target_name());
        let mut report = AuditReport::default();
        // What is republished is archived anew beyond the last id, and so looked up once.
        let Some(ArchivedIds { mut first, last }) = store
            .archived_ids(target, range.oldest, range.newest)
            .await?
        else {
            return Ok(report);
        };
        loop {
            let page = store
                .archived(target, ArchivedIds { first, last }, PAGE)
                .await?;
            let Some(end) = page.last() else { break };
            first = end.id.saturating_add(1);
            let missing = self.missing(&page, &mut report).await?;
            if republish && !missing.is_empty() {
                report.republished += store.republish(target, &missing).await?;
                self.bus.wake();
            }
        }
        if republish {
            tracing::info!(
                target_name = target,
                checked = report.checked,
                missing = report.missing,
                republished = report.republished,
                "messages that the broker has lost are put back into the outbox"
            );
        }
        Ok(report)
    }

    /// Looks a page up; returns the ids of what is missing.
    async fn missing(
        &self,
        page: &[ArchivedRow],
        report: &mut AuditReport,
    ) -> Result<Vec<(i64, Uuid)>, OperateError> {
        let confirmed: Vec<_> = page.iter().map(confirmed).collect();
        let answers = self.broker.look_up(&confirmed).await?;
        if answers.len() != page.len() {
            let message = format!(
                "the broker was asked for {} messages and answered for {}",
                page.len(),
                answers.len()
            );
            return Err(BrokerError::new(BrokerErrorKind::Other, message).into());
        }
        let mut missing = Vec::new();
        for (row, holding) in page.iter().zip(answers) {
            report.checked += 1;
            match holding {
                Holding::Present => report.present += 1,
                Holding::Expired => report.expired += 1,
                Holding::Missing => {
                    report.missing += 1;
                    if report.examples.len() < SHOWN {
                        report.examples.push(shown(row));
                    }
                    missing.push((row.id, row.message_id));
                }
            }
        }
        Ok(missing)
    }
}

fn confirmed(row: &ArchivedRow) -> Confirmed {
    Confirmed {
        id: row.message_id,
        stream: row.stream.clone(),
        sequence: row.stream_seq,
        age: row.age,
    }
}

fn shown(row: &ArchivedRow) -> MissingMessage {
    MissingMessage {
        message_id: row.message_id,
        event_type: one_line(&row.event_type, 200),
        subject: one_line(&row.subject, 200),
        key: row.key.as_deref().map(|key| one_line(key, 200)),
        stream: one_line(&row.stream, 255),
        sequence: row.stream_seq,
        published_at: row.published_at,
    }
}

impl<S: OutboxStore, B> fmt::Debug for Audit<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("bus", &self.bus)
            .finish_non_exhaustive()
    }
}
