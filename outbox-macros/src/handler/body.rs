//! The call: from a delivery to the function's result.
//!
//! What can be wrong with a type of the user's stands where that type is written, so that the
//! compiler says it there. The rest belongs to the attribute, where no lint looks at it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{ReturnType, spanned::Spanned};

use super::{
    attr::HandlerAttr,
    input::Function,
    shape::{Argument, Event, Shape},
};
use crate::tokens;

/// Decodes the first argument. A function of its own, since its bounds are those of the trait:
/// that the type is no event is thus reported once, and not again where it is decoded.
pub(crate) fn take(attr: &HandlerAttr, event: Event<'_>, batch: bool) -> TokenStream {
    let private = attr.root.private();
    let one = match event {
        Event::Bare(_) => quote!(H::Event),
        Event::Enveloped(_) => quote!(#private::Envelope<H::Event>),
        Event::Named(ty) => quote!(#ty),
    };
    let argument = if batch {
        quote!(#private::Vec<#one>)
    } else {
        one
    };
    let value = match (event, batch) {
        (Event::Bare(_), false) => quote!(#private::HandlerCall::event(call)),
        (Event::Bare(_), true) => quote!(#private::HandlerCall::events(call)),
        (Event::Enveloped(_), false) => quote!(#private::HandlerCall::envelope_of(call)),
        (Event::Enveloped(_), true) => quote!(#private::HandlerCall::envelopes_of(call)),
        (Event::Named(_), _) => quote!(<#argument as #private::EventArgument>::take(call)),
    };
    quote! {
        fn __take<S: #private::Store, St, H: #private::Handler<S, St>>(
            call: &#private::HandlerCall<'_, S, St>,
        ) -> #private::Result<#argument, #private::HandlerError> {
            #value
        }
    }
}

/// The parameter of `handle`, and its body.
pub(crate) fn body(
    function: &Function,
    attr: &HandlerAttr,
    shape: &Shape<'_>,
    event: Event<'_>,
    state: &TokenStream,
) -> (Ident, TokenStream) {
    let name = &function.sig.ident;
    let call = local("call", Span::call_site());
    let (Event::Bare(ty) | Event::Enveloped(ty) | Event::Named(ty)) = event;
    let first = local("event", ty.span());
    let (values, steps): (Vec<_>, Vec<_>) = arguments(attr, shape, state, &call).unzip();

    let result_span = match &function.sig.output {
        ReturnType::Type(_, ty) => tokens::peel(ty).span(),
        ReturnType::Default => name.span(),
    };
    let result = local("result", result_span);
    let private = attr.root.private_at(result_span);
    let into = quote_spanned!(result_span=> #private::HandlerReturn::into_handler_result(#result));
    let block = quote! {{
        let #first = __take::<__S, #state, Self>(&#call)?;
        #(#steps)*
        let #result = #name(#first #(, #values)*).await;
        #into
    }};
    // That the future is not `Send` is reported at the name.
    let private = attr.root.private_at(name.span());
    let body = quote_spanned!(name.span()=> #private::Box::pin(async move #block));
    (call, body)
}

/// For each argument behind the event a variable, and the statement that sets it.
fn arguments(
    attr: &HandlerAttr,
    shape: &Shape<'_>,
    state: &TokenStream,
    call: &Ident,
) -> impl Iterator<Item = (Ident, TokenStream)> {
    shape
        .arguments
        .iter()
        .enumerate()
        .map(move |(index, argument)| {
            let (Argument::Transaction(ty) | Argument::State(ty, _) | Argument::Extractor(ty)) =
                argument;
            let span = ty.span();
            let private = attr.root.private_at(span);
            let taken = match argument {
                Argument::Transaction(_) => quote!(#private::HandlerCall::tx(&#call)),
                Argument::State(..) | Argument::Extractor(_) => quote_spanned! {span=>
                    <#ty as #private::FromDelivery<'_, __S, #state>>::from_delivery(&#call)
                },
            };
            let value = local(&format!("argument{index}"), span);
            let step = quote!(let #value = #taken?;);
            (value, step)
        })
}

/// A variable that no function of the user's is called like.
fn local(name: &str, span: Span) -> Ident {
    Ident::new(&format!("outbox_{name}"), span)
}
