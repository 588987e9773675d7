//! A broker inside the process, with JetStream's semantics and without its durability.
//!
//! For quick starts, embedded use, and users' tests. It has one stream that keeps everything until
//! the process ends, a duplicate window, durable consumers with delivery counts, ack wait,
//! redelivery and delayed negative acknowledgements, and dead letters with replay.

mod cursor;
mod dead_letters;
mod publisher;
mod subscription;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use time::OffsetDateTime;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

use self::cursor::{Cursor, Entry};
pub use self::{
    publisher::MemoryPublisher,
    subscription::{MemoryHandle, MemorySubscription},
};
use crate::broker::{
    Broker, BrokerError, BrokerErrorKind, Confirmed, ConsumerSpec, DeadLetter, Holding, Origin,
    Receipt, StartAt, WireMessage,
};

/// The name of the one stream.
const STREAM: &str = "memory";
/// JetStream's default duplicate window.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// A broker inside the process. Cheap to clone; clones are the same broker.
///
/// **It forgets everything when the process ends**: messages that have not been handled, messages that
/// wait for a retry, and dead letters. Their rows have left the outbox when it confirmed them, so they
/// are gone. Use it for tests and for trying things out, and a broker that stores messages, such as
/// `outbox-nats`, where losing them matters.
///
/// ```
/// use outbox_core::MemoryBroker;
///
/// let broker = MemoryBroker::new();
/// assert!(broker.messages().is_empty());
/// ```
#[derive(Debug, Clone, Default)]
pub struct MemoryBroker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something changed that a waiting subscription may want to know.
    changed: Notify,
    offline: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<Arc<Entry>>,
    /// When each id was stored, and its sequence.
    ids: HashMap<Uuid, (Instant, u64)>,
    replays: HashMap<String, Vec<Arc<Entry>>>,
    cursors: HashMap<(String, Kind), Cursor>,
    letters: BTreeMap<u64, DeadLetter>,
    last_letter: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Messages,
    Replays,
}

impl MemoryBroker {
    /// An empty broker.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All messages that were published so far, in order.
    #[must_use]
    pub fn messages(&self) -> Vec<WireMessage> {
        self.0
            .lock()
            .log
            .iter()
            .map(|entry| entry.message.clone())
            .collect()
    }

    /// Stores a second copy of a message, as happens when a confirmation was lost and the duplicate
    /// window has passed. Returns how many copies were made: one for each stored message of this id.
    ///
    /// For tests of what a duplicate does.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn duplicate(&self, id: Uuid) -> usize {
        let copies: Vec<_> = self
            .messages()
            .into_iter()
            .filter(|message| message.id == Some(id))
            .collect();
        let count = copies.len();
        for mut copy in copies {
            copy.id = None; // unknown to the duplicate window
            self.0.store(copy);
        }
        count
    }

    /// Makes the broker unreachable (`true`) or reachable again (`false`), for tests of outages.
    pub fn set_offline(&self, offline: bool) {
        self.0.offline.store(offline, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn online(&self) -> Result<(), BrokerError> {
        if self.offline.load(Ordering::Acquire) {
            return Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                "the in-process broker was taken offline",
            ));
        }
        Ok(())
    }

    fn store(&self, message: WireMessage) -> Receipt {
        let mut state = self.lock();
        let now = Instant::now();
        let receipt = |sequence, duplicate| Receipt {
            stream: Arc::from(STREAM),
            sequence,
            duplicate,
        };
        if let Some(id) = message.id {
            if let Some((stored, sequence)) = state.ids.get(&id)
                && now - *stored < DUPLICATE_WINDOW
            {
                return receipt(*sequence, true);
            }
            let sequence = state.log.len() as u64 + 1;
            state.ids.insert(id, (now, sequence));
        }
        let sequence = state.log.len() as u64 + 1;
        let origin = Origin {
            stream: STREAM.to_owned(),
            sequence,
            stored_at: OffsetDateTime::now_utc(),
        };
        state.log.push(Arc::new(Entry {
            message,
            origin,
            replay: None,
        }));
        drop(state);
        self.changed.notify_waiters();
        receipt(sequence, false)
    }

    fn open(self: &Arc<Self>, spec: &ConsumerSpec, kind: Kind) -> MemorySubscription {
        let mut state = self.lock();
        let end = state.log.len();
        let cursor = state
            .cursors
            .entry((spec.name.clone(), kind))
            .or_insert_with(|| {
                let start = if kind == Kind::Messages && spec.start == StartAt::Now {
                    end
                } else {
                    0
                };
                Cursor::new(start)
            });
        cursor.configure(
            spec.ack_wait,
            if kind == Kind::Messages {
                spec.subjects.clone()
            } else {
                Vec::new()
            },
        );
        MemorySubscription::new(Arc::clone(self), spec.name.clone(), kind)
    }
}

impl Broker for MemoryBroker {
    type Publisher = MemoryPublisher;
    type Subscription = MemorySubscription;

    async fn publisher(&self) -> Result<MemoryPublisher, BrokerError> {
        Ok(MemoryPublisher::new(Arc::clone(&self.0)))
    }

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<MemorySubscription, BrokerError> {
        self.0.online()?;
        Ok(self.0.open(spec, Kind::Messages))
    }

    async fn subscribe_replays(
        &self,
        spec: &ConsumerSpec,
    ) -> Result<MemorySubscription, BrokerError> {
        self.0.online()?;
        Ok(self.0.open(spec, Kind::Replays))
    }

    async fn dead_letter(&self, letter: &DeadLetter) -> Result<(), BrokerError> {
        self.0.online()?;
        self.0.lock().add_letter(letter);
        Ok(())
    }

    async fn dead_letters(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, DeadLetter)>, BrokerError> {
        self.0.online()?;
        Ok(self.0.lock().list_letters(consumer, after, limit))
    }

    async fn dead_letter_by_number(&self, number: u64) -> Result<Option<DeadLetter>, BrokerError> {
        self.0.online()?;
        Ok(self.0.lock().letters.get(&number).cloned())
    }

    async fn dead_letter_count(&self) -> Result<u64, BrokerError> {
        self.0.online()?;
        Ok(self.0.lock().letters.len() as u64)
    }

    async fn replay(&self, number: u64) -> Result<bool, BrokerError> {
        self.0.online()?;
        let replayed = self.0.lock().replay_letter(number);
        self.0.changed.notify_waiters();
        Ok(replayed)
    }

    async fn discard(&self, number: u64) -> Result<bool, BrokerError> {
        self.0.online()?;
        Ok(self.0.lock().letters.remove(&number).is_some())
    }

    async fn redelivery_horizon(&self, _: &ConsumerSpec) -> Result<Option<Duration>, BrokerError> {
        // What was settled does not come again, and nothing is left for a next process.
        Ok(Some(Duration::ZERO))
    }

    async fn look_up(&self, confirmed: &[Confirmed]) -> Result<Vec<Holding>, BrokerError> {
        self.0.online()?;
        let state = self.0.lock();
        let answers = confirmed.iter().map(|message| {
            let entry = usize::try_from(message.sequence.saturating_sub(1))
                .ok()
                .and_then(|place| state.log.get(place));
            let found = entry.is_some_and(|entry| {
                message.stream == STREAM
                    && entry.origin.sequence == message.sequence
                    && entry.message.id == Some(message.id)
            });
            if found {
                Holding::Present
            } else {
                Holding::Missing
            }
        });
        Ok(answers.collect())
    }
}
