//! Stores letters.

use outbox_core::broker::{BrokerError, BrokerErrorKind, DeadLetter, Origin};

use super::{DeadLetters, letter, place::Place};
use crate::{
    api::{ApiError, code},
    link::CallError,
    topology::Topology,
};

/// Refusals for the size of a message or its headers.
const TOO_LARGE: [u32; 2] = [10_054, 10_097];

impl DeadLetters {
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
            let Origin { stream, sequence, .. } = &letter.origin;
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
    pub(super) async fn put(
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
