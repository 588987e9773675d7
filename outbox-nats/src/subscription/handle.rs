//! Settles deliveries.

use std::{fmt, time::Duration};

use async_nats::Subject;
use bytes::Bytes;
use outbox_core::broker::{BrokerError, BrokerErrorKind, DeliveryHandle};

use crate::{
    api::Api,
    dead_letter::ReplayCopy,
    link::{CallError, Life},
    text::one_line,
};

/// The longest reason that the server is told, in bytes.
const MAX_REASON: usize = 256;

/// Settles one delivery. Each answer is a request, so that it is known to have arrived.
pub struct JetStreamDelivery {
    api: Api,
    reply: Subject,
    /// What is to be tidied up once a replayed dead letter is settled.
    copy: Option<ReplayCopy>,
}

impl JetStreamDelivery {
    pub(crate) fn new(api: Api, reply: Subject, copy: Option<ReplayCopy>) -> Self {
        Self { api, reply, copy }
    }

    async fn settle(&self, what: &str, payload: Bytes) -> Result<(), BrokerError> {
        self.api
            .settle(&self.reply, payload)
            .await
            .map_err(|error| self.error(what, &error))
    }

    fn error(&self, what: &str, error: &CallError) -> BrokerError {
        let (kind, why) = match error {
            CallError::Disconnected => (
                BrokerErrorKind::Unavailable,
                "the connection to NATS is down",
            ),
            CallError::TimedOut => (BrokerErrorKind::Unavailable, "no answer in time"),
            CallError::NoResponders => (
                BrokerErrorKind::Unavailable,
                "its consumer is gone or has no leader",
            ),
            CallError::Denied(text) => (BrokerErrorKind::Configuration, text.as_ref()),
            CallError::Invalid(why) => (BrokerErrorKind::Other, why.as_str()),
        };
        BrokerError::new(
            kind,
            format!("could not {what} the message of `{}`: {why}", self.reply),
        )
    }
}

impl DeliveryHandle for JetStreamDelivery {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.settle("acknowledge", Bytes::from_static(b"+ACK"))
            .await?;
        if let Some(copy) = &self.copy {
            copy.done(&self.api).await;
        }
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        let payload = if delay.is_zero() {
            Bytes::from_static(b"-NAK")
        } else {
            let nanos = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX);
            Bytes::from(format!("-NAK {{\"delay\":{nanos}}}"))
        };
        self.settle("hand back", payload).await
    }

    async fn in_progress(&self) -> Result<(), BrokerError> {
        let failed = |error: &CallError| self.error("keep", error);
        let life = self
            .api
            .link
            .current()
            .ok_or_else(|| failed(&CallError::Disconnected))?;
        let refused = |life: &Life| life.refused(&self.reply);
        if let Some(text) = refused(&life) {
            return Err(failed(&CallError::Denied(text)));
        }
        let sent = life.publish(
            self.reply.clone(),
            None,
            Bytes::from_static(b"+WPI"),
            self.api.timeout,
        );
        sent.await.map_err(|error| failed(&error))
    }

    async fn terminate(&self, reason: &str) -> Result<(), BrokerError> {
        let reason = one_line(reason, MAX_REASON);
        let payload = if reason.is_empty() {
            "+TERM".to_owned()
        } else {
            format!("+TERM {reason}")
        };
        self.settle("give up", Bytes::from(payload)).await?;
        if let Some(copy) = &self.copy {
            copy.given_up(&self.api).await;
        }
        Ok(())
    }
}

impl fmt::Debug for JetStreamDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamDelivery")
            .field("reply", &self.reply.as_str())
            .finish_non_exhaustive()
    }
}
