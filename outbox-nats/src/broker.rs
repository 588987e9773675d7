//! The broker.

use std::{fmt, sync::Arc, time::Duration};

use outbox_core::broker::{
    Broker, BrokerError, BrokerErrorKind, Confirmed, ConsumerSpec, DeadLetter, Holding,
};
use serde_json::Value;

use crate::{
    api::Api,
    audit,
    builder::JetStreamBuilder,
    dead_letter::DeadLetters,
    link::{ConnectSettings, Link},
    provision::Provision,
    publisher::JetStreamPublisher,
    subscription::JetStreamSubscription,
    topology::{StreamSpec, consumer::Durable, locate::stream_of},
};

/// NATS JetStream as the broker of an outbox.
///
/// Cheap to clone; clones share one connection, and each [`publisher`](Broker::publisher) has one
/// of its own. A lost connection is made again by itself, for as long as a clone, a subscription or
/// a publisher exists.
#[derive(Clone)]
pub struct JetStream {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: Arc<ConnectSettings>,
    pub(crate) domain: Option<String>,
    pub(crate) request_timeout: Duration,
    pub(crate) ack_timeout: Duration,
    pub(crate) api: Api,
    pub(crate) provision: Arc<Provision>,
    pub(crate) letters: DeadLetters,
}

impl JetStream {
    /// Connects with default settings; see [`JetStreamBuilder::connect`] for the URL.
    ///
    /// # Errors
    ///
    /// As [`JetStreamBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, BrokerError> {
        Self::builder().connect(url).await
    }

    /// Sets up credentials, TLS, streams and what else there is.
    pub fn builder() -> JetStreamBuilder {
        JetStreamBuilder::default()
    }

    pub(crate) fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Whether the shared connection is up.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.api.link.current().is_some()
    }

    /// Why the shared connection is down: what the last attempt to connect ended with.
    #[must_use]
    pub fn connection_error(&self) -> Option<BrokerError> {
        self.inner
            .api
            .link
            .why_down()
            .as_deref()
            .map(BrokerError::from)
    }

    /// The stream that a consumer reads.
    async fn stream_of(&self, spec: &ConsumerSpec) -> Result<String, BrokerError> {
        stream_of(
            &self.inner.api,
            &self.inner.provision.streams,
            &spec.subjects,
        )
        .await
    }
}

impl Broker for JetStream {
    type Publisher = JetStreamPublisher;
    type Subscription = JetStreamSubscription;

    async fn publisher(&self) -> Result<Self::Publisher, BrokerError> {
        let Inner {
            settings,
            domain,
            request_timeout,
            ack_timeout,
            provision,
            ..
        } = &*self.inner;
        let link = Link::open(settings.clone());
        match link.first_outcome().await {
            Ok(_) => {}
            Err(error) if error.kind == BrokerErrorKind::Configuration => {
                return Err(BrokerError::from(&*error));
            }
            // The broker is away; the link goes on trying.
            Err(_) => {}
        }
        let api = Api::new(link.clone(), domain.as_deref(), *request_timeout);
        Ok(JetStreamPublisher::new(
            link,
            api,
            provision.clone(),
            *ack_timeout,
        ))
    }

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<Self::Subscription, BrokerError> {
        check_name(&spec.name)?;
        let Inner { api, provision, .. } = &*self.inner;
        provision.ensure_once().await?;
        let stream = match self.stream_of(spec).await {
            Err(error) if error.kind() == BrokerErrorKind::Configuration => {
                // Perhaps the server came back empty.
                provision.create_missing().await?;
                self.stream_of(spec).await?
            }
            stream => stream?,
        };
        provision.warn_of_losses(&stream).await?;
        let durable = Durable {
            stream,
            name: spec.name.clone(),
            filters: spec.subjects.clone(),
            ack_wait: spec.ack_wait,
            start: spec.start,
        };
        let info = durable.ensure(api, provision.topology).await?;
        Ok(JetStreamSubscription::new(
            api.clone(),
            durable,
            &info,
            None,
        ))
    }

    async fn subscribe_replays(
        &self,
        spec: &ConsumerSpec,
    ) -> Result<Self::Subscription, BrokerError> {
        check_name(&spec.name)?;
        let Inner {
            api,
            provision,
            letters,
            ..
        } = &*self.inner;
        letters.ensure().await?;
        let durable = letters.replays(&spec.name, spec.ack_wait);
        let info = durable.ensure(api, provision.topology).await?;
        Ok(JetStreamSubscription::new(
            api.clone(),
            durable,
            &info,
            Some(letters.clone()),
        ))
    }

    async fn dead_letter(&self, letter: &DeadLetter) -> Result<(), BrokerError> {
        self.inner.letters.store(letter).await
    }

    async fn dead_letters(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, DeadLetter)>, BrokerError> {
        if let Some(consumer) = consumer {
            check_name(consumer)?;
        }
        self.inner.letters.list(consumer, after, limit).await
    }

    async fn dead_letter_by_number(&self, number: u64) -> Result<Option<DeadLetter>, BrokerError> {
        self.inner.letters.get(number).await
    }

    async fn dead_letter_count(&self) -> Result<u64, BrokerError> {
        self.inner.letters.count().await
    }

    async fn replay(&self, number: u64) -> Result<bool, BrokerError> {
        self.inner.letters.replay(number).await
    }

    async fn discard(&self, number: u64) -> Result<bool, BrokerError> {
        self.inner.letters.discard(number).await
    }

    async fn redelivery_horizon(
        &self,
        spec: &ConsumerSpec,
    ) -> Result<Option<Duration>, BrokerError> {
        let stream = self.stream_of(spec).await?;
        match self.inner.api.stream(&stream).await {
            Ok(info) => {
                let age = info.config.get("max_age").and_then(Value::as_u64);
                Ok(age.filter(|age| *age > 0).map(Duration::from_nanos))
            }
            // Without the right to look, what the application says of the stream counts.
            Err(error) if error.is_denied() => {
                let streams = &self.inner.provision.streams;
                Ok(streams
                    .iter()
                    .find(|spec| spec.name == stream)
                    .and_then(StreamSpec::age))
            }
            Err(error) => {
                Err(error.while_doing(format_args!("read the settings of stream `{stream}`")))
            }
        }
    }

    async fn look_up(&self, confirmed: &[Confirmed]) -> Result<Vec<Holding>, BrokerError> {
        audit::look_up(&self.inner.api, confirmed).await
    }
}

/// Checks that a consumer's name can be a durable's, and a token of a subject.
fn check_name(name: &str) -> Result<(), BrokerError> {
    let wrong = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    if name.is_empty() || name.len() > 200 || name.contains(wrong) {
        return Err(BrokerError::new(
            BrokerErrorKind::Configuration,
            format!(
                "consumer name {name:?} is not allowed: it must be 1 to 200 bytes without blanks and `.`, `*`, `>`, `/`, `\\`"
            ),
        ));
    }
    Ok(())
}

impl fmt::Debug for JetStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStream")
            .field("servers", &self.inner.settings.servers.shown())
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_that_nats_cannot_take_are_refused() {
        for name in ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\n"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name("shipping-v1_x").is_ok());
    }
}
