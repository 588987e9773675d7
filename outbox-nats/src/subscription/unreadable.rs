//! Stored messages whose headers end the connection that they are delivered over.
//!
//! Any client with the right to publish can store a header block that async-nats does not read:
//! bytes that are no UTF-8, a line without a colon, a carriage return inside a value. The server
//! delivers it, the client's parser gives up, and the connection is gone; after the ack wait the
//! same happens again, for ever, and takes what was delivered together with it along.
//!
//! So when a connection breaks while messages are expected, the end of what was delivered is searched
//! for such messages, by requests whose answers carry headers in base64, and all of it if connections
//! break again. What is found is handed out as a delivery that has only [`RAW_HEADERS`], so that it
//! ends up in the dead-letter queue before it is delivered a second time.

use std::time::{Duration, Instant};

use async_nats::Subject;
use base64::{Engine, engine::general_purpose::STANDARD};
use outbox_core::{
    Headers,
    broker::{Delivered, Origin, WireMessage},
};

use super::JetStreamDelivery;
use crate::{
    api::{Api, ApiError, ConsumerInfo, Stored, readable},
    topology::consumer::Durable,
};

/// The header with the unreadable header block in base64, at most 16 KiB of it.
pub(crate) const RAW_HEADERS: &str = "outbox-raw-headers";
const MAX_RAW: usize = 16 * 1024;

/// At most so many sequences are looked at in one search.
const MAX_SEARCHED: u64 = 1_000;
/// So many after a single loss, whose cause is most often a network or a server: it must not hold up
/// the next connection.
const RECENT: u64 = 200;
const HASTE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(10);
const MEMORY: Duration = Duration::from_secs(600);

/// How often connections broke while messages were expected.
#[derive(Debug, Default)]
pub(super) struct Losses {
    last: Option<Instant>,
    /// Where the next search goes on, if the last did not reach the end.
    from: u64,
    suspicion: Option<Reach>,
    searched: Option<Instant>,
    /// The right to search is missing, which each try would put into the server's log and ours.
    denied: bool,
}

/// What is to be searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// What was delivered last.
    Recent,
    /// All that is delivered and not settled.
    All,
}

impl Losses {
    pub(super) fn connection_lost(&mut self, expecting: bool) {
        if !expecting {
            return;
        }
        let again = self.last.is_some_and(|last| last.elapsed() < MEMORY);
        let rested = self
            .searched
            .is_none_or(|searched| searched.elapsed() > PAUSE);
        if rested && (again || !self.denied) {
            self.suspicion = Some(if again { Reach::All } else { Reach::Recent });
        }
        self.last = Some(Instant::now());
    }

    pub(super) fn are_suspicious(&self) -> bool {
        self.suspicion.is_some()
    }

    /// Searches what is delivered and not settled.
    ///
    /// If it is cancelled half-way, it is done again.
    pub(super) async fn look_into(
        &mut self,
        api: &Api,
        durable: &Durable,
    ) -> Vec<Delivered<JetStreamDelivery>> {
        let found = match self.suspicion {
            None => return Vec::new(),
            Some(Reach::Recent) => {
                let searching = tokio::time::timeout(HASTE, search_recent(api, durable)).await;
                self.denied = matches!(&searching, Ok(Err(error)) if error.is_denied());
                // If it failed and there is one, the next loss tells.
                let found = searching.ok().and_then(Result::ok).unwrap_or_default();
                Ok((found, self.from))
            }
            Some(Reach::All) => search(api, durable, self.from).await,
        };
        self.suspicion = None;
        // A search that was worth it may be repeated at once: where one is, others may follow.
        self.searched = match &found {
            Ok((found, _)) if !found.is_empty() => None,
            _ => Some(Instant::now()),
        };
        let Durable { stream, name, .. } = durable;
        match found {
            Ok((found, from)) => {
                self.from = from;
                return found;
            }
            Err(error) if error.is_denied() => tracing::debug!("{error}"),
            Err(error) => tracing::warn!(
                "the connection broke repeatedly while consumer `{name}` expected messages, and \
                 stream `{stream}` cannot be searched for one that breaks it: {error}"
            ),
        }
        Vec::new()
    }
}

/// Searches the end of what is delivered and not settled.
async fn search_recent(
    api: &Api,
    durable: &Durable,
) -> Result<Vec<Delivered<JetStreamDelivery>>, ApiError> {
    let info = api.consumer(&durable.stream, &durable.name).await?;
    let last = info.delivered.stream_seq;
    let first = (info.ack_floor.stream_seq + 1).max(last.saturating_sub(RECENT));
    between(api, durable, &info, first, last).await
}

/// Also returns where the next search is to go on.
async fn search(
    api: &Api,
    durable: &Durable,
    from: u64,
) -> Result<(Vec<Delivered<JetStreamDelivery>>, u64), ApiError> {
    let info = api.consumer(&durable.stream, &durable.name).await?;
    let first = info.ack_floor.stream_seq + 1;
    let first = if from <= info.delivered.stream_seq {
        first.max(from)
    } else {
        first
    };
    let last = info.delivered.stream_seq.min(first + MAX_SEARCHED);
    let found = between(api, durable, &info, first, last).await?;
    let next = if last < info.delivered.stream_seq {
        last + 1
    } else {
        0
    };
    Ok((found, next))
}

/// The unreadable messages from `first` to `last`.
async fn between(
    api: &Api,
    durable: &Durable,
    info: &ConsumerInfo,
    first: u64,
    last: u64,
) -> Result<Vec<Delivered<JetStreamDelivery>>, ApiError> {
    let mut found = Vec::new();
    for filter in &durable.filters {
        let mut sequence = first;
        while sequence <= last {
            let Some(stored) = api.next_message(&durable.stream, filter, sequence).await? else {
                break;
            };
            if stored.sequence > last {
                break;
            }
            sequence = stored.sequence + 1;
            // The answer is JSON, in which bytes of a subject that are no UTF-8 look like this.
            let strange_subject = stored.subject.contains(char::REPLACEMENT_CHARACTER);
            if strange_subject || readable(&stored.raw_headers).is_none() {
                tracing::error!(
                    "message {} of stream `{}` has headers or a subject that cannot be read and break the connection",
                    stored.sequence,
                    durable.stream
                );
                found.push(delivery(api, durable, stored, info.delivered.consumer_seq));
            }
        }
    }
    Ok(found)
}

fn delivery(
    api: &Api,
    durable: &Durable,
    stored: Stored,
    last_delivery: u64,
) -> Delivered<JetStreamDelivery> {
    let mut headers = Headers::new();
    let raw = stored
        .raw_headers
        .get(..MAX_RAW)
        .unwrap_or(&stored.raw_headers);
    headers.append(RAW_HEADERS, STANDARD.encode(raw));
    // The server finds the delivery by the message's sequence; of the delivery's own it only wants
    // to know that it is not an old one.
    let reply = format!(
        "$JS.ACK.{}.{}.2.{}.{last_delivery}.{}.0",
        durable.stream,
        durable.name,
        stored.sequence,
        stored.stored_at.unix_timestamp_nanos()
    );
    Delivered {
        message: WireMessage {
            id: None,
            subject: stored.subject,
            headers,
            payload: stored.payload,
        },
        origin: Origin {
            stream: durable.stream.clone(),
            sequence: stored.sequence,
            stored_at: stored.stored_at,
        },
        deliveries: 2,
        replay: None,
        handle: JetStreamDelivery::new(api.clone(), Subject::from(reply), None),
    }
}
