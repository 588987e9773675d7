//! Mounting handlers: a consumer with its options and layers.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use tower::{Layer, Service, util::BoxCloneService};

use super::{
    delivery::{Delivery, DeliveryService, Outcome},
    handler::{Handler, WithoutTransaction},
    options::HandlerOptions,
    routes::{Direct, Routes, SharedHandler},
    settings::{BuildError, Settings},
    transacted::{Finished, Transacted, TransactedService},
};
use crate::{
    broker::StartAt,
    bus::Bus,
    error::BoxError,
    event::IntegrationEvent,
    layer::InboxLayer,
    policy::Backoff,
    store::{InboxStore, Store},
};

type Wrap<T> = Box<dyn FnOnce(T) -> T + Send>;

/// One or more handlers under one consumer name, with options and layers.
///
/// They share a durable of that name, so their options are the consumer's. A value that two handlers'
/// attributes set differently must be set here, or the runtime refuses to start.
///
/// ```no_run
/// # use std::time::Duration;
/// # use outbox_core::{Consumer, HandlerError, IntegrationEvent, Store, handler};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, IntegrationEvent)]
/// # #[event(subject = "shop.orders.placed")]
/// # struct OrderPlaced { order_id: u64 }
/// # #[derive(Serialize, Deserialize, IntegrationEvent)]
/// # #[event(subject = "shop.orders.cancelled")]
/// # struct OrderCancelled { order_id: u64 }
/// # #[handler(consumer = "shipping")]
/// # async fn create_shipment(_: OrderPlaced) -> Result<(), HandlerError> { Ok(()) }
/// # #[handler(consumer = "shipping")]
/// # async fn cancel_shipment(_: OrderCancelled) -> Result<(), HandlerError> { Ok(()) }
/// # fn example<S: Store>() -> Consumer<S, ()> {
/// Consumer::of(create_shipment {})
///     .handler(cancel_shipment {}) // another event, the same consumer
///     .max_attempts(10) // overrides the attributes
///     .timeout(Duration::from_secs(20))
///     .layer(tower::layer::util::Identity::new()) // around the inbox: sees duplicates, too
///     .layer_inside(tower::layer::util::Identity::new()) // inside the transaction
/// # }
/// ```
///
/// # Order of layers
///
/// A layer that is added later wraps those added before. Outer layers wrap the inbox and see every
/// delivery; inner layers wrap the handler and see only messages that are not duplicates, with their
/// transaction. The handler's time-out is around all of them.
pub struct Consumer<S: Store, St> {
    name: &'static str,
    handlers: Vec<Mounted<S, St>>,
    overrides: HandlerOptions,
    ack_wait: Duration,
    newer_version_delay: Duration,
    start: StartAt,
    with_inbox: bool,
    outer: Vec<Wrap<DeliveryService>>,
    inner: Vec<Wrap<TransactedService<S>>>,
}

struct Mounted<S: Store, St> {
    name: &'static str,
    event_type: &'static str,
    subject: &'static str,
    options: HandlerOptions,
    takes_batches: bool,
    handler: SharedHandler<S, St>,
}

impl<S: Store, St> Consumer<S, St> {
    /// Mounts a handler behind an inbox: its effect, its inbox row and its events commit together.
    #[must_use]
    pub fn of<H: Handler<S, St>>(handler: H) -> Self {
        Self::empty(H::OPTIONS.consumer, true).handler(handler)
    }

    /// Mounts a handler without an inbox and without a transaction.
    ///
    /// For effects that are idempotent by nature (an upsert elsewhere, a cache to be dropped): the
    /// handler runs once for each delivery, and may run again after it succeeded. It cannot publish.
    #[must_use]
    pub fn without_inbox<H: Handler<S, St> + WithoutTransaction>(handler: H) -> Self {
        Self::empty(H::OPTIONS.consumer, false).handler(handler)
    }

    fn empty(name: &'static str, with_inbox: bool) -> Self {
        Self {
            name,
            handlers: Vec::new(),
            overrides: HandlerOptions::new(name),
            ack_wait: Duration::from_secs(30),
            newer_version_delay: Duration::from_secs(60),
            start: StartAt::Beginning,
            with_inbox,
            outer: Vec::new(),
            inner: Vec::new(),
        }
    }

    /// Adds a handler of another event. Its attribute must name the same consumer.
    #[must_use]
    pub fn handler<H: Handler<S, St>>(mut self, handler: H) -> Self {
        self.handlers.push(Mounted {
            name: H::NAME,
            event_type: H::Event::TYPE,
            subject: H::Event::SUBJECT,
            options: H::OPTIONS,
            takes_batches: H::TAKES_BATCHES,
            handler: Arc::new(handler),
        });
        self
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Failures after which a message is dead-lettered.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.overrides.max_attempts = Some(attempts);
        self
    }

    /// Lone crashes of the process after which a message is dead-lettered.
    #[must_use]
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.overrides.max_crashes = Some(crashes);
        self
    }

    /// The delay between attempts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.overrides.backoff = Some(backoff);
        self
    }

    /// How many messages this process handles at once; of handlers that take batches, how many batches.
    #[must_use]
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.overrides.concurrency = Some(concurrency);
        self
    }

    /// The most messages of a batch. Default 100. Only for handlers that take a `Vec`.
    #[must_use]
    pub fn batch(mut self, messages: u32) -> Self {
        self.overrides.batch = Some(messages);
        self
    }

    /// How long the first message of a batch waits for others before it is handled with those that have
    /// come. Default 20 ms, at most a quarter of the ack wait. Only for handlers that take a `Vec`.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.overrides.linger = Some(linger);
        self
    }

    /// How long the handling of a message or batch may take, from the layers and the inbox to the commit.
    /// Default 60 s, at most a week.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.overrides.timeout = Some(timeout);
        self
    }

    /// How long the broker waits for a sign of life before it delivers a message again. Default
    /// 30 s. Handlers may take longer: signs are sent while they run.
    #[must_use]
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait.clamp(Duration::from_secs(1), Duration::from_hours(24));
        self
    }

    /// How long a message waits that only a newer build can handle (its version is newer than this one
    /// knows, or no handler takes its type) before it is tried again, so that a deploy can catch up.
    /// Default 60 s. It is dead-lettered after fifteen tries, and none of them counts as an attempt.
    #[must_use]
    pub fn newer_version_delay(mut self, delay: Duration) -> Self {
        self.newer_version_delay = delay;
        self
    }

    /// Which messages a new durable starts with. Default: all that the stream still holds.
    #[must_use]
    pub fn start(mut self, start: StartAt) -> Self {
        self.start = start;
        self
    }

    /// Adds a layer around the inbox.
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<DeliveryService> + Send + 'static,
        L::Service: Service<Delivery, Response = Outcome, Error: Into<BoxError>, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
    {
        self.outer
            .push(Box::new(move |service| boxed(layer.layer(service))));
        self
    }

    /// Adds a layer inside the inbox, around the handlers and within their transaction.
    #[must_use]
    pub fn layer_inside<L>(mut self, layer: L) -> Self
    where
        L: Layer<TransactedService<S>> + Send + 'static,
        L::Service: Service<
                Transacted<S>,
                Response = Finished<S>,
                Error: Into<BoxError>,
                Future: Send + 'static,
            > + Clone
            + Send
            + 'static,
    {
        self.inner
            .push(Box::new(move |service| boxed(layer.layer(service))));
        self
    }
}

fn boxed<Req, Res, T>(service: T) -> BoxCloneService<Req, Res, BoxError>
where
    T: Service<Req, Response = Res, Error: Into<BoxError>, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
    Req: 'static,
    Res: 'static,
{
    BoxCloneService::new(tower::ServiceExt::map_err(service, Into::into))
}

/// A consumer that is ready to run.
pub(crate) struct Built {
    pub(crate) settings: Settings,
    pub(crate) service: DeliveryService,
}

impl<S: InboxStore, St: Clone + Send + Sync + 'static> Consumer<S, St> {
    /// Checks the consumer and composes its service.
    pub(crate) fn build(self, bus: &Bus<S>, state: &St) -> Result<Built, BuildError> {
        let mut options = self.overrides;
        let mut routes: HashMap<&'static str, SharedHandler<S, St>> = HashMap::new();
        let mut names: HashMap<&'static str, &'static str> = HashMap::new();
        let mut subjects: Vec<String> = Vec::new();
        for mounted in &self.handlers {
            if mounted.options.consumer != self.name {
                return Err(BuildError::OtherConsumer {
                    consumer: self.name,
                    handler: mounted.name,
                    other: mounted.options.consumer,
                });
            }
            if let Some(first) = names.insert(mounted.event_type, mounted.name) {
                return Err(BuildError::SameEvent {
                    consumer: self.name,
                    event: mounted.event_type,
                    first,
                    second: mounted.name,
                });
            }
            routes.insert(mounted.event_type, Arc::clone(&mounted.handler));
            if !subjects.iter().any(|subject| subject == mounted.subject) {
                subjects.push(mounted.subject.to_owned());
            }
        }
        Settings::fill(
            &mut options,
            self.handlers.iter().map(|mounted| mounted.options),
        )?;
        let batches = self.takes_batches(&options)?;
        let mut settings = Settings::new(
            &options,
            subjects,
            names.into_keys().collect(),
            self.ack_wait,
            self.newer_version_delay,
            self.with_inbox,
            self.start,
        );
        if batches {
            settings = settings.in_batches(&options);
        }
        let routes = Routes::new(routes, state.clone());
        let mut service: DeliveryService = if self.with_inbox {
            let mut inner: TransactedService<S> = BoxCloneService::new(routes);
            for wrap in self.inner {
                inner = wrap(inner);
            }
            BoxCloneService::new(InboxLayer::new(bus.clone()).layer(inner))
        } else if self.inner.is_empty() {
            BoxCloneService::new(Direct::<S, St>::new(routes, Arc::clone(bus.prepare())))
        } else {
            return Err(BuildError::InnerLayer {
                consumer: self.name,
            });
        };
        for wrap in self.outer {
            service = wrap(service);
        }
        Ok(Built { settings, service })
    }
}

impl<S: Store, St> Consumer<S, St> {
    /// Whether its handlers take batches: all or none.
    fn takes_batches(&self, options: &HandlerOptions) -> Result<bool, BuildError> {
        let consumer = self.name;
        let batches = self.handlers.iter().any(|mounted| mounted.takes_batches);
        if batches && !self.handlers.iter().all(|mounted| mounted.takes_batches) {
            return Err(BuildError::Mixed { consumer });
        }
        let set = [
            ("batch", options.batch.is_some()),
            ("linger", options.linger.is_some()),
        ];
        match set.into_iter().find(|(_, is_set)| *is_set && !batches) {
            Some((option, _)) => Err(BuildError::NoBatches { consumer, option }),
            None => Ok(batches),
        }
    }
}

impl<S: Store, St> fmt::Debug for Consumer<S, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers: Vec<_> = self.handlers.iter().map(|mounted| mounted.name).collect();
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("handlers", &handlers)
            .finish_non_exhaustive()
    }
}
