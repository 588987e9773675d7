//! `backoff = exponential("1s", max = "5m")` and `backoff = fixed("1s")`.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::{
    Token, parenthesized,
    parse::{Parse, ParseStream},
    token,
};

use crate::{
    duration::Written,
    options,
    root::Root,
    suggest,
    symbol::{EXPONENTIAL, FIXED, MAX},
};

/// The delay between attempts.
pub(crate) enum Backoff {
    Exponential { initial: Written, max: Written },
    Fixed(Written),
}

const BACKOFFS: &str = "expected `exponential(\"1s\", max = \"5m\")` or `fixed(\"1s\")`";

impl Parse for Backoff {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let kind: Ident = input
            .parse()
            .map_err(|error| syn::Error::new(error.span(), BACKOFFS))?;
        let read = match kind.to_string().as_str() {
            EXPONENTIAL => exponential,
            FIXED => fixed,
            _ => return Err(syn::Error::new(kind.span(), BACKOFFS)),
        };
        if !input.peek(token::Paren) {
            return Err(syn::Error::new(kind.span(), BACKOFFS));
        }
        let arguments;
        parenthesized!(arguments in input);
        if arguments.is_empty() {
            return Err(syn::Error::new(kind.span(), BACKOFFS));
        }
        read(&arguments).map_err(|error| options::give_up(&arguments, error))
    }
}

impl Backoff {
    /// The constant expression.
    pub(crate) fn expand(&self, root: &Root) -> TokenStream {
        let private = root.private();
        match self {
            Self::Exponential { initial, max } => {
                let (initial, max) = (initial.expand(root), max.expand(root));
                quote!(#private::Backoff::exponential(#initial, #max))
            }
            Self::Fixed(delay) => {
                let delay = delay.expand(root);
                quote!(#private::Backoff::fixed(#delay))
            }
        }
    }
}

fn exponential(arguments: ParseStream<'_>) -> syn::Result<Backoff> {
    let first = options::duration(arguments)?;
    let initial = Written::read_positive(&first)?;
    arguments.parse::<Option<Token![,]>>()?;
    if arguments.is_empty() {
        let message = "say how far the delay may grow: `exponential(\"1s\", max = \"5m\")`";
        return Err(syn::Error::new(first.span(), message));
    }
    let key: Ident = arguments
        .parse()
        .map_err(|error| syn::Error::new(error.span(), BACKOFFS))?;
    if key != MAX {
        let ending = suggest::ending(&key.to_string(), &[MAX]);
        return Err(syn::Error::new(
            key.span(),
            format!("unknown option `{key}` of `{EXPONENTIAL}`: {ending}"),
        ));
    }
    arguments.parse::<Token![=]>()?;
    let max = Written::read_positive(&options::duration(arguments)?)?;
    end(arguments)?;
    if max.value < initial.value {
        return Err(syn::Error::new(
            max.span,
            "the longest delay is shorter than the first",
        ));
    }
    Ok(Backoff::Exponential { initial, max })
}

fn fixed(arguments: ParseStream<'_>) -> syn::Result<Backoff> {
    let delay = Written::read(&options::duration(arguments)?)?;
    end(arguments)?;
    Ok(Backoff::Fixed(delay))
}

fn end(arguments: ParseStream<'_>) -> syn::Result<()> {
    arguments.parse::<Option<Token![,]>>()?;
    if arguments.is_empty() {
        Ok(())
    } else {
        Err(arguments.error(BACKOFFS))
    }
}
