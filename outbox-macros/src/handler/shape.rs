//! What is known of a handler's arguments.

use syn::Type;

/// The arguments, as far as they are right.
#[derive(Default)]
pub(crate) struct Shape<'a> {
    /// `None` if no impl could compile.
    pub(crate) event: Option<Event<'a>>,
    /// The first argument is a `Vec` of it.
    pub(crate) takes_batches: bool,
    /// The arguments behind the event.
    pub(crate) arguments: Vec<Argument<'a>>,
    /// The function stands in a trait or an impl, where no struct can.
    pub(crate) is_method: bool,
}

/// The first argument, or what it is a `Vec` of.
#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    /// `E`.
    Bare(&'a Type),
    /// `Envelope<E>`; the `E`.
    Enveloped(&'a Type),
    /// A name like `OrderPlacedEnvelope`: most likely the alias that the derive adds, but it may
    /// be an event that is called so. Only the compiler can tell.
    Named(&'a Type),
}

/// Another argument.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    /// `&Tx`; the type behind the reference.
    Transaction(&'a Type),
    /// `State<T>`; all of it, and the `T`.
    State(&'a Type, &'a Type),
    /// Anything else by value.
    Extractor(&'a Type),
}

impl<'a> Shape<'a> {
    /// The transaction's type.
    pub(crate) fn transaction(&self) -> Option<&'a Type> {
        self.arguments.iter().find_map(|argument| match argument {
            Argument::Transaction(ty) => Some(*ty),
            _ => None,
        })
    }

    /// The types inside the `State<T>` arguments.
    pub(crate) fn states(&self) -> impl Iterator<Item = &'a Type> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::State(_, ty) => Some(*ty),
            _ => None,
        })
    }
}
