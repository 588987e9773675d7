//! Delivering: messages are pulled, a few at a time, as many as there is demand for.
//!
//! async-nats' own pull streams prefetch, never end when their consumer is gone, and lose a wake-up
//! in some versions; so the pull protocol is spoken here, over an inbox that lives as long as a
//! connection. What can go wrong, and what happens:
//!
//! | what | then |
//! |---|---|
//! | the connection breaks | a new inbox on the next connection asks at once |
//! | the server falls silent about a request (a lost leader) | after two missed heartbeats the durable is looked up and asked again |
//! | no responders | the durable is looked up: if it is there, a pause and another request |
//! | the durable or its stream is gone | [`pull`](Subscription::pull) returns an error; subscribing again creates it, unless the topology is only verified |
//! | messages waited unread here for half of the ack wait | they are dropped: others have them by now |
//! | a stored message has headers that end our connection | see the source of `unreadable` |

mod deliver;
mod demand;
mod handle;
mod inbox;
mod reply;
mod status;
mod steps;
mod unreadable;

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use async_nats::{Message, Subject};
use outbox_core::broker::{BrokerError, Delivered, Pending, Subscription};
use serde_json::Value;

pub use self::handle::JetStreamDelivery;
use self::{
    inbox::{Arrival, Inbox, Timing},
    unreadable::Losses,
};
pub(crate) use self::{reply::Delivery, unreadable::RAW_HEADERS};
use crate::{
    api::{Api, ConsumerInfo},
    dead_letter::DeadLetters,
    topology::consumer::Durable,
};

/// Short, since a request that outlives its silent network swallows a message until the ack wait.
const EXPIRES: Duration = Duration::from_secs(8);
const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long the end of a subscription may take.
const END: Duration = Duration::from_secs(1);

/// The deliveries of one durable.
///
/// Dropping it without [`close`](Subscription::close) leaves what has already been sent to wait for
/// the ack wait.
pub struct JetStreamSubscription {
    api: Api,
    durable: Durable,
    /// Set if this reads replayed dead letters.
    letters: Option<DeadLetters>,
    timing: Timing,
    pull_subject: Subject,
    inbox: Option<Inbox>,
    arrived: VecDeque<Message>,
    /// Found in the stream, since they cannot be delivered.
    unreadable: VecDeque<Delivered<JetStreamDelivery>>,
    losses: Losses,
    /// When arrivals were last looked at.
    looked: Instant,
    paused_until: Option<Instant>,
    /// The durable is to be looked up before it is asked again.
    doubtful: bool,
}

impl JetStreamSubscription {
    pub(crate) fn new(
        api: Api,
        durable: Durable,
        info: &ConsumerInfo,
        letters: Option<DeadLetters>,
    ) -> Self {
        let pull_subject = api
            .subject(&format!(
                "CONSUMER.MSG.NEXT.{}.{}",
                durable.stream, durable.name
            ))
            .into();
        let limit = |field| {
            info.config
                .get(field)
                .and_then(Value::as_u64)
                .filter(|limit| *limit > 0)
        };
        let expires =
            limit("max_expires").map_or(EXPIRES, |nanos| EXPIRES.min(Duration::from_nanos(nanos)));
        let timing = Timing {
            expires,
            heartbeat: HEARTBEAT.min(expires / 2),
            max_batch: limit("max_batch")
                .and_then(|batch| usize::try_from(batch).ok())
                .unwrap_or(usize::MAX),
        };
        Self {
            api,
            durable,
            letters,
            timing,
            pull_subject,
            inbox: None,
            arrived: VecDeque::new(),
            unreadable: VecDeque::new(),
            losses: Losses::default(),
            looked: Instant::now(),
            paused_until: None,
            doubtful: false,
        }
    }
}

impl Subscription for JetStreamSubscription {
    type Handle = JetStreamDelivery;

    async fn pull(&mut self, demand: usize) -> Result<Vec<Delivered<Self::Handle>>, BrokerError> {
        let demand = demand.max(1);
        loop {
            self.drop_stale()?;
            self.listen().await?;
            self.gather()?;
            if !(self.arrived.is_empty() && self.unreadable.is_empty()) {
                let ready = self.deliver(demand).await;
                if !ready.is_empty() {
                    return Ok(ready);
                }
            }
            self.ask(demand).await?;
            self.wait().await?;
        }
    }

    async fn close(mut self) -> Vec<Delivered<Self::Handle>> {
        let rest = async {
            let inbox = self.inbox.as_mut()?;
            inbox.end(&self.pull_subject).await.ok()?;
            loop {
                match inbox.next().await {
                    Arrival::Message(message) => self.arrived.push_back(*message),
                    Arrival::Status(_) => {}
                    Arrival::Over => return Some(()),
                }
            }
        };
        let ended = tokio::time::timeout(END, rest).await;
        if !matches!(ended, Ok(Some(()))) {
            tracing::debug!(
                "{self}: its end was not confirmed; what was under way comes again after the ack wait"
            );
        }
        self.deliver(usize::MAX).await
    }

    async fn pending(&self) -> Result<Pending, BrokerError> {
        match self
            .api
            .consumer(&self.durable.stream, &self.durable.name)
            .await
        {
            Ok(info) => Ok(Pending {
                waiting: info.num_pending,
                unsettled: info.num_ack_pending,
            }),
            Err(error) => Err(error.while_doing(format_args!("ask for the backlog of {self}"))),
        }
    }
}

impl fmt::Display for JetStreamSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "consumer `{}` of stream `{}`",
            self.durable.name, self.durable.stream
        )
    }
}

impl fmt::Debug for JetStreamSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamSubscription")
            .field("stream", &self.durable.stream)
            .field("consumer", &self.durable.name)
            .finish_non_exhaustive()
    }
}
