//! Where the messages of a subscription arrive, on one connection.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;

use super::{demand::Demand, reply::Delivery, status::Status};
use crate::link::{CallError, Life};

/// How long a pull request lives, and how often the server says that it still does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) expires: Duration,
    pub(super) heartbeat: Duration,
    /// The most messages that the durable lets a request ask for.
    pub(super) max_batch: usize,
}

impl Timing {
    /// Silence for so long means that nobody works on the requests any more.
    fn patience(&self) -> Duration {
        self.heartbeat * 2 + Duration::from_secs(1)
    }
}

/// What arrived.
#[derive(Debug)]
pub(super) enum Arrival {
    Message(Box<Message>),
    Status(Status),
    /// The connection is over.
    Over,
}

#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) life: Arc<Life>,
    subscriber: Subscriber,
    /// What the reply subjects of requests begin with, dot included.
    prefix: String,
    pub(super) demand: Demand,
    heard: Instant,
    /// How many messages were read, statuses included.
    read: u64,
}

impl Inbox {
    pub(super) async fn open(life: Arc<Life>) -> Result<Self, CallError> {
        let prefix = format!("{}.", life.client.new_inbox());
        let subscribing = life.client.subscribe(format!("{prefix}*"));
        let subscriber = match tokio::time::timeout(Duration::from_secs(5), subscribing).await {
            Ok(Ok(subscriber)) => subscriber,
            Ok(Err(_)) => return Err(CallError::Disconnected),
            Err(_) => return Err(CallError::TimedOut),
        };
        Ok(Self {
            life,
            subscriber,
            prefix,
            demand: Demand::default(),
            heard: Instant::now(),
            read: 0,
        })
    }

    /// Asks for `batch` more messages.
    pub(super) async fn ask(
        &mut self,
        subject: &Subject,
        batch: usize,
        timing: &Timing,
    ) -> Result<(), CallError> {
        let batch = batch.min(timing.max_batch);
        let request = json!({
            "batch": batch,
            "expires": nanos(timing.expires),
            "idle_heartbeat": nanos(timing.heartbeat),
        });
        let number = self.demand.next_number();
        let reply = format!("{}{number}", self.prefix);
        let payload = Bytes::from(request.to_string());
        if self.demand.outstanding() == 0 {
            self.heard = Instant::now();
        }
        self.life
            .publish(
                subject.clone(),
                Some(reply),
                payload,
                Duration::from_secs(5),
            )
            .await?;
        // Counted only now: nothing is lost if this future is dropped before.
        self.demand.requested(number, batch);
        Ok(())
    }

    /// What has arrived and not been looked at.
    pub(super) fn ready(&mut self) -> Option<Arrival> {
        self.subscriber
            .next()
            .now_or_never()
            .map(|message| self.sort(message))
    }

    /// Waits for the next arrival.
    pub(super) async fn next(&mut self) -> Arrival {
        let message = self.subscriber.next().await;
        self.sort(message)
    }

    fn sort(&mut self, message: Option<Message>) -> Arrival {
        let Some(message) = message else {
            return Arrival::Over;
        };
        self.heard = Instant::now();
        self.read += 1;
        // A stored message may carry any status line that its publisher liked; only its reply
        // subject tells that it is a delivery.
        let delivered = message
            .reply
            .as_ref()
            .is_some_and(|reply| Delivery::parse(reply).is_some());
        let number = message
            .subject
            .strip_prefix(self.prefix.as_str())
            .and_then(|number| number.parse().ok());
        match (delivered, number, Status::of(&message)) {
            (false, Some(number), Some(status)) => {
                match &status {
                    Status::Ended { left } | Status::Paused { left, .. } => {
                        self.demand.ended(number, *left)
                    }
                    Status::NoResponders | Status::Deleted | Status::Unusable { .. } => {
                        self.demand.reset()
                    }
                    Status::Heartbeat => {}
                }
                Arrival::Status(status)
            }
            _ => {
                self.demand.arrived();
                Arrival::Message(Box::new(message))
            }
        }
    }

    /// Whether requests are open and the server has been silent about them for too long.
    pub(super) fn is_silent(&self, timing: &Timing) -> bool {
        self.demand.outstanding() > 0 && self.heard.elapsed() > timing.patience()
    }

    /// Why the server refuses this inbox, if it does.
    pub(super) fn refused(&self) -> Option<Arc<str>> {
        self.life.refused(&format!("{}*", self.prefix))
    }

    /// Ends the subscription. What is under way still arrives, and then [`Arrival::Over`].
    ///
    /// async-nats' own drain forgets a subscription with the next thing that it does after telling the
    /// server, and drops what the server had sent by then. So both are told to end it after a number
    /// of messages that is beyond all that may be under way, and what is missing to that number is
    /// filled up with refusals: a pull request that cannot be read is answered with a status. Server
    /// and client count the same messages, so nothing is sent that is not received.
    pub(super) async fn end(&mut self, subject: &Subject) -> Result<(), CallError> {
        if self.demand.outstanding() == 0 {
            let ended = self.subscriber.unsubscribe().await;
            return ended.map_err(|_| CallError::Disconnected);
        }
        let more = self.demand.most_under_way();
        let ended = self.subscriber.unsubscribe_after(self.read + more).await;
        ended.map_err(|_| CallError::Disconnected)?;
        for _ in 0..more {
            let (reply, unreadable) = (format!("{}0", self.prefix), Bytes::from_static(b"{"));
            self.life
                .publish(
                    subject.clone(),
                    Some(reply),
                    unreadable,
                    Duration::from_secs(1),
                )
                .await?;
        }
        Ok(())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
