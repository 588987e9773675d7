//! The contract between `#[handler]` and the runtime.

use std::{fmt, future::Future, pin::Pin};

use bytes::Bytes;

use super::{context::Context, delivery::Message, error::HandlerError, options::HandlerOptions};
use crate::{
    envelope::Envelope,
    event::{self, IntegrationEvent},
    store::Store,
};

/// A boxed future that borrows from the call.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

/// A function that handles one kind of event. Implemented by `#[handler]`.
///
/// `S` is the store whose transaction the handler may borrow, `St` the application state that its
/// [`State`](crate::State) arguments are taken from.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for the store `{S}` with the state `{St}`",
    label = "not a handler here",
    note = "annotate the function with `#[handler(consumer = \"..\")]` and pass `name {{}}`",
    note = "its `&Tx` argument must be the store's transaction type, and each `State<T>` must come from the state given to `Runtime::state`"
)]
pub trait Handler<S: Store, St>: Send + Sync + 'static {
    /// The event that it handles.
    type Event: IntegrationEvent;
    /// The function's path, for errors and logs.
    const NAME: &'static str;
    /// What the attribute says.
    const OPTIONS: HandlerOptions;
    /// Whether it takes several events at once.
    const TAKES_BATCHES: bool = false;

    /// Takes the arguments from `call` and runs the function.
    fn handle<'a>(&'a self, call: HandlerCall<'a, S, St>) -> HandlerFuture<'a>;
}

/// A handler that borrows no transaction, and so may be mounted without an inbox.
///
/// Implemented by `#[handler]` for functions without a `&Tx` argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` takes a transaction and cannot be mounted without an inbox",
    note = "use `Consumer::of(..)`, or remove the `&Tx` argument if the effect is naturally idempotent"
)]
pub trait WithoutTransaction {}

/// One delivery on its way into a handler: what extractors take their values from.
pub struct HandlerCall<'a, S: Store, St> {
    pub(crate) envelope: &'a Envelope<Bytes>,
    /// The other messages of a batch.
    pub(crate) others: &'a [Message],
    pub(crate) context: &'a Context,
    pub(crate) tx: Option<&'a S::Tx>,
    pub(crate) state: &'a St,
}

impl<S: Store, St> fmt::Debug for HandlerCall<'_, S, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerCall")
            .field("id", &self.envelope.id)
            .finish_non_exhaustive()
    }
}

impl<'a, S: Store, St> HandlerCall<'a, S, St> {
    /// The message as it arrived, its payload undecoded; of a batch, the first.
    #[must_use]
    pub const fn envelope(&self) -> &'a Envelope<Bytes> {
        self.envelope
    }

    /// All messages of a batch, or the one message.
    pub fn envelopes(&self) -> impl Iterator<Item = &'a Envelope<Bytes>> {
        let others = self.others.iter().map(|message| &message.envelope);
        std::iter::once(self.envelope).chain(others)
    }

    /// The delivery's context.
    #[must_use]
    pub const fn context(&self) -> &'a Context {
        self.context
    }

    /// The application state.
    #[must_use]
    pub const fn state(&self) -> &'a St {
        self.state
    }

    /// Decodes the payload as `E`.
    ///
    /// # Errors
    ///
    /// [`HandlerErrorKind::Undecodable`](crate::HandlerErrorKind::Undecodable), or
    /// [`NewerVersion`](crate::HandlerErrorKind::NewerVersion), with the
    /// [`DecodeError`](crate::error::DecodeError) as its cause.
    pub fn event<E: IntegrationEvent>(&self) -> Result<E, HandlerError> {
        decode(self.envelope)
    }

    /// Decodes the payload as `E` and returns it in its envelope.
    ///
    /// # Errors
    ///
    /// As [`event`](Self::event).
    pub fn envelope_of<E: IntegrationEvent>(&self) -> Result<Envelope<E>, HandlerError> {
        enveloped(self.envelope)
    }

    /// Decodes all payloads of a batch.
    ///
    /// # Errors
    ///
    /// As [`event`](Self::event), for the first that cannot be decoded.
    pub fn events<E: IntegrationEvent>(&self) -> Result<Vec<E>, HandlerError> {
        self.envelopes().map(decode).collect()
    }

    /// Decodes all payloads of a batch and returns them in their envelopes.
    ///
    /// # Errors
    ///
    /// As [`events`](Self::events).
    pub fn envelopes_of<E: IntegrationEvent>(&self) -> Result<Vec<Envelope<E>>, HandlerError> {
        self.envelopes().map(enveloped).collect()
    }

    /// The open transaction of this delivery.
    ///
    /// # Errors
    ///
    /// The consumer was mounted without an inbox, so there is none.
    pub fn tx(&self) -> Result<&'a S::Tx, HandlerError> {
        self.tx.ok_or_else(HandlerError::no_transaction)
    }
}

fn decode<E: IntegrationEvent>(envelope: &Envelope<Bytes>) -> Result<E, HandlerError> {
    event::decode(envelope.version, &envelope.payload).map_err(HandlerError::undecodable)
}

fn enveloped<E: IntegrationEvent>(envelope: &Envelope<Bytes>) -> Result<Envelope<E>, HandlerError> {
    let event = decode(envelope)?;
    Ok(envelope.clone().map(|_| event))
}
