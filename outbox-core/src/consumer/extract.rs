//! Handler arguments that are taken from the delivery.

use std::ops::Deref;

use super::{context::Context, error::HandlerError, handler::HandlerCall};
use crate::{envelope::Envelope, event::IntegrationEvent, store::Store};

/// An argument of a handler, made from the delivery.
///
/// Implemented by [`Context`] and [`State<T>`]; implement it for your own types to shorten
/// handlers:
///
/// ```
/// use outbox_core::{FromDelivery, HandlerCall, HandlerError, Store};
///
/// /// The tenant that a message belongs to.
/// struct Tenant(String);
///
/// impl<S: Store, St> FromDelivery<'_, S, St> for Tenant {
///     fn from_delivery(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
///         match call.envelope().headers.get("tenant") {
///             Some(tenant) => Ok(Self(tenant.to_owned())),
///             None => Err(HandlerError::reject("the message has no `tenant` header")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "not an extractor",
    note = "a handler takes its event first, then `&DatabaseTransaction`, `Context`, `State<T>`, or a type that implements `FromDelivery`"
)]
pub trait FromDelivery<'a, S: Store, St>: Sized {
    /// Makes the argument.
    ///
    /// # Errors
    ///
    /// What the handler would have returned: a retry or a rejection.
    fn from_delivery(call: &HandlerCall<'a, S, St>) -> Result<Self, HandlerError>;
}

/// The first argument of a handler: the event, the event in its [`Envelope`], or a `Vec` of either.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integration event",
    label = "a handler's first argument is the event, or the event in its envelope",
    note = "add `#[derive(Serialize, Deserialize, IntegrationEvent)]` and `#[event(subject = \"..\")]` to `{Self}`"
)]
pub trait EventArgument: Sized {
    /// The event.
    type Event: IntegrationEvent;

    /// Decodes the payload.
    ///
    /// # Errors
    ///
    /// As [`HandlerCall::event`].
    fn take<S: Store, St>(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError>;
}

#[diagnostic::do_not_recommend]
impl<E: IntegrationEvent> EventArgument for E {
    type Event = E;

    fn take<S: Store, St>(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
        call.event()
    }
}

impl<E: IntegrationEvent> EventArgument for Envelope<E> {
    type Event = E;

    fn take<S: Store, St>(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
        call.envelope_of()
    }
}

impl<E: IntegrationEvent> EventArgument for Vec<E> {
    type Event = E;

    fn take<S: Store, St>(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
        call.events()
    }
}

impl<E: IntegrationEvent> EventArgument for Vec<Envelope<E>> {
    type Event = E;

    fn take<S: Store, St>(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
        call.envelopes_of()
    }
}

impl<S: Store, St> FromDelivery<'_, S, St> for Context {
    fn from_delivery(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
        Ok(call.context().clone())
    }
}

/// A part of the application state that was given to [`Runtime::state`](crate::Runtime::state).
#[derive(Debug, Clone, Copy, Default)]
pub struct State<T>(pub T);

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<S: Store, St, T: FromRef<St>> FromDelivery<'_, S, St> for State<T> {
    fn from_delivery(call: &HandlerCall<'_, S, St>) -> Result<Self, HandlerError> {
        Ok(Self(T::from_ref(call.state())))
    }
}

/// A value that can be made from a reference to the state `St`.
///
/// Every cloneable state is a part of itself; implement it to hand single fields to handlers.
#[diagnostic::on_unimplemented(
    message = "the state `{St}` has no part of type `{Self}`",
    note = "pass a `{Self}` to `Runtime::state`, or implement `FromRef<{St}>` for it"
)]
pub trait FromRef<St> {
    /// Makes the value.
    fn from_ref(state: &St) -> Self;
}

impl<T: Clone> FromRef<T> for T {
    fn from_ref(state: &T) -> Self {
        state.clone()
    }
}
