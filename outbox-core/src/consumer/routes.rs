//! From an event's type to its handler: the innermost service.

use std::{
    collections::HashMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use tower::Service;

use super::{
    delivery::{Delivery, Outcome},
    error::HandlerError,
    failure::{DeliveryError, Panicked},
    handler::{Handler, HandlerCall, HandlerFuture},
    transacted::{Finished, Transacted, context_of},
};
use crate::{bus::Prepare, error::BoxError, store::Store};

/// A handler without its constants.
pub(crate) trait DynHandler<S: Store, St>: Send + Sync {
    fn handle<'a>(&'a self, call: HandlerCall<'a, S, St>) -> HandlerFuture<'a>;
}

impl<S: Store, St, H: Handler<S, St>> DynHandler<S, St> for H {
    fn handle<'a>(&'a self, call: HandlerCall<'a, S, St>) -> HandlerFuture<'a> {
        Handler::handle(self, call)
    }
}

pub(crate) type SharedHandler<S, St> = Arc<dyn DynHandler<S, St>>;

/// The handlers of one consumer, by event type.
pub(crate) struct Routes<S: Store, St> {
    handlers: Arc<HashMap<&'static str, SharedHandler<S, St>>>,
    state: St,
}

impl<S: Store, St> Routes<S, St> {
    pub(crate) fn new(handlers: HashMap<&'static str, SharedHandler<S, St>>, state: St) -> Self {
        Self {
            handlers: Arc::new(handlers),
            state,
        }
    }

    fn find(&self, event_type: &str) -> Result<SharedHandler<S, St>, HandlerError> {
        self.handlers.get(event_type).cloned().ok_or_else(|| {
            HandlerError::reject("no handler of this consumer takes events of this type")
        })
    }
}

impl<S: Store, St: Clone> Clone for Routes<S, St> {
    fn clone(&self) -> Self {
        Self {
            handlers: Arc::clone(&self.handlers),
            state: self.state.clone(),
        }
    }
}

impl<S: Store, St> fmt::Debug for Routes<S, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.handlers.keys()).finish()
    }
}

/// Runs a handler; a panic becomes an error, so that the transaction comes back in one piece.
async fn run<S: Store, St>(
    handler: &SharedHandler<S, St>,
    call: HandlerCall<'_, S, St>,
) -> Result<(), HandlerError> {
    // The call itself can panic too: a custom extractor may run before the first await.
    let work = AssertUnwindSafe(async { handler.handle(call).await });
    work.catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(HandlerError::retry(Panicked::from_payload(panic.as_ref()))))
}

impl<S: Store, St: Clone + Send + Sync + 'static> Service<Transacted<S>> for Routes<S, St> {
    type Response = Finished<S>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Finished<S>, BoxError>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, transacted: Transacted<S>) -> Self::Future {
        let handler = self.find(&transacted.delivery.envelope().event_type);
        let state = self.state.clone();
        Box::pin(async move {
            let result = match &handler {
                Ok(handler) => {
                    let context = transacted.context();
                    let call = HandlerCall {
                        envelope: transacted.delivery.envelope(),
                        others: &transacted.delivery.others,
                        context: &context,
                        tx: Some(transacted.tx()),
                        state: &state,
                    };
                    transacted.delivery.started.set();
                    run(handler, call).await
                }
                Err(_) => Ok(()),
            };
            let result = handler.and(result);
            Ok(transacted.finish(result))
        })
    }
}

/// The innermost service of a consumer without an inbox.
pub(crate) struct Direct<S: Store, St> {
    routes: Routes<S, St>,
    prepare: Arc<Prepare>,
}

impl<S: Store, St> Direct<S, St> {
    pub(crate) const fn new(routes: Routes<S, St>, prepare: Arc<Prepare>) -> Self {
        Self { routes, prepare }
    }
}

impl<S: Store, St: Clone> Clone for Direct<S, St> {
    fn clone(&self) -> Self {
        Self {
            routes: self.routes.clone(),
            prepare: Arc::clone(&self.prepare),
        }
    }
}

impl<S: Store, St: Clone + Send + Sync + 'static> Service<Delivery> for Direct<S, St> {
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let handler = self.routes.find(&delivery.envelope().event_type);
        let (state, prepare) = (self.routes.state.clone(), Arc::clone(&self.prepare));
        Box::pin(async move {
            let handler = handler.map_err(DeliveryError::handler)?;
            let context = context_of(&delivery, None, &prepare);
            let call = HandlerCall {
                envelope: delivery.envelope(),
                others: &delivery.others,
                context: &context,
                tx: None,
                state: &state,
            };
            delivery.started.set();
            run(&handler, call).await.map_err(DeliveryError::handler)?;
            Ok(Outcome::new(1 + delivery.others.len(), 0))
        })
    }
}
