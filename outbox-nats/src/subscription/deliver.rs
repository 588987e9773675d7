//! Makes deliveries of messages.

use async_nats::Message;
use outbox_core::broker::{Delivered, Origin, WireMessage};

use super::{Delivery, JetStreamDelivery, JetStreamSubscription};
use crate::{api::Api, text::one_line, wire};

impl JetStreamSubscription {
    /// Makes deliveries of what arrived.
    pub(super) async fn deliver(&mut self, demand: usize) -> Vec<Delivered<JetStreamDelivery>> {
        let mut ready: Vec<_> = {
            let count = self.unreadable.len().min(demand);
            self.unreadable.drain(..count).collect()
        };
        while ready.len() < demand {
            // Taken out only when it is complete: this future may be dropped at any `await`.
            let Some(message) = self.arrived.front() else {
                break;
            };
            let delivered = match &self.letters {
                None => delivered(&self.api, message),
                Some(letters) => letters.delivered(message).await,
            };
            self.arrived.pop_front();
            ready.extend(delivered);
        }
        ready
    }
}

/// Makes a delivery of a message; `None` if it is none.
fn delivered(api: &Api, message: &Message) -> Option<Delivered<JetStreamDelivery>> {
    let reply = message.reply.clone()?;
    let Some(delivery) = Delivery::parse(&reply) else {
        tracing::warn!(
            "a message on `{}` that no stream delivered is ignored",
            one_line(&message.subject, 200)
        );
        return None;
    };
    let headers = message
        .headers
        .as_ref()
        .map(wire::from_nats)
        .unwrap_or_default();
    Some(Delivered {
        message: WireMessage {
            id: headers.get("Nats-Msg-Id").and_then(|id| id.parse().ok()),
            subject: message.subject.to_string(),
            headers,
            payload: message.payload.clone(),
        },
        origin: Origin {
            stream: delivery.stream,
            sequence: delivery.sequence,
            stored_at: delivery.stored_at,
        },
        deliveries: delivery.deliveries,
        replay: None,
        handle: JetStreamDelivery::new(api.clone(), reply, None),
    })
}
