//! The steps of a pull.

use std::{
    fmt,
    time::{Duration, Instant},
};

use outbox_core::broker::{BrokerError, BrokerErrorKind};

use super::{
    JetStreamSubscription,
    inbox::{Arrival, Inbox},
    status::Status,
};

const SHORT_PAUSE: Duration = Duration::from_millis(250);
const LONG_PAUSE: Duration = Duration::from_secs(1);

impl JetStreamSubscription {
    /// Puts an arrival where it belongs.
    pub(super) fn take(&mut self, arrival: Arrival) -> Result<(), BrokerError> {
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

    pub(super) fn gather(&mut self) -> Result<(), BrokerError> {
        while let Some(arrival) = self.inbox.as_mut().and_then(Inbox::ready) {
            self.take(arrival)?;
        }
        Ok(())
    }

    /// Drops what may have waited here for longer than its ack wait: nobody looked for a while.
    pub(super) fn drop_stale(&mut self) -> Result<(), BrokerError> {
        let gap = self.looked.elapsed();
        self.looked = Instant::now();
        if gap > self.durable.ack_wait / 2 {
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
    pub(super) async fn listen(&mut self) -> Result<(), BrokerError> {
        if self.inbox.is_some() {
            return Ok(());
        }
        let life = self.api.link.up().await?;
        if self.losses.are_suspicious() {
            let found = self.losses.look_into(&self.api, &self.durable).await;
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

    pub(super) async fn ask(&mut self, demand: usize) -> Result<(), BrokerError> {
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
    pub(super) async fn wait(&mut self) -> Result<(), BrokerError> {
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

    fn error(&self, kind: BrokerErrorKind, what: impl fmt::Display) -> BrokerError {
        BrokerError::new(kind, format!("{self} {what}"))
    }
}
