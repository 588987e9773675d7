//! `upcast_from = Older`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{DeriveInput, Type, spanned::Spanned};

use super::attr::EventAttr;

/// What stands beside the impl: a trait that ties the event to its older version, so that
/// everything that can be wrong with that version is reported once, where it is named.
pub(crate) fn items(
    older: &Type,
    input: &DeriveInput,
    attr: &EventAttr,
    where_clause: &TokenStream,
) -> TokenStream {
    let span = older.span();
    let private = attr.root.private_at(span);
    let (impl_generics, ty_generics, _) = input.generics.split_for_impl();
    let mut name = input.ident.clone();
    name.set_span(span);
    let assertions = assertions(older, attr);
    let check = input.generics.params.is_empty();
    let check = check.then(|| quote_spanned!(span=> const _: () = __check::<#name>();));
    quote_spanned! {span=>
        trait __Upcast:
            #private::IntegrationEvent + ::core::convert::From<<Self as __Upcast>::Older>
        {
            type Older: #private::IntegrationEvent;
        }

        #[automatically_derived]
        impl #impl_generics __Upcast for #name #ty_generics #where_clause {
            type Older = #older;
        }

        const fn __check<E: __Upcast>() {
            #assertions
        }
        #check

        fn __upcast<E: __Upcast>(
            version: #private::u16,
            payload: &[#private::u8],
        ) -> #private::Result<E, #private::DecodeError> {
            #private::Result::map(
                #private::decode::<E::Older>(version, payload),
                <E as ::core::convert::From<E::Older>>::from,
            )
        }
    }
}

/// The method `upcast`.
pub(crate) fn method(attr: &EventAttr) -> TokenStream {
    let private = attr.root.private();
    quote! {
        fn upcast(
            version: #private::u16,
            payload: &[#private::u8],
        ) -> #private::Result<Self, #private::DecodeError> {
            __upcast::<Self>(version, payload)
        }
    }
}

/// Statements that do not compile unless `E::Older` is an older version of the same event.
fn assertions(older: &Type, attr: &EventAttr) -> TokenStream {
    let span = older.span();
    let private = attr.root.private_at(span);
    let (event_type, version) = (attr.event_type(), attr.version());
    let same = format!(
        "`upcast_from` must name an older version of this event, with the type `{event_type}`"
    );
    let lower = format!("`upcast_from` must name an older version of this event, below {version}");
    quote_spanned! {span=>
        let own = #event_type.as_bytes();
        let older = <E::Older as #private::IntegrationEvent>::TYPE.as_bytes();
        let mut index = 0;
        while index < own.len() && index < older.len() && own[index] == older[index] {
            index += 1;
        }
        ::core::assert!(index == own.len() && index == older.len(), #same);
        ::core::assert!(<E::Older as #private::IntegrationEvent>::VERSION < #version, #lower);
    }
}
