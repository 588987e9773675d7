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
//! | messages waited unread here for most of the ack wait | they are dropped: others have them by now |
//! | a stored message has headers that end our connection | see the source of `unreadable` |

mod demand;
mod handle;
mod inbox;
mod reply;
mod status;
mod unreadable;

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use async_nats::{Message, Subject};
use outbox_core::broker::{
    BrokerError, BrokerErrorKind, Delivered, Origin, Pending, Subscription, WireMessage,
};
use serde_json::Value;

pub use self::handle::JetStreamDelivery;
use self::{
    inbox::{Arrival, Inbox, Timing},
    status::Status,
    unreadable::Losses,
};
pub(crate) use self::{reply::Delivery, unreadable::RAW_HEADERS};
use crate::{
    api::{Api, ConsumerInfo},
    dead_letter::DeadLetters,
    topology::consumer::Durable,
    wire,
};

/// Short, since a request that outlives its silent network swallows a message until the ack wait.
const EXPIRES: Duration = Duration::from_secs(8);
const HEARTBEAT: Duration = Duration::from_secs(3);
const SHORT_PAUSE: Duration = Duration::from_millis(250);
const LONG_PAUSE: Duration = Duration::from_secs(1);

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

    /// Puts an arrival where it belongs.
    fn take(&mut self, arrival: Arrival) -> Result<(), BrokerError> {
        match arrival {
            Arrival::Message(message) => self.arrived.push_back(*message),
            Arrival::Over => {
                if let Some(inbox) = self.inbox.take() {
                    self.losses.connection_lost(inbox.demand.outstanding() > 0);
                }
            }
            Arrival::Status(Status::Heartbeat | Status::Ended { .. }) => {}
            Arrival::Status(Status::Paused { why, .. }) => {
                tracing::info!("{self}: the server ended a pull request: {why}");
                self.paused_until = Some(Instant::now() + SHORT_PAUSE);
            }
            Arrival::Status(Status::NoResponders) => {
                self.doubtful = true;
                self.paused_until = Some(Instant::now() + SHORT_PAUSE);
            }
            Arrival::Status(Status::Deleted) => {
                return Err(self.error(BrokerErrorKind::Other, "was deleted"));
            }
            Arrival::Status(Status::Unusable { why }) => {
                return Err(self.error(
                    BrokerErrorKind::Configuration,
                    format_args!("cannot be pulled from: {why}"),
                ));
            }
        }
        Ok(())
    }

    fn gather(&mut self) -> Result<(), BrokerError> {
        while let Some(arrival) = self.inbox.as_mut().and_then(Inbox::ready) {
            self.take(arrival)?;
        }
        Ok(())
    }

    /// Drops what may have waited here for longer than its ack wait: nobody looked for a while.
    fn drop_stale(&mut self) -> Result<(), BrokerError> {
        let gap = self.looked.elapsed();
        self.looked = Instant::now();
        if gap > self.durable.ack_wait.mul_f32(0.75) {
            self.gather()?;
            if !self.arrived.is_empty() {
                tracing::warn!(
                    "{self}: {} messages waited too long here and will be delivered again",
                    self.arrived.len()
                );
                self.arrived.clear();
            }
        }
        Ok(())
    }

    /// Opens an inbox on the present connection, if there is none.
    async fn listen(&mut self) -> Result<(), BrokerError> {
        if self.inbox.is_some() {
            return Ok(());
        }
        let life = self.api.link.up().await?;
        if self.losses.are_suspicious() {
            let found = unreadable::find(&self.api, &self.durable).await;
            self.losses.looked_into();
            self.unreadable.extend(found);
        }
        match Inbox::open(life).await {
            Ok(inbox) => self.inbox = Some(inbox),
            // The connection has just ended; wait for the next.
            Err(_) => tokio::time::sleep(SHORT_PAUSE).await,
        }
        Ok(())
    }

    /// Looks the durable up after something strange; `false` if it does not answer. It is not asked
    /// for messages until it does: they might be sent to where nobody hears them.
    async fn look_up(&mut self) -> Result<bool, BrokerError> {
        if !self.doubtful {
            return Ok(true);
        }
        match self
            .api
            .consumer(&self.durable.stream, &self.durable.name)
            .await
        {
            Err(error) if error.is_missing() => {
                return Err(self.error(BrokerErrorKind::Other, "is gone"));
            }
            Err(error) if !error.is_denied() => {
                tracing::warn!("{self} cannot be looked up: {error}");
                self.paused_until = Some(Instant::now() + LONG_PAUSE);
            }
            Ok(_) | Err(_) => self.doubtful = false,
        }
        Ok(!self.doubtful)
    }

    async fn ask(&mut self, demand: usize) -> Result<(), BrokerError> {
        if self
            .paused_until
            .is_some_and(|until| until > Instant::now())
        {
            return Ok(());
        }
        self.paused_until = None;
        if !self.look_up().await? {
            return Ok(());
        }
        let Some(inbox) = &mut self.inbox else {
            return Ok(());
        };
        if let Some(text) = inbox
            .refused()
            .or_else(|| inbox.life.refused(&self.pull_subject))
        {
            return Err(self.error(
                BrokerErrorKind::Configuration,
                format_args!("cannot be pulled from: {text}"),
            ));
        }
        if inbox.is_silent(&self.timing) {
            tracing::warn!(
                "consumer `{}` of stream `{}`: the server fell silent about a pull request; asking again",
                self.durable.name,
                self.durable.stream
            );
            inbox.demand.reset();
            self.doubtful = true;
            return Ok(());
        }
        // If it is not sent, the connection is over, which shows by itself.
        if let Some(batch) = inbox.demand.shortfall(demand)
            && inbox
                .ask(&self.pull_subject, batch, &self.timing)
                .await
                .is_err()
        {
            self.paused_until = Some(Instant::now() + SHORT_PAUSE);
        }
        Ok(())
    }

    /// Waits for an arrival, or until something else may be due.
    async fn wait(&mut self) -> Result<(), BrokerError> {
        if self.doubtful && self.paused_until.is_none() {
            return Ok(());
        }
        let mut rest = Duration::from_secs(1).min(self.durable.ack_wait / 4);
        if let Some(until) = self.paused_until {
            rest = rest.min(until.saturating_duration_since(Instant::now()));
        }
        let Some(inbox) = &mut self.inbox else {
            return Ok(());
        };
        if let Ok(arrival) =
            tokio::time::timeout(rest.max(Duration::from_millis(1)), inbox.next()).await
        {
            self.take(arrival)?;
        }
        Ok(())
    }

    /// Makes deliveries of what arrived.
    async fn deliver(&mut self, demand: usize) -> Vec<Delivered<JetStreamDelivery>> {
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

    fn error(&self, kind: BrokerErrorKind, what: impl fmt::Display) -> BrokerError {
        BrokerError::new(kind, format!("{self} {what}"))
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
        let over = Instant::now() + Duration::from_millis(300);
        // Messages that are under way are lost when the inbox goes, so let them arrive first: if
        // there is a backlog, they come at once.
        while let Some(inbox) = &mut self.inbox
            && inbox.demand.outstanding() > 0
            && Instant::now() < over
        {
            let Ok(arrival) = tokio::time::timeout(Duration::from_millis(30), inbox.next()).await
            else {
                break;
            };
            if self.take(arrival).is_err() {
                break;
            }
        }
        if let Some(inbox) = &mut self.inbox {
            inbox.drain().await;
        }
        while let Some(inbox) = &mut self.inbox {
            let next = tokio::time::timeout(Duration::from_millis(500), inbox.next()).await;
            if next.map_or(true, |arrival| self.take(arrival).is_err()) {
                break;
            }
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

/// Makes a delivery of a message; `None` if it is none.
fn delivered(api: &Api, message: &Message) -> Option<Delivered<JetStreamDelivery>> {
    let reply = message.reply.clone()?;
    let Some(delivery) = Delivery::parse(&reply) else {
        tracing::warn!(
            "a message on `{}` that no stream delivered is ignored",
            message.subject
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
