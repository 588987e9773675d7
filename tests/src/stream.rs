//! What a JetStream stream holds.

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, RawMessageErrorKind, Stream};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

/// How many messages are asked for at once.
const IN_FLIGHT: usize = 64;

/// A message as a stream holds it.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Its position in the stream.
    pub sequence: u64,
    /// Its subject.
    pub subject: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its content.
    pub payload: Bytes,
}

impl StoredMessage {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(async_nats::HeaderValue::as_str)
    }

    /// The content as text.
    ///
    /// # Panics
    ///
    /// When it is not UTF-8.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("a payload in UTF-8")
    }
}

/// Creates a stream of the server's default settings for the subjects.
///
/// # Panics
///
/// When the server does not create it.
pub async fn create_stream(jetstream: &Context, name: &str, subjects: &[&str]) -> Stream {
    let subjects = subjects.iter().map(|&subject| subject.to_owned()).collect();
    let config = Config {
        name: name.to_owned(),
        subjects,
        ..Config::default()
    };
    jetstream
        .create_stream(config)
        .await
        .expect("create the stream")
}

/// How many messages a stream holds.
///
/// # Panics
///
/// When the stream cannot be asked.
pub async fn count_messages(jetstream: &Context, stream: &str) -> u64 {
    let stream = jetstream.get_stream(stream).await.expect("get the stream");
    stream.cached_info().state.messages
}

/// Every message that a stream holds, in its order, without consuming any.
///
/// # Panics
///
/// When the stream cannot be read.
pub async fn read_stream(jetstream: &Context, stream: &str) -> Vec<StoredMessage> {
    let stored = &jetstream.get_stream(stream).await.expect("get the stream");
    let state = &stored.cached_info().state;
    // A new stream's first sequence is 0, which is no message's.
    stream::iter(state.first_sequence.max(1)..=state.last_sequence)
        .map(
            async |sequence| match stored.get_raw_message(sequence).await {
                Ok(message) => Some(StoredMessage {
                    sequence: message.sequence,
                    subject: message.subject.to_string(),
                    headers: message.headers,
                    payload: message.payload,
                }),
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => None,
                Err(error) => panic!("read message {sequence}: {error}"),
            },
        )
        .buffered(IN_FLIGHT)
        .filter_map(std::future::ready)
        .collect()
        .await
}
