//! The dead-letter queue: a stream of its own.
//!
//! | subject | holds |
//! |---|---|
//! | `<prefix>.letter.<consumer>.<stream>.<sequence>.<stored at>` | a dead letter: the original's headers and body, and `outbox-` headers that say what happened |
//! | the same with `.body` after it | headers and body of a letter that is too large for one message |
//! | `<prefix>.replay.<consumer>.<stream>.<sequence>.<stored at>.<number>` | the copy of letter `<number>` that goes to its consumer again |
//!
//! The stream keeps one message a subject and refuses a second, so whatever is repeated after a
//! crash or a lost answer is recognised.

mod letter;
mod place;
mod replay;

use outbox_core::broker::{BrokerError, BrokerErrorKind, DeadLetter, StartAt};
use serde_json::json;

use self::place::{Place, Subjects};
pub(crate) use self::replay::ReplayCopy;
use crate::{
    api::{Api, ApiError, Stored, code},
    link::CallError,
    topology::{Topology, consumer::Durable, stream::StreamSpec},
};

/// Refusals for the size of a message or its headers.
const TOO_LARGE: [u32; 2] = [10_054, 10_097];

/// The dead-letter queue.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    api: Api,
    pub(crate) stream: String,
    subjects: Subjects,
    spec: StreamSpec,
    topology: Topology,
}

impl DeadLetters {
    pub(crate) fn new(
        api: Api,
        stream: &str,
        prefix: &str,
        replicas: Option<u8>,
        topology: Topology,
    ) -> Self {
        let subjects = Subjects(prefix.to_owned());
        let mut spec = StreamSpec::new(stream, [subjects.all()])
            .setting("max_msgs_per_subject", json!(1))
            .setting("discard", json!("new"))
            .setting("discard_new_per_subject", json!(true));
        if let Some(replicas) = replicas {
            spec = spec.replicas(replicas);
        }
        Self {
            api,
            stream: stream.to_owned(),
            subjects,
            spec,
            topology,
        }
    }

    pub(crate) async fn ensure(&self) -> Result<(), BrokerError> {
        self.spec.ensure(&self.api, self.topology).await
    }

    /// The durable that reads a consumer's replays.
    pub(crate) fn replays(&self, consumer: &str, ack_wait: std::time::Duration) -> Durable {
        Durable {
            stream: self.stream.clone(),
            name: format!("{consumer}-replay"),
            filters: vec![self.subjects.replays(consumer)],
            ack_wait,
            start: StartAt::Beginning,
        }
    }

    /// Stores a letter, in two messages if it is too large for one.
    pub(crate) async fn store(&self, letter: &DeadLetter) -> Result<(), BrokerError> {
        match self.try_store(letter).await {
            // The stream has gone: put it back and try once more.
            Err(ApiError::Call { error: CallError::NoResponders, .. }) if self.topology != Topology::Verify => {
                self.ensure().await?;
                self.try_store(letter).await
            }
            other => other,
        }
        .map_err(|error| {
            let outbox_core::broker::Origin { stream, sequence, .. } = &letter.origin;
            let refused = is_too_large(&error) || matches!(&error, ApiError::Refused(refusal) if refusal.code < 500);
            let kind = if refused { BrokerErrorKind::Refused } else { error.kind() };
            BrokerError::new(
                kind,
                format!(
                    "could not store the dead letter of message {sequence} of stream `{stream}` in stream `{}`: {error}",
                    self.stream
                ),
            )
        })
    }

    async fn try_store(&self, letter: &DeadLetter) -> Result<(), ApiError> {
        let place = Place::new(&letter.consumer, &letter.origin);
        let subject = self.subjects.letter(&place);
        let originals = letter::originals(&letter.message.headers);
        let identity = letter::identity(&place, &letter.message);
        let mut history = letter::history(letter);
        let whole = letter::map([&originals, &identity, &history]);
        match self
            .put(
                &subject,
                &whole,
                &letter.message.payload,
                Some(letter.replays),
            )
            .await
        {
            Err(error) if is_too_large(&error) => {}
            other => return other.map(drop),
        }
        let content = letter::map([&originals]);
        let body = self
            .put(
                &self.subjects.body(&place),
                &content,
                &letter.message.payload,
                None,
            )
            .await?;
        history.append(letter::BODY, body.to_string());
        let pointer = letter::map([&identity, &history]);
        self.put(
            &subject,
            &pointer,
            &bytes::Bytes::new(),
            Some(letter.replays),
        )
        .await
        .map(drop)
    }

    /// Publishes one message, unless it is there already; returns its sequence.
    async fn put(
        &self,
        subject: &str,
        headers: &async_nats::HeaderMap,
        payload: &bytes::Bytes,
        replays: Option<u32>,
    ) -> Result<u64, ApiError> {
        let refused = match self.api.publish(subject, headers, payload).await {
            Err(error) if error.is(code::STORE_FAILED) => error,
            other => return other,
        };
        // Either the subject is taken or the stream is full: the code is the same.
        let Some(stored) = self.api.last_message(&self.stream, subject).await? else {
            return Err(refused);
        };
        let older = replays
            .is_some_and(|replays| letter::number(&stored.headers(), letter::REPLAYS) < replays);
        if !older {
            return Ok(stored.sequence);
        }
        // The letter before its replay, which died again: the replay's end was not recorded.
        self.api
            .delete_message(&self.stream, stored.sequence)
            .await?;
        self.api.publish(subject, headers, payload).await
    }

    pub(crate) async fn list(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, DeadLetter)>, BrokerError> {
        let filter = self.subjects.letters(consumer);
        let mut letters = Vec::new();
        let mut from = after.saturating_add(1);
        while letters.len() < limit {
            let next = self.api.next_message(&self.stream, &filter, from).await;
            let Some(stored) = self.present(next)? else {
                break;
            };
            from = stored.sequence.saturating_add(1);
            let number = stored.sequence;
            if let Some(letter) = self.read(stored).await? {
                letters.push((number, letter));
            }
        }
        Ok(letters)
    }

    pub(crate) async fn get(&self, number: u64) -> Result<Option<DeadLetter>, BrokerError> {
        match self.stored(number).await? {
            Some(stored) => self.read(stored).await,
            None => Ok(None),
        }
    }

    pub(crate) async fn count(&self) -> Result<u64, BrokerError> {
        match self
            .api
            .count_subjects(&self.stream, &self.subjects.letters(None))
            .await
        {
            Ok(count) => Ok(count),
            Err(error) if error.is(code::STREAM_NOT_FOUND) => Ok(0),
            Err(error) => Err(self.failed("count the dead letters", &error)),
        }
    }

    pub(crate) async fn replay(&self, number: u64) -> Result<bool, BrokerError> {
        let Some(stored) = self.stored(number).await? else {
            return Ok(false);
        };
        let Some(place) = self.subjects.letter_of(&stored.subject) else {
            return Ok(false);
        };
        let headers = stored.headers();
        let message = letter::original(&headers, &headers, stored.payload.clone());
        let mut identity = letter::identity(&place, &message);
        let replays = letter::number(&headers, letter::REPLAYS).saturating_add(1);
        identity.append(letter::REPLAYS, replays.to_string());
        if let Some(body) = letter::body(&headers) {
            identity.append(letter::BODY, body.to_string());
        }
        let copy = letter::map([&message.headers, &identity]);
        self.put(
            &self.subjects.replay(&place, number),
            &copy,
            &stored.payload,
            None,
        )
        .await
        .map_err(|error| self.failed(&format!("replay dead letter {number}"), &error))?;
        self.delete(number).await?;
        Ok(true)
    }

    pub(crate) async fn discard(&self, number: u64) -> Result<bool, BrokerError> {
        let Some(stored) = self.stored(number).await? else {
            return Ok(false);
        };
        if self.subjects.letter_of(&stored.subject).is_none() {
            return Ok(false);
        }
        let deleted = self.delete(number).await?;
        if let Some(body) = letter::body(&stored.headers()) {
            self.delete(body).await?;
        }
        Ok(deleted)
    }

    async fn delete(&self, number: u64) -> Result<bool, BrokerError> {
        let deleted = self.api.delete_message(&self.stream, number).await;
        deleted.map_err(|error| self.failed(&format!("delete message {number}"), &error))
    }

    async fn stored(&self, number: u64) -> Result<Option<Stored>, BrokerError> {
        // Sequences begin at 1; the server takes 0 for something else.
        if number == 0 {
            return Ok(None);
        }
        self.present(self.api.message_at(&self.stream, number).await)
    }

    /// A stream that does not exist holds no letters.
    fn present(
        &self,
        found: Result<Option<Stored>, ApiError>,
    ) -> Result<Option<Stored>, BrokerError> {
        match found {
            Err(error) if error.is(code::STREAM_NOT_FOUND) => Ok(None),
            Err(error) => Err(self.failed("read the dead letters", &error)),
            Ok(stored) => Ok(stored),
        }
    }

    async fn read(&self, stored: Stored) -> Result<Option<DeadLetter>, BrokerError> {
        let Some(place) = self.subjects.letter_of(&stored.subject) else {
            return Ok(None);
        };
        let headers = stored.headers();
        let message = match letter::body(&headers) {
            None => letter::original(&headers, &headers, stored.payload),
            Some(body) => self
                .body(&headers, body)
                .await
                .map_err(|error| self.failed("read the body of a dead letter", &error))?,
        };
        Ok(Some(letter::read(place, &headers, message)))
    }

    fn failed(&self, what: &str, error: &ApiError) -> BrokerError {
        error.while_doing(format_args!("{what} in stream `{}`", self.stream))
    }
}

fn is_too_large(error: &ApiError) -> bool {
    match error {
        ApiError::Call {
            error: CallError::Invalid(_),
            ..
        } => true,
        ApiError::Refused(refusal) => TOO_LARGE.contains(&refusal.err_code),
        ApiError::Call { .. } | ApiError::Unreadable(_) => false,
    }
}
