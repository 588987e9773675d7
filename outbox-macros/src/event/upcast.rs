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
    let functions = functions(older, attr);
    let check = input.generics.params.is_empty();
    let check = check
        .then(|| quote_spanned!(span=> #[allow(deprecated)] const _: () = __check::<#name>();));
    quote_spanned! {span=>
        trait __Upcast:
            #private::IntegrationEvent + ::core::convert::From<<Self as __Upcast>::Older>
        {
            type Older: #private::IntegrationEvent;
        }

        #[automatically_derived]
        #[allow(deprecated)]
        impl #impl_generics __Upcast for #name #ty_generics #where_clause {
            type Older = #older;
        }

        #functions
        #check
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

/// The function behind the method, and one that does not compile unless `E::Older` is an older
/// version of the same event.
fn functions(older: &Type, attr: &EventAttr) -> TokenStream {
    let span = older.span();
    let private = attr.root.private_at(span);
    let (event_type, version) = (attr.event_type(), attr.version());
    let same = format!(
        "`upcast_from` must name an older version of this event, with the type `{event_type}`"
    );
    let lower = format!("`upcast_from` must name an older version of this event, below {version}");
    let assertions = quote_spanned! {span=>
        ::core::assert!(
            __is_same(<E::Older as #private::IntegrationEvent>::TYPE.as_bytes(), #event_type.as_bytes()),
            #same
        );
        ::core::assert!(<E::Older as #private::IntegrationEvent>::VERSION < #version, #lower);
    };
    let private = attr.root.private();
    // Generic functions, where the bounds are taken for granted: what does not meet them is
    // reported at the impl alone.
    quote! {
        fn __upcast<E: __Upcast>(
            version: #private::u16,
            payload: &[#private::u8],
        ) -> #private::Result<E, #private::DecodeError> {
            #private::Result::map(
                #private::decode::<E::Older>(version, payload),
                <E as ::core::convert::From<E::Older>>::from,
            )
        }

        const fn __check<E: __Upcast>() {
            #assertions
        }

        const fn __is_same(a: &[#private::u8], b: &[#private::u8]) -> bool {
            let mut index = 0;
            while index < a.len() && index < b.len() && a[index] == b[index] {
                index += 1;
            }
            index == a.len() && index == b.len()
        }
    }
}
