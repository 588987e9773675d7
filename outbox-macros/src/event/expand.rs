//! The impl and the envelope's alias.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{DeriveInput, GenericParam, Generics, ext::IdentExt};

use super::{attr::EventAttr, upcast};
use crate::ctxt::Ctxt;

pub(crate) fn expand(input: &DeriveInput, attr: &EventAttr, ctxt: &Ctxt) -> TokenStream {
    let private = attr.root.private();
    let name = &input.ident;
    let (impl_generics, ty_generics, _) = input.generics.split_for_impl();
    let where_clause = where_clause(&input.generics, attr);
    let (event_type, subject, version) = (attr.event_type(), &attr.subject, attr.version());

    let key = attr
        .key
        .as_ref()
        .and_then(|key| key.expand(input, &attr.root, ctxt));
    // The checks are of use only once the rest is right.
    let older = attr.upcast_from.as_ref().filter(|_| ctxt.is_clean());
    let beside = older.map(|older| upcast::items(older, input, attr, &where_clause));
    let upcast = older.map(|_| upcast::method(attr));
    // Where there are parameters, only an associated constant can name them.
    let generic = older.filter(|_| !input.generics.params.is_empty());
    let version = generic.map_or_else(
        || quote!(#version),
        |_| quote!({ __check::<Self>(); #version }),
    );
    let alias = alias(input, attr);

    quote! {
        #alias

        const _: () = {
            #beside

            #[automatically_derived]
            #[allow(deprecated)]
            impl #impl_generics #private::IntegrationEvent for #name #ty_generics #where_clause {
                const TYPE: &'static #private::str = #event_type;
                const VERSION: #private::u16 = #version;
                const SUBJECT: &'static #private::str = #subject;
                #key
                #upcast
            }
        };
    }
}

/// The type's own clause; for generic types with the trait's requirements, which thus hold
/// wherever serde's derives say so.
fn where_clause(generics: &Generics, attr: &EventAttr) -> TokenStream {
    let private = attr.root.private();
    if generics.params.is_empty() {
        return generics.where_clause.to_token_stream();
    }
    let own = generics
        .where_clause
        .iter()
        .flat_map(|clause| &clause.predicates);
    let own = quote!(#(#own,)*);
    let older = &attr.upcast_from.iter().collect::<Vec<_>>();
    quote! {
        where
            #own
            #(#older: #private::IntegrationEvent, Self: ::core::convert::From<#older>,)*
            Self: #private::Serialize
                + #private::DeserializeOwned
                + ::core::marker::Send
                + ::core::marker::Sync
                + 'static,
    }
}

/// `type OrderPlacedEnvelope = Envelope<OrderPlaced>`.
fn alias(input: &DeriveInput, attr: &EventAttr) -> TokenStream {
    let private = attr.root.private();
    let (vis, name) = (&input.vis, &input.ident);
    let alias = format_ident!("{}Envelope", name.unraw(), span = name.span());
    let doc = format!(
        "[`{0}`] with what travels beside it: id, time, source, correlation, headers.",
        name.unraw()
    );
    let (_, ty_generics, _) = input.generics.split_for_impl();
    // Bounds on the parameters of an alias are not enforced, and warned of.
    let params = input.generics.params.iter().map(|param| match param {
        GenericParam::Type(param) => {
            let (name, default) = (&param.ident, param.default.iter());
            quote!(#name #(= #default)*)
        }
        other => quote!(#other),
    });
    let params = (!input.generics.params.is_empty()).then(|| quote!(<#(#params),*>));
    quote! {
        #[doc = #doc]
        #[allow(dead_code, deprecated, unreachable_pub)]
        #vis type #alias #params = #private::Envelope<#name #ty_generics>;
    }
}
