//! Lists and shows letters.

use outbox_core::broker::{BrokerError, DeadLetter};

use super::{DeadLetters, letter};
use crate::api::{ApiError, Stored, code};

/// The bodies of a page have so many bytes, and those of one letter more, at most.
const PAGE_BYTES: usize = 16 * 1024 * 1024;

impl DeadLetters {
    pub(crate) async fn list(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, DeadLetter)>, BrokerError> {
        let filter = self.subjects.letters(consumer);
        let mut letters = Vec::new();
        let mut from = after.saturating_add(1);
        let mut bytes = 0;
        while letters.len() < limit && bytes < PAGE_BYTES {
            let next = self.api.next_message(&self.stream, &filter, from).await;
            let Some(stored) = self.present(next)? else {
                break;
            };
            from = stored.sequence.saturating_add(1);
            let number = stored.sequence;
            if let Some(letter) = self.read(stored).await? {
                bytes += letter.message.payload.len();
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

    pub(super) async fn stored(&self, number: u64) -> Result<Option<Stored>, BrokerError> {
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
}
