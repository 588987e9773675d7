//! The annotated function, as far as it is looked at.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Attribute, Signature, Token, Visibility,
    parse::{Parse, ParseStream},
};

/// A function whose body stays unread: the compiler reports what is wrong in it, in its place.
pub(crate) struct Function {
    attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
}

const NOT_A_FUNCTION: &str = "`#[handler]` is for async functions";

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis: Visibility = input.parse()?;
        // `default`, `const`, `async`, `unsafe`, `extern "C"`, `fn`: only a function has a `fn`
        // before its name.
        let ahead = input.fork();
        while !ahead.is_empty() && !ahead.peek(Token![fn]) {
            let keyword = ahead.peek(Token![const])
                || ahead.peek(Token![async])
                || ahead.peek(Token![unsafe])
                || ahead.peek(Token![extern])
                || ahead.peek(syn::LitStr);
            if !keyword {
                return Err(input.error(NOT_A_FUNCTION));
            }
            ahead.parse::<proc_macro2::TokenTree>()?;
        }
        let sig: Signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(input.error("a handler needs a body"));
        }
        input.parse::<TokenStream>()?;
        Ok(Self { attrs, vis, sig })
    }
}

impl Function {
    /// The conditions under which the function exists, for what is added beside it.
    pub(crate) fn cfgs(&self) -> TokenStream {
        let cfgs = self.attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
        quote!(#(#cfgs)*)
    }
}
