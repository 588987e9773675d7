//! Durations written as strings: `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::LitStr;

use crate::root::Root;

/// A duration and where it was written.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) value: Duration,
    pub(crate) span: Span,
}

impl Written {
    /// Reads a literal.
    pub(crate) fn read(literal: &LitStr) -> syn::Result<Self> {
        match parse(&literal.value()) {
            Ok(value) => Ok(Self {
                value,
                span: literal.span(),
            }),
            Err(why) => Err(syn::Error::new(literal.span(), why)),
        }
    }

    /// As [`read`](Self::read), and refuses zero.
    pub(crate) fn read_positive(literal: &LitStr) -> syn::Result<Self> {
        let written = Self::read(literal)?;
        if written.value.is_zero() {
            return Err(syn::Error::new(
                literal.span(),
                "expected a duration above zero",
            ));
        }
        Ok(written)
    }

    /// The constant expression.
    pub(crate) fn expand(&self, root: &Root) -> TokenStream {
        let private = root.private();
        let (secs, nanos) = (self.value.as_secs(), self.value.subsec_nanos());
        quote!(#private::Duration::new(#secs, #nanos))
    }
}

fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(expected(text)),
    };
    if number.is_empty() {
        return Err(expected(text));
    }
    let number: Option<u64> = number.parse().ok();
    match number.and_then(|number| number.checked_mul(millis_per_unit)) {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err(format!("the duration `{text}` is too long")),
    }
}

fn expected(text: &str) -> String {
    format!(
        "`{text}` is not a duration: expected a whole number and one of the units `ms`, `s`, `m`, `h`, `d`, as in \"30s\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_unit() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(parse("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "", "s", "1", "1 s", "1.5s", "-1s", "1sec", "1m30s", "s1", "1S", "1µs", "١s",
        ] {
            assert_eq!(parse(text), Err(expected(text)), "{text:?}");
        }
        for text in ["18446744073709551615d", "99999999999999999999s"] {
            assert_eq!(
                parse(text),
                Err(format!("the duration `{text}` is too long")),
                "{text:?}"
            );
        }
    }
}
