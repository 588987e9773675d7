//! Reads `key = value, ..` lists, and goes on after a mistake.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::{
    Lit, LitInt, LitStr, Token,
    ext::IdentExt,
    parse::{Parse, ParseStream},
};

use crate::{ctxt::Ctxt, suggest};

/// A list of options of one macro.
pub(crate) struct Options<'a> {
    /// The names that may stand before `=`.
    known: &'a [&'a str],
    seen: Vec<String>,
}

impl<'a> Options<'a> {
    pub(crate) const fn new(known: &'a [&'a str]) -> Self {
        Self {
            known,
            seen: Vec::new(),
        }
    }

    /// Reads all of `input`. `read` is called behind the `=` of each known option; an error is
    /// kept, and reading goes on behind the next comma.
    pub(crate) fn parse(
        &mut self,
        input: ParseStream<'_>,
        ctxt: &Ctxt,
        mut read: impl FnMut(&str, &Ident, ParseStream<'_>) -> syn::Result<()>,
    ) {
        while !input.is_empty() {
            let clean = match self.parse_one(input, &mut read) {
                Ok(()) => {
                    input.is_empty() || input.peek(Token![,]) || {
                        ctxt.push(input.error("expected `,`"));
                        false
                    }
                }
                Err(error) => {
                    ctxt.push(error);
                    false
                }
            };
            if !clean {
                skip_to_comma(input);
            }
            // The comma, or nothing at the end.
            let _ = input.parse::<Option<Token![,]>>();
        }
    }

    fn parse_one(
        &mut self,
        input: ParseStream<'_>,
        read: &mut impl FnMut(&str, &Ident, ParseStream<'_>) -> syn::Result<()>,
    ) -> syn::Result<()> {
        let key = input
            .call(Ident::parse_any)
            .map_err(|error| syn::Error::new(error.span(), self.expected("expected an option")))?;
        let name = key.unraw().to_string();
        if !self.known.contains(&name.as_str()) {
            let ending = suggest::ending(&name, self.known);
            return Err(syn::Error::new(
                key.span(),
                format!("unknown option `{name}`: {ending}"),
            ));
        }
        if self.seen.contains(&name) {
            return Err(syn::Error::new(
                key.span(),
                format!("the option `{name}` is given twice"),
            ));
        }
        self.seen.push(name.clone());
        if !input.peek(Token![=]) {
            let message = format!("expected a value: `{name} = ..`");
            return Err(syn::Error::new(key.span(), message));
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(syn::Error::new(
                key.span(),
                format!("expected a value: `{name} = ..`"),
            ));
        }
        read(&name, &key, input)
    }

    fn expected(&self, what: &str) -> String {
        let known: Vec<String> = self.known.iter().map(|name| format!("`{name}`")).collect();
        format!("{what}: one of {}", known.join(", "))
    }
}

/// Skips to the next comma that is not between angle brackets.
fn skip_to_comma(input: ParseStream<'_>) {
    let mut depth = 0_usize;
    let mut arrow = false;
    while !input.is_empty() && (depth > 0 || !input.peek(Token![,])) {
        let Ok(token) = input.parse::<TokenTree>() else {
            return;
        };
        let punct = if let TokenTree::Punct(punct) = &token {
            punct.as_char()
        } else {
            ' '
        };
        match punct {
            '<' => depth += 1,
            '>' if !arrow => depth = depth.saturating_sub(1),
            _ => {}
        }
        arrow = punct == '-';
    }
}

/// The error, after skipping the rest of a group: syn adds an error of its own about what is left.
pub(crate) fn give_up(input: ParseStream<'_>, error: syn::Error) -> syn::Error {
    let _ = input.parse::<TokenStream>();
    error
}

/// A string literal.
pub(crate) fn string(input: ParseStream<'_>) -> syn::Result<LitStr> {
    match literal(input) {
        Some(Lit::Str(string)) => Ok(string),
        Some(other) => Err(syn::Error::new(other.span(), "expected a string literal")),
        None => Err(input.error("expected a string literal")),
    }
}

/// A string literal that is to be a duration.
pub(crate) fn duration(input: ParseStream<'_>) -> syn::Result<LitStr> {
    string(input).map_err(|error| {
        syn::Error::new(
            error.span(),
            "expected a duration in quotes, as in \"30s\" or \"250ms\"",
        )
    })
}

/// A whole number from 1 to `most`.
pub(crate) fn positive(input: ParseStream<'_>, most: u32) -> syn::Result<u32> {
    let expected = match most {
        u32::MAX => "expected a whole number above zero".to_owned(),
        most => format!("expected a whole number from 1 to {most}"),
    };
    let value: LitInt = match literal(input) {
        Some(Lit::Int(value)) => value,
        Some(other) => return Err(syn::Error::new(other.span(), expected)),
        None => return Err(input.error(expected)),
    };
    match value.base10_parse::<u32>() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(syn::Error::new(value.span(), expected)),
    }
}

fn literal(input: ParseStream<'_>) -> Option<Lit> {
    // `Lit` would take a minus sign as part of a number.
    if input.peek(Token![-]) {
        None
    } else {
        Lit::parse(input).ok()
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;
    use syn::parse::Parser;

    use super::*;

    fn errors(tokens: TokenStream) -> Vec<String> {
        let ctxt = Ctxt::new();
        let parser = |input: ParseStream<'_>| {
            Options::new(&["name", "number"]).parse(input, &ctxt, |key, _, input| {
                if key == "name" {
                    string(input).map(drop)
                } else {
                    positive(input, 9).map(drop)
                }
            });
            Ok(())
        };
        assert!(parser.parse2(tokens).is_ok());
        ctxt.messages()
    }

    #[test]
    fn goes_on_after_each_mistake() {
        let messages = errors(quote!(nam = A<B, C>, number = 0, "x", name, name = "a" "b"));
        assert_eq!(
            messages,
            [
                "unknown option `nam`: did you mean `name`?",
                "expected a whole number from 1 to 9",
                "expected an option: one of `name`, `number`",
                "expected a value: `name = ..`",
                "the option `name` is given twice",
            ]
        );
        assert_eq!(errors(quote!(name = "a" "b", number = -1)).len(), 2);
        assert_eq!(errors(quote!(name = , number = )).len(), 2);
        assert_eq!(errors(quote!(, ,)).len(), 2);
    }

    #[test]
    fn accepts_a_trailing_comma_and_nothing() {
        assert_eq!(errors(quote!(name = "a", number = 9,)), [""; 0]);
        assert_eq!(errors(quote!()), [""; 0]);
    }
}
