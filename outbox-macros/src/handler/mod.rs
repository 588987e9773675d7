//! `#[handler]`.

mod attr;
mod backoff;
mod body;
mod check;
mod expand;
mod input;
mod shape;

use proc_macro2::TokenStream;

use crate::{ctxt::Ctxt, symbol::HANDLER};

/// Expands the attribute. The function is emitted as it came in; what is wrong becomes
/// `compile_error!`s behind it, together with an impl that is as complete as it can be, so that
/// mounting the handler adds no errors of its own.
pub(crate) fn handler(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut tokens = item.clone();
    match expand(options, item) {
        Ok(expansion) => tokens.extend(expansion),
        Err(error) => tokens.extend(error.to_compile_error()),
    }
    tokens
}

fn expand(options: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let function: input::Function = syn::parse2(item)?;
    let ctxt = Ctxt::new();
    let attr = attr::HandlerAttr::read(options, &ctxt);
    attr.root.check(HANDLER)?;
    // A mistake in the options leaves the rest of the impl worth checking.
    let of_signature = Ctxt::new();
    let shape = check::shape(&function.sig, &of_signature);
    attr.check(&shape, &ctxt);
    let expansion = expand::expand(&function, &attr, &shape, of_signature.is_clean());
    let mut tokens = ctxt.into_compile_errors();
    tokens.extend(of_signature.into_compile_errors());
    tokens.extend(expansion);
    Ok(tokens)
}
