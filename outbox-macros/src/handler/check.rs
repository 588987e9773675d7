//! What a handler's signature may look like.

use syn::{FnArg, PatType, ReturnType, Signature, Type, TypeReference};

use super::shape::{Argument, Event, Shape};
use crate::{
    ctxt::Ctxt,
    symbol::{
        BATCH_ARGUMENT, CONNECTION_ARGUMENTS, CONTEXT_ARGUMENT, ENVELOPE_ARGUMENT, STATE_ARGUMENT,
    },
    tokens,
};

/// Checks the signature.
pub(crate) fn shape<'a>(sig: &'a Signature, ctxt: &Ctxt) -> Shape<'a> {
    let mut shape = Shape::default();
    if let Some(FnArg::Receiver(receiver)) = sig.inputs.first() {
        ctxt.error(
            receiver,
            "a handler is a free function: take what `self` holds as `State<T>`",
        );
        shape.is_method = true;
        return shape;
    }
    qualifiers(sig, ctxt);
    let mut arguments = sig.inputs.iter().filter_map(|argument| match argument {
        FnArg::Typed(argument) => Some(argument),
        FnArg::Receiver(_) => None,
    });
    match arguments.next() {
        Some(first) => {
            let more = sig.inputs.iter().skip(1);
            shape.takes_batches = element(&first.ty).is_some();
            shape.event = event(first, more.clone().any(is_borrowed), ctxt);
        }
        None => ctxt.error(
            &sig.ident,
            "a handler takes its event as the first argument",
        ),
    }
    for written in arguments {
        match argument(written, ctxt) {
            Some(Argument::Transaction(_)) if shape.transaction().is_some() => {
                ctxt.error(&written.ty, "a handler has one transaction");
            }
            Some(argument) => shape.arguments.push(argument),
            None => {}
        }
    }
    result(sig, ctxt);
    shape
}

fn qualifiers(sig: &Signature, ctxt: &Ctxt) {
    if sig.asyncness.is_none() {
        ctxt.error(sig.fn_token, "a handler must be an `async fn`");
    }
    if let Some(token) = &sig.constness {
        ctxt.error(token, "a handler cannot be `const`");
    }
    if let Some(token) = &sig.unsafety {
        ctxt.error(
            token,
            "a handler cannot be `unsafe`: the runtime calls it with any message",
        );
    }
    if let Some(abi) = &sig.abi {
        ctxt.error(abi, "a handler cannot be `extern`");
    }
    if let Some(variadic) = &sig.variadic {
        ctxt.error(variadic, "a handler cannot be variadic");
    }
    if !sig.generics.params.is_empty() {
        let message = "a handler cannot be generic: it is registered for one type of event";
        ctxt.error(&sig.generics.params, message);
    }
}

fn is_borrowed(argument: &FnArg) -> bool {
    matches!(argument, FnArg::Typed(argument) if matches!(tokens::peel(&argument.ty), Type::Reference(_)))
}

/// `borrows_more` if an argument behind it is a reference.
fn event<'a>(argument: &'a PatType, borrows_more: bool, ctxt: &Ctxt) -> Option<Event<'a>> {
    check_attributes(argument, ctxt);
    let ty = tokens::peel(&argument.ty);
    if let Type::Reference(TypeReference { elem, .. }) = ty {
        // The event without its `&`, or the transaction without an event.
        ctxt.error(
            ty,
            "the first argument of a handler is its event, by value: leave the `&` out, or if this is the \
             transaction, move it behind the event",
        );
        return usable(elem).filter(|_| borrows_more);
    }
    for name in [CONTEXT_ARGUMENT, STATE_ARGUMENT] {
        if tokens::is_named(ty, name) {
            ctxt.error(
                ty,
                format!("the first argument of a handler is its event: move `{name}` behind it"),
            );
            return None;
        }
    }
    if tokens::has_impl_trait(ty) {
        ctxt.error(ty, "a handler cannot be generic: name the event's type");
        return None;
    }
    if tokens::has_lifetime(ty) {
        ctxt.error(
            ty,
            "events must be owned, since they outlive the message that they are read from",
        );
        return None;
    }
    usable(ty)
}

/// The `E` of `Vec<E>`.
fn element(ty: &Type) -> Option<&Type> {
    tokens::only_argument(ty, BATCH_ARGUMENT).map(tokens::peel)
}

/// The event in `ty`, unless it is something that cannot be one.
fn usable(ty: &Type) -> Option<Event<'_>> {
    if tokens::has_lifetime(ty) || tokens::has_impl_trait(ty) {
        return None;
    }
    let ty = element(ty).unwrap_or(ty);
    if let Some(event) = tokens::only_argument(ty, ENVELOPE_ARGUMENT) {
        return Some(Event::Enveloped(event));
    }
    let name = tokens::last_segment(ty).map(|segment| segment.ident.to_string());
    let named = name.is_some_and(|name| name.ends_with(ENVELOPE_ARGUMENT));
    Some(if named {
        Event::Named(ty)
    } else {
        Event::Bare(ty)
    })
}

fn argument<'a>(argument: &'a PatType, ctxt: &Ctxt) -> Option<Argument<'a>> {
    check_attributes(argument, ctxt);
    let ty = tokens::peel(&argument.ty);
    if tokens::has_impl_trait(ty) {
        ctxt.error(ty, "a handler cannot be generic: name the argument's type");
        return None;
    }
    let Type::Reference(reference) = ty else {
        return Some(match tokens::only_argument(ty, STATE_ARGUMENT) {
            Some(inner) => Argument::State(ty, inner),
            None => Argument::Extractor(ty),
        });
    };
    for name in [CONTEXT_ARGUMENT, STATE_ARGUMENT, ENVELOPE_ARGUMENT] {
        if tokens::is_named(&reference.elem, name) {
            ctxt.error(
                ty,
                format!("take `{name}` by value: only the transaction is borrowed"),
            );
            return None;
        }
    }
    for name in CONNECTION_ARGUMENTS {
        if tokens::is_named(&reference.elem, name) {
            ctxt.error(
                ty,
                "a handler borrows nothing but its transaction: take `&DatabaseTransaction`, so that the work commits \
                 together with the inbox's record; another connection comes as `State<T>`",
            );
            return None;
        }
    }
    if reference.mutability.is_some() {
        ctxt.error(
            ty,
            "a handler borrows its transaction as `&Tx`: the runtime commits it afterwards",
        );
        return None;
    }
    if let Some(lifetime) = &reference.lifetime {
        ctxt.error(
            lifetime,
            "a handler borrows its transaction for the call: leave the lifetime out",
        );
        return None;
    }
    if tokens::has_lifetime(&reference.elem) {
        ctxt.error(
            &reference.elem,
            "a store's transaction type has no lifetimes",
        );
        return None;
    }
    Some(Argument::Transaction(&reference.elem))
}

fn check_attributes(argument: &PatType, ctxt: &Ctxt) {
    for attr in &argument.attrs {
        if attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr") {
            ctxt.error(
                attr,
                "arguments of a handler cannot be conditional: write two functions",
            );
        }
    }
}

fn result(sig: &Signature, ctxt: &Ctxt) {
    const MESSAGE: &str = "a handler must say whether it failed: return `Result<(), E>`";
    match &sig.output {
        ReturnType::Default => ctxt.push(syn::Error::new(sig.paren_token.span.close(), MESSAGE)),
        ReturnType::Type(_, ty) => match tokens::peel(ty) {
            Type::Tuple(tuple) if tuple.elems.is_empty() => ctxt.error(tuple, MESSAGE),
            Type::Never(never) => ctxt.error(never, MESSAGE),
            _ => {}
        },
    }
}
