//! Ends letters: replays and discards them.

use outbox_core::broker::BrokerError;

use super::{DeadLetters, letter};

impl DeadLetters {
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
}
