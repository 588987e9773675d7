//! `#[derive(IntegrationEvent)]`.

mod attr;
mod check;
mod expand;
mod key;
mod upcast;

use proc_macro2::TokenStream;
use syn::DeriveInput;

use crate::ctxt::Ctxt;

/// Expands the derive. What is wrong becomes `compile_error!`s beside an impl that is as complete
/// as it can be, so that uses of the event add no errors of their own.
pub(crate) fn derive(input: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.to_compile_error(),
    };
    let ctxt = Ctxt::new();
    let attr = attr::EventAttr::read(&input, &ctxt);
    if let Err(error) = attr.root.check(crate::symbol::EVENT) {
        return error.to_compile_error();
    }
    let owned = check::shape(&input, &ctxt);
    let expansion = if owned {
        expand::expand(&input, &attr, &ctxt)
    } else {
        TokenStream::new()
    };
    let mut tokens = ctxt.into_compile_errors();
    tokens.extend(expansion);
    tokens
}
