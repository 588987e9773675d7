//! What core asks of a broker: traits that a broker adapter implements.

use std::{fmt, future::Future, time::Duration};

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{error::BoxError, headers::Headers};

/// A broker that stores messages in streams and delivers them to named consumers.
///
/// Cheap to clone; clones share their connection.
pub trait Broker: Clone + Send + Sync + 'static {
    /// The relay's publishing side.
    type Publisher: Publisher;
    /// A consumer's delivering side.
    type Subscription: Subscription;

    /// A publisher with a connection of its own. Dropping it closes that connection, so that
    /// nothing that it still had queued is sent later.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] if the configuration is wrong; a broker that is away is no error.
    fn publisher(&self) -> impl Future<Output = Result<Self::Publisher, BrokerError>> + Send;

    /// Opens the consumer that `spec` describes, creating or verifying its durable.
    ///
    /// # Errors
    ///
    /// [`BrokerErrorKind::Configuration`] names what is wrong: no stream carries a subject, a
    /// setting differs, a right is missing. [`BrokerErrorKind::Unavailable`] may pass.
    fn subscribe(
        &self,
        spec: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, BrokerError>> + Send;

    /// Opens the consumer's private stream of replayed dead letters.
    ///
    /// # Errors
    ///
    /// As [`subscribe`](Self::subscribe).
    fn subscribe_replays(
        &self,
        spec: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, BrokerError>> + Send;

    /// Stores a dead letter and waits until that is confirmed. Storing the same letter again is
    /// recognised and succeeds.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: nothing is known to be stored; the original must not be settled.
    fn dead_letter(
        &self,
        letter: &DeadLetter,
    ) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Dead letters above `after`, oldest first, at most `limit`; of one consumer if given. Fewer if
    /// they are large: go on after the last until none comes.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    fn dead_letters(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(u64, DeadLetter)>, BrokerError>> + Send;

    /// One dead letter by its number.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    fn dead_letter_by_number(
        &self,
        number: u64,
    ) -> impl Future<Output = Result<Option<DeadLetter>, BrokerError>> + Send;

    /// How many dead letters there are.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    fn dead_letter_count(&self) -> impl Future<Output = Result<u64, BrokerError>> + Send;

    /// Sends a dead letter back to the consumer that failed, and to no other, then removes it.
    /// Repeating it is harmless. `false` if there is no such letter (any more).
    ///
    /// # Errors
    ///
    /// [`BrokerError`]; the letter is still there.
    fn replay(&self, number: u64) -> impl Future<Output = Result<bool, BrokerError>> + Send;

    /// Removes a dead letter. `false` if there is no such letter (any more).
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    fn discard(&self, number: u64) -> impl Future<Output = Result<bool, BrokerError>> + Send;

    /// The longest time after which a stream of this consumer can still redeliver a message, if it
    /// is bounded: inbox rows must be kept longer.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    fn redelivery_horizon(
        &self,
        spec: &ConsumerSpec,
    ) -> impl Future<Output = Result<Option<Duration>, BrokerError>> + Send;

    /// Looks whether messages that it confirmed once are still stored: an answer for each of
    /// `confirmed`, in their order. Callers ask for a few hundred at a time.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] if it cannot be told of one of them; a message is never taken for missing or for
    /// present then. A broker that does not implement this refuses.
    fn look_up(
        &self,
        confirmed: &[Confirmed],
    ) -> impl Future<Output = Result<Vec<Holding>, BrokerError>> + Send {
        let _ = confirmed;
        async {
            let message = "this broker cannot tell whether it still holds a message";
            Err(BrokerError::new(BrokerErrorKind::Configuration, message))
        }
    }
}

/// A message that a broker confirmed, and where it said that it had stored it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters read it")]
pub struct Confirmed {
    /// The message's id.
    pub id: Uuid,
    /// The stream.
    pub stream: String,
    /// Its sequence there.
    pub sequence: u64,
    /// How long ago it was confirmed, or a little less.
    pub age: Duration,
}

/// What has become of a message that a broker confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Holding {
    /// The stream has it at its place.
    Present,
    /// The stream does not have it, and its own settings explain that: it ages messages out, drops the
    /// oldest when it is full, or drops what has been consumed or replaced. Where they would explain a
    /// loss as well, the two cannot be told apart.
    Expired,
    /// The stream does not have it, has another message in its place, or does not exist, and nothing
    /// explains that: lost, or deleted by hand.
    Missing,
}

/// A message as it travels: subject, headers, bytes.
#[derive(Clone, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters build it")]
pub struct WireMessage {
    /// The message's id, where it is known: the broker's duplicate detection may use it.
    pub id: Option<Uuid>,
    /// The subject.
    pub subject: String,
    /// The headers.
    pub headers: Headers,
    /// The body.
    pub payload: Bytes,
}

impl fmt::Debug for WireMessage {
    /// Shows neither header values nor the body: both can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireMessage")
            .field("id", &self.id)
            .field("subject", &self.subject)
            .field("headers", &self.headers)
            .field("payload_len", &self.payload.len())
            .finish()
    }
}

/// The publishing side of a broker.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one message; resolves when the broker has confirmed or refused it, or after a
    /// time-out. The message is handed over at the first poll.
    fn publish(
        &self,
        message: WireMessage,
    ) -> impl Future<Output = Result<Receipt, PublishFailure>> + Send + 'static;

    /// Asks, without publishing, whether the stream that carries `subject` answers.
    ///
    /// # Errors
    ///
    /// Why it does not.
    fn probe(&self, subject: &str) -> impl Future<Output = Result<(), PublishFailure>> + Send;

    /// Whether the connection is up.
    fn connected(&self) -> bool;
}

/// The broker's confirmation that it has stored a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters build it")]
pub struct Receipt {
    /// The stream that stored it.
    pub stream: std::sync::Arc<str>,
    /// Its sequence there.
    pub sequence: u64,
    /// The broker had it already.
    pub duplicate: bool,
}

/// A message was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishFailure {
    kind: FailureKind,
    message: String,
}

/// Why a message was not confirmed, as far as the broker tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The connection is down. Says nothing about the message.
    Disconnected,
    /// The stream is full, has no leader, or is otherwise not able. Says nothing about the message.
    Unavailable,
    /// No stream carries the subject (or none answers for it).
    NoStream,
    /// No answer in time: it may have been stored.
    TimedOut,
    /// This message or its subject was refused: too large, not permitted, ...
    Rejected,
}

impl PublishFailure {
    /// A failure with a text that names the subject or stream and the broker's code, never the payload.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Why.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }
}

impl fmt::Display for PublishFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PublishFailure {}

/// What a consumer needs from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters read it")]
pub struct ConsumerSpec {
    /// The consumer's name: the durable.
    pub name: String,
    /// The subjects of its handlers' events.
    pub subjects: Vec<String>,
    /// How long the broker waits for a sign before it delivers again. Default 30 s.
    pub ack_wait: Duration,
    /// Which messages a new durable starts with.
    pub start: StartAt,
}

/// Which messages a consumer gets when its durable is first created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartAt {
    /// All that the stream still holds.
    #[default]
    Beginning,
    /// Only messages stored from then on.
    Now,
}

/// The delivering side of a broker for one consumer.
pub trait Subscription: Send + 'static {
    /// The handle of a delivered message.
    type Handle: DeliveryHandle;

    /// Waits for messages: at least one, at most `demand`, counting those asked for earlier and not
    /// yet returned. It recovers from outages by itself and logs them.
    ///
    /// # Cancel safety
    ///
    /// Nothing that was delivered is lost when the future is dropped: the next call returns it.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] if something is wrong that waiting does not mend by itself, for example a
    /// deleted durable; the caller opens the subscription again.
    fn pull(
        &mut self,
        demand: usize,
    ) -> impl Future<Output = Result<Vec<Delivered<Self::Handle>>, BrokerError>> + Send;

    /// Stops asking for messages and returns those that have already arrived, to be handed back.
    fn close(self) -> impl Future<Output = Vec<Delivered<Self::Handle>>> + Send;

    /// How many messages wait for this consumer, and how many are delivered and unsettled.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    fn pending(&self) -> impl Future<Output = Result<Pending, BrokerError>> + Send;
}

/// What lies between a stream and its consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters build it")]
pub struct Pending {
    /// Messages not delivered yet.
    pub waiting: u64,
    /// Messages delivered and not settled.
    pub unsettled: u64,
}

/// A delivered message.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters build it")]
pub struct Delivered<H> {
    /// The message.
    pub message: WireMessage,
    /// Where it is stored.
    pub origin: Origin,
    /// How often it has been delivered, this time included.
    pub deliveries: u64,
    /// Set if this is a replayed dead letter: how often it has been replayed, this time included.
    pub replay: Option<u32>,
    /// Settles it.
    pub handle: H,
}

/// Where a message is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters build it")]
pub struct Origin {
    /// The stream; for a replay, the original one.
    pub stream: String,
    /// The sequence in it.
    pub sequence: u64,
    /// When it was stored.
    pub stored_at: OffsetDateTime,
}

/// Settles one delivery. Each method resolves when the broker has confirmed.
pub trait DeliveryHandle: Send + Sync + 'static {
    /// The message is done.
    ///
    /// # Errors
    ///
    /// Not confirmed: it may be delivered again.
    fn ack(&self) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// The message is to be delivered again after `delay`.
    ///
    /// # Errors
    ///
    /// Not confirmed: it is delivered again after the ack wait.
    fn nak(&self, delay: Duration) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// The message is still being worked on: the ack wait starts anew.
    ///
    /// # Errors
    ///
    /// Not sent.
    fn in_progress(&self) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// The message is never to be delivered again to this consumer.
    ///
    /// # Errors
    ///
    /// Not confirmed: it may be delivered again.
    fn terminate(&self, reason: &str) -> impl Future<Output = Result<(), BrokerError>> + Send;
}

/// A message that a consumer gave up, with all that is needed to understand and replay it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "broker adapters build it")]
pub struct DeadLetter {
    /// The consumer that gave it up.
    pub consumer: String,
    /// Where the original is stored.
    pub origin: Origin,
    /// The original message.
    pub message: WireMessage,
    /// Why.
    pub reason: DeadReason,
    /// The last error's text.
    pub error: String,
    /// The first error's text, if another.
    pub first_error: Option<String>,
    /// Counted attempts.
    pub attempts: u32,
    /// Deliveries.
    pub deliveries: u64,
    /// How often it had been replayed before.
    pub replays: u32,
    /// When the first failure was recorded.
    pub first_failed_at: Option<OffsetDateTime>,
    /// When it was given up.
    pub dead_at: OffsetDateTime,
}

/// Why a consumer gave a message up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadReason {
    /// The headers or the payload cannot be read.
    Undecodable,
    /// No handler of this consumer takes an event of this type.
    UnknownType,
    /// The version is newer than this build knows.
    NewerVersion,
    /// The handler rejected it.
    Rejected,
    /// It failed as often as allowed.
    OutOfAttempts,
    /// It crashed its process as often as allowed.
    Crashed,
    /// The handler ended the transaction itself, so its effect may be half done.
    TransactionEnded,
}

impl DeadReason {
    const ALL: [Self; 7] = [
        Self::Undecodable,
        Self::UnknownType,
        Self::NewerVersion,
        Self::Rejected,
        Self::OutOfAttempts,
        Self::Crashed,
        Self::TransactionEnded,
    ];

    /// The name in headers and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::UnknownType => "unknown-type",
            Self::NewerVersion => "newer-version",
            Self::Rejected => "rejected",
            Self::OutOfAttempts => "out-of-attempts",
            Self::Crashed => "crashed",
            Self::TransactionEnded => "transaction-ended",
        }
    }

    /// The reason of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An error of the broker.
///
/// Its text names what was being done and to which stream, consumer or subject.
#[derive(Debug)]
pub struct BrokerError {
    kind: BrokerErrorKind,
    message: String,
    source: Option<BoxError>,
}

/// What kind of broker error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerErrorKind {
    /// The broker cannot be reached or does not answer; it may pass.
    Unavailable,
    /// Something must be configured: a stream, a durable, a right, a version.
    Configuration,
    /// The broker refused this message for good: too large, for example.
    Refused,
    /// Anything else.
    Other,
}

impl BrokerError {
    /// An error with its text.
    pub fn new(kind: BrokerErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of error it is.
    #[must_use]
    pub const fn kind(&self) -> BrokerErrorKind {
        self.kind
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BrokerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
