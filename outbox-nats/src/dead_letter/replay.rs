//! Dead letters that go to their consumer again.

use async_nats::Message;
use outbox_core::broker::{Delivered, WireMessage};

use super::{DeadLetters, letter};
use crate::{
    api::{Api, ApiError},
    subscription::{Delivery, JetStreamDelivery},
    wire,
};

/// The copy by which a dead letter is replayed: of no use once it is settled.
#[derive(Debug, Clone)]
pub(crate) struct ReplayCopy {
    stream: String,
    sequence: u64,
    /// Where the body is, if it is apart.
    body: Option<u64>,
}

impl ReplayCopy {
    /// The message has been handled.
    pub(crate) async fn done(&self, api: &Api) {
        self.delete(api, self.sequence).await;
        if let Some(body) = self.body {
            self.delete(api, body).await;
        }
    }

    /// The message was given up again: its new letter refers to the same body.
    pub(crate) async fn given_up(&self, api: &Api) {
        self.delete(api, self.sequence).await;
    }

    async fn delete(&self, api: &Api, sequence: u64) {
        // It is settled: what is left only takes up room.
        if let Err(error) = api.delete_message(&self.stream, sequence).await {
            tracing::warn!(
                "message {sequence} of stream `{}` is no longer needed, but cannot be deleted: {error}",
                self.stream
            );
        }
    }
}

impl DeadLetters {
    /// Makes a delivery of a replayed dead letter; `None` if it cannot be made now.
    pub(crate) async fn delivered(
        &self,
        message: &Message,
    ) -> Option<Delivered<JetStreamDelivery>> {
        let reply = message.reply.clone()?;
        let delivery = Delivery::parse(&reply)?;
        let headers = message
            .headers
            .as_ref()
            .map(wire::from_nats)
            .unwrap_or_default();
        let body = letter::body(&headers);
        let copy = ReplayCopy {
            stream: delivery.stream.clone(),
            sequence: delivery.sequence,
            body,
        };
        let handle = JetStreamDelivery::new(self.api.clone(), reply, Some(copy));
        let original = match body {
            None => letter::original(&headers, &headers, message.payload.clone()),
            Some(body) => match self.body(&headers, body).await {
                Ok(original) => original,
                Err(error) => {
                    tracing::warn!(
                        "the body of a replayed dead letter cannot be read yet: {error}"
                    );
                    return None;
                }
            },
        };
        let place = letter::place(&headers);
        if place.is_none() {
            tracing::warn!(
                "message {} of stream `{}` is no replay of ours",
                delivery.sequence,
                delivery.stream
            );
        }
        Some(Delivered {
            message: original,
            origin: place.map_or_else(
                || outbox_core::broker::Origin {
                    stream: delivery.stream,
                    sequence: delivery.sequence,
                    stored_at: delivery.stored_at,
                },
                |place| place.origin(),
            ),
            deliveries: delivery.deliveries,
            replay: Some(letter::number(&headers, letter::REPLAYS).max(1)),
            handle,
        })
    }

    /// The original message of a letter or replay whose content is apart.
    pub(super) async fn body(
        &self,
        headers: &outbox_core::Headers,
        sequence: u64,
    ) -> Result<WireMessage, ApiError> {
        let Some(stored) = self.api.message_at(&self.stream, sequence).await? else {
            tracing::error!(
                "the body of a dead letter, message {sequence} of stream `{}`, is gone",
                self.stream
            );
            return Ok(letter::original(
                headers,
                &outbox_core::Headers::new(),
                bytes::Bytes::new(),
            ));
        };
        Ok(letter::original(headers, &stored.headers(), stored.payload))
    }
}
