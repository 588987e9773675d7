//! Requests to the JetStream API.
//!
//! async-nats has its own; this one sees permission violations at once, forgets requests that are
//! never answered, and leaves settings alone that this version knows nothing about.

mod error;
mod stored;

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

pub(crate) use self::{
    error::{ApiError, Refusal, code},
    stored::{Stored, readable},
};
use crate::link::{CallError, Link};

/// The settings of a stream or a consumer, as JSON.
pub(crate) type Settings = Map<String, Value>;

/// The JetStream API over a link.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) link: Link,
    /// What its subjects begin with: `$JS.API`, or `$JS.<domain>.API`.
    prefix: String,
    pub(crate) timeout: Duration,
}

#[derive(Deserialize)]
struct Answer<T> {
    error: Option<Refusal>,
    #[serde(flatten)]
    body: Option<T>,
}

/// What is known of a stream.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) config: Settings,
    #[serde(default)]
    pub(crate) state: StreamState,
}

/// Which sequences a stream has.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct StreamState {
    #[serde(default)]
    pub(crate) first_seq: u64,
    #[serde(default)]
    pub(crate) last_seq: u64,
}

/// What is known of a consumer.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ConsumerInfo {
    pub(crate) config: Settings,
    #[serde(default)]
    pub(crate) num_pending: u64,
    #[serde(default)]
    pub(crate) num_ack_pending: u64,
    #[serde(default)]
    pub(crate) delivered: Position,
    #[serde(default)]
    pub(crate) ack_floor: Position,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct Position {
    #[serde(default)]
    pub(crate) stream_seq: u64,
    #[serde(default)]
    pub(crate) consumer_seq: u64,
}

impl Api {
    pub(crate) fn new(link: Link, domain: Option<&str>, timeout: Duration) -> Self {
        let prefix = domain.map_or_else(
            || "$JS.API".to_owned(),
            |domain| format!("$JS.{domain}.API"),
        );
        Self {
            link,
            prefix,
            timeout,
        }
    }

    /// The subject of a request.
    pub(crate) fn subject(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }

    async fn request<T: DeserializeOwned>(
        &self,
        suffix: &str,
        body: &Value,
    ) -> Result<T, ApiError> {
        self.request_within(suffix, body, self.timeout).await
    }

    async fn request_within<T: DeserializeOwned>(
        &self,
        suffix: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<T, ApiError> {
        let subject = self.subject(suffix);
        let payload = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(body.to_string())
        };
        let reply = self
            .link
            .call(&Subject::from(subject.as_str()), None, &payload, timeout)
            .await;
        match reply {
            Ok(reply) => {
                let answer: Answer<Value> = parse(&reply.payload)?;
                match answer {
                    Answer {
                        error: Some(refusal),
                        ..
                    } => Err(ApiError::Refused(refusal)),
                    Answer { body, .. } => serde_json::from_value(body.unwrap_or_default())
                        .map_err(|error| ApiError::Unreadable(error.to_string())),
                }
            }
            Err(error) => {
                let jetstream = self
                    .link
                    .current()
                    .is_none_or(|life| life.client.server_info().jetstream);
                Err(ApiError::Call {
                    error,
                    subject,
                    jetstream,
                })
            }
        }
    }

    /// Whether JetStream answers at all.
    pub(crate) async fn account(&self) -> Result<(), ApiError> {
        self.request::<Value>("INFO", &Value::Null).await.map(drop)
    }

    /// The names of the streams that carry `subject`, or any part of it.
    pub(crate) async fn streams_of(&self, subject: &str) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        struct Names {
            #[serde(default)]
            streams: Option<Vec<String>>,
        }
        let names: Names = self
            .request("STREAM.NAMES", &json!({ "subject": subject }))
            .await?;
        Ok(names.streams.unwrap_or_default())
    }

    /// Whether a stream that carries `subject` answers, asked with less patience.
    pub(crate) async fn probe(&self, subject: &str, timeout: Duration) -> Result<bool, ApiError> {
        let names: Value = self
            .request_within("STREAM.NAMES", &json!({ "subject": subject }), timeout)
            .await?;
        let Some(stream) = names.pointer("/streams/0").and_then(Value::as_str) else {
            return Ok(false);
        };
        self.request_within::<Value>(&format!("STREAM.INFO.{stream}"), &Value::Null, timeout)
            .await?;
        Ok(true)
    }

    pub(crate) async fn stream(&self, name: &str) -> Result<StreamInfo, ApiError> {
        self.request(&format!("STREAM.INFO.{name}"), &Value::Null)
            .await
    }

    pub(crate) async fn create_stream(
        &self,
        name: &str,
        settings: Settings,
    ) -> Result<(), ApiError> {
        self.request::<Value>(&format!("STREAM.CREATE.{name}"), &Value::Object(settings))
            .await
            .map(drop)
    }

    pub(crate) async fn update_stream(
        &self,
        name: &str,
        settings: Settings,
    ) -> Result<(), ApiError> {
        self.request::<Value>(&format!("STREAM.UPDATE.{name}"), &Value::Object(settings))
            .await
            .map(drop)
    }

    /// How many subjects of a stream match a filter.
    pub(crate) async fn count_subjects(&self, stream: &str, filter: &str) -> Result<u64, ApiError> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            total: u64,
        }
        // An offset beyond the end: the total without the subjects themselves.
        let body = json!({ "subjects_filter": filter, "offset": i32::MAX });
        let page: Page = self
            .request(&format!("STREAM.INFO.{stream}"), &body)
            .await?;
        Ok(page.total)
    }

    pub(crate) async fn consumer(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<ConsumerInfo, ApiError> {
        self.request(&format!("CONSUMER.INFO.{stream}.{name}"), &Value::Null)
            .await
    }

    /// Creates or updates a consumer; `action` is `create` or `update`.
    pub(crate) async fn put_consumer(
        &self,
        stream: &str,
        name: &str,
        settings: &Settings,
        action: &str,
    ) -> Result<ConsumerInfo, ApiError> {
        let body = json!({ "stream_name": stream, "config": settings, "action": action });
        self.request(&format!("CONSUMER.CREATE.{stream}.{name}"), &body)
            .await
    }

    /// A stored message; `None` if there is none (any more).
    async fn message(&self, stream: &str, which: &Value) -> Result<Option<Stored>, ApiError> {
        #[derive(Deserialize)]
        struct Found {
            message: stored::Encoded,
        }
        match self
            .request::<Found>(&format!("STREAM.MSG.GET.{stream}"), which)
            .await
        {
            Ok(found) => found.message.decode().map(Some),
            Err(error) if error.is(code::NO_MESSAGE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn message_at(
        &self,
        stream: &str,
        sequence: u64,
    ) -> Result<Option<Stored>, ApiError> {
        self.message(stream, &json!({ "seq": sequence })).await
    }

    /// The first message from `sequence` on whose subject matches.
    pub(crate) async fn next_message(
        &self,
        stream: &str,
        filter: &str,
        sequence: u64,
    ) -> Result<Option<Stored>, ApiError> {
        self.message(stream, &json!({ "seq": sequence, "next_by_subj": filter }))
            .await
    }

    pub(crate) async fn last_message(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<Stored>, ApiError> {
        self.message(stream, &json!({ "last_by_subj": subject }))
            .await
    }

    /// Deletes a stored message; `false` if it was not there.
    pub(crate) async fn delete_message(
        &self,
        stream: &str,
        sequence: u64,
    ) -> Result<bool, ApiError> {
        // Without overwriting its blocks: they are not secrets that must not be recovered.
        let body = json!({ "seq": sequence, "no_erase": true });
        match self
            .request::<Value>(&format!("STREAM.MSG.DELETE.{stream}"), &body)
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if error.is(code::SEQUENCE_NOT_FOUND) || error.is(code::NO_MESSAGE) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Publishes on a stream's subject and waits for its confirmation: the sequence.
    pub(crate) async fn publish(
        &self,
        subject: &str,
        headers: &async_nats::HeaderMap,
        payload: &Bytes,
    ) -> Result<u64, ApiError> {
        #[derive(Deserialize)]
        struct Ack {
            seq: u64,
        }
        let reply = self
            .link
            .call(
                &Subject::from(subject),
                Some(headers),
                payload,
                self.timeout,
            )
            .await;
        let reply = reply.map_err(|error| ApiError::Call {
            error,
            subject: subject.to_owned(),
            jetstream: true,
        })?;
        match parse::<Answer<Value>>(&reply.payload)? {
            Answer {
                error: Some(refusal),
                ..
            } => Err(ApiError::Refused(refusal)),
            Answer { body, .. } => serde_json::from_value::<Ack>(body.unwrap_or_default())
                .map(|ack| ack.seq)
                .map_err(|_| {
                    ApiError::Unreadable("something other than a stream answered".to_owned())
                }),
        }
    }

    /// Settles a delivery: a request, so that it is known to have arrived.
    pub(crate) async fn settle(&self, reply: &Subject, payload: Bytes) -> Result<(), CallError> {
        self.link
            .call(reply, None, &payload, self.timeout)
            .await
            .map(drop)
    }
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(payload).map_err(|error| ApiError::Unreadable(error.to_string()))
}
