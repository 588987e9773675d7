//! The struct that is registered, and its impls.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::{ext::IdentExt, spanned::Spanned};

use super::{
    attr::HandlerAttr,
    body,
    input::Function,
    shape::{Event, Shape},
};

/// Everything beside the function. Unless `is_clean`, the impl is for any store and state, and
/// its body does not call the function.
pub(crate) fn expand(
    function: &Function,
    attr: &HandlerAttr,
    shape: &Shape<'_>,
    is_clean: bool,
) -> TokenStream {
    if shape.is_method {
        return TokenStream::new();
    }
    let (vis, name, cfgs) = (&function.vis, &function.sig.ident, function.cfgs());
    let impls = shape.event.map(|event| {
        if is_clean {
            impls(function, attr, shape, event)
        } else {
            stub(function, attr, shape, event)
        }
    });
    let impls = impls.map(|impls| quote!(#cfgs const _: () = { #impls };));
    quote! {
        #cfgs
        #[doc(hidden)]
        #[allow(non_camel_case_types, unreachable_pub)]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
        #vis struct #name {}

        #impls
    }
}

fn impls(
    function: &Function,
    attr: &HandlerAttr,
    shape: &Shape<'_>,
    event: Event<'_>,
) -> TokenStream {
    let name = &function.sig.ident;
    let private = attr.root.private_at(name.span());
    let (state_param, state) = match &attr.state {
        Some(ty) => (None, quote!(#ty)),
        None => (
            Some(quote!(__St: ::core::marker::Send + ::core::marker::Sync + 'static)),
            quote!(__St),
        ),
    };
    let transaction = shape.transaction();
    let bound = transaction.map(|ty| quote!(<Tx = #ty>));
    // A fixed state either has its parts or not: the compiler says so at the argument.
    let parts = shape.states().filter(|_| attr.state.is_none());
    let parts = parts.map(|ty| quote_spanned!(ty.span()=> #ty: #private::FromRef<__St>,));
    let without = transaction.is_none().then(|| {
        quote! {
            #[automatically_derived]
            impl #private::WithoutTransaction for #name {}
        }
    });
    let constants = constants(name, attr, shape, event);
    let take = body::take(attr, event, shape.takes_batches);
    let (parameter, body) = body::body(function, attr, shape, event, &state);
    quote! {
        #take

        #[automatically_derived]
        #[allow(deprecated, clippy::absolute_paths, clippy::implicit_return)]
        impl<__S, #state_param> #private::Handler<__S, #state> for #name
        where
            __S: #private::Store #bound,
            #(#parts)*
        {
            #constants

            fn handle<'a>(&'a self, #parameter: #private::HandlerCall<'a, __S, #state>) -> #private::HandlerFuture<'a> {
                #body
            }
        }

        #without
    }
}

fn constants(name: &Ident, attr: &HandlerAttr, shape: &Shape<'_>, event: Event<'_>) -> TokenStream {
    let private = attr.root.private();
    let (options, path) = (attr.expand(), name.unraw().to_string());
    let event = match event {
        Event::Bare(ty) | Event::Enveloped(ty) => quote_spanned!(ty.span()=> type Event = #ty;),
        Event::Named(ty) => quote_spanned! {ty.span()=>
            type Event = <#ty as #private::EventArgument>::Event;
        },
    };
    let batches = shape.takes_batches.then(|| {
        quote!(
            const TAKES_BATCHES: ::core::primitive::bool = true;
        )
    });
    quote! {
        #event
        #batches
        const NAME: &'static #private::str = ::core::concat!(::core::module_path!(), "::", #path);
        const OPTIONS: #private::HandlerOptions = #options;
    }
}

/// An impl that fits wherever the real one might have.
fn stub(
    function: &Function,
    attr: &HandlerAttr,
    shape: &Shape<'_>,
    event: Event<'_>,
) -> TokenStream {
    let private = attr.root.private();
    let name = &function.sig.ident;
    let constants = constants(name, attr, shape, event);
    quote! {
        #[automatically_derived]
        impl<__S, __St> #private::Handler<__S, __St> for #name
        where
            __S: #private::Store,
            __St: ::core::marker::Send + ::core::marker::Sync + 'static,
        {
            #constants

            fn handle<'a>(&'a self, _: #private::HandlerCall<'a, __S, __St>) -> #private::HandlerFuture<'a> {
                ::core::unreachable!()
            }
        }

        #[automatically_derived]
        impl #private::WithoutTransaction for #name {}
    }
}
