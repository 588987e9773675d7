//! Stored messages whose headers end the connection that they are delivered over.
//!
//! Any client with the right to publish can store a header block that async-nats does not read:
//! bytes that are no UTF-8, a line without a colon, a carriage return inside a value. The server
//! delivers it, the client's parser gives up, and the connection is gone; after the ack wait the
//! same happens again, for ever, and takes what was delivered together with it along.
//!
//! So when connections break again and again while messages are expected, the stream is searched
//! for such messages, by a request whose answer carries headers in base64. What is found is handed
//! out as a delivery that has only [`RAW_HEADERS`], so that it ends up in the dead-letter queue.

use std::time::{Duration, Instant};

use async_nats::Subject;
use base64::{Engine, engine::general_purpose::STANDARD};
use outbox_core::{
    Headers,
    broker::{Delivered, Origin, WireMessage},
};

use super::JetStreamDelivery;
use crate::{
    api::{Api, ApiError, Stored, readable},
    topology::consumer::Durable,
};

/// The header with the unreadable header block in base64, at most 16 KiB of it.
pub(crate) const RAW_HEADERS: &str = "outbox-raw-headers";
const MAX_RAW: usize = 16 * 1024;

/// At most so many sequences are looked at in one search.
const MAX_SEARCHED: u64 = 1_000;
const PAUSE: Duration = Duration::from_secs(10);
const MEMORY: Duration = Duration::from_secs(600);

/// How often connections broke while messages were expected.
#[derive(Debug, Default)]
pub(super) struct Losses {
    last: Option<Instant>,
    /// Where the next search goes on, if the last did not reach the end.
    from: u64,
    suspicious: bool,
    searched: Option<Instant>,
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
        self.suspicious |= again && rested;
        self.last = Some(Instant::now());
    }

    pub(super) fn are_suspicious(&self) -> bool {
        self.suspicious
    }

    /// Searches what is delivered and not settled.
    ///
    /// If it is cancelled half-way, it is done again.
    pub(super) async fn look_into(
        &mut self,
        api: &Api,
        durable: &Durable,
    ) -> Vec<Delivered<JetStreamDelivery>> {
        let found = search(api, durable, self.from).await;
        self.suspicious = false;
        self.searched = Some(Instant::now());
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

/// Also returns where the next search is to go on.
async fn search(
    api: &Api,
    durable: &Durable,
    from: u64,
) -> Result<(Vec<Delivered<JetStreamDelivery>>, u64), ApiError> {
    let info = api.consumer(&durable.stream, &durable.name).await?;
    let mut found = Vec::new();
    let first = info.ack_floor.stream_seq + 1;
    let first = if from <= info.delivered.stream_seq {
        first.max(from)
    } else {
        first
    };
    let last = info.delivered.stream_seq.min(first + MAX_SEARCHED);
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
    let next = if last < info.delivered.stream_seq {
        last + 1
    } else {
        0
    };
    Ok((found, next))
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
