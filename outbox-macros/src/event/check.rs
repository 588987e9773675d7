//! Rules that need nothing but the text or the shape of the type.

use syn::{Data, DeriveInput, Field, Fields, Type};

use crate::{ctxt::Ctxt, tokens};

/// The longest subject and type in bytes.
const LONGEST: usize = 200;

/// Checks a subject.
pub(crate) fn subject(text: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("this subject is not allowed: {why}"));
    if text.is_empty() {
        return refuse("it is empty");
    }
    if text.contains(['{', '}']) {
        return refuse("subjects are fixed, so nothing can be filled in between `{` and `}`");
    }
    if text.starts_with('$') || text.starts_with("_INBOX") {
        return refuse("subjects that begin with `$` or `_INBOX` belong to NATS");
    }
    if text.contains(['*', '>']) {
        return refuse("`*` and `>` are wildcards, and an event is published on one subject");
    }
    printable(text).or_else(|why| refuse(&why))?;
    if text.split('.').any(str::is_empty) {
        return refuse("it has an empty token; tokens are separated by single dots");
    }
    Ok(())
}

/// Checks the stable name of an event.
pub(crate) fn event_type(text: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("this type is not allowed: {why}"));
    if text.is_empty() {
        return refuse("it is empty");
    }
    printable(text).or_else(|why| refuse(&why))
}

fn printable(text: &str) -> Result<(), String> {
    if text.contains(char::is_whitespace) {
        return Err("it has a blank".to_owned());
    }
    if let Some(c) = text.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(format!(
            "`{}` is not a printable ASCII character",
            c.escape_default()
        ));
    }
    if text.len() > LONGEST {
        return Err(format!(
            "it has {} bytes, and {LONGEST} is the limit",
            text.len()
        ));
    }
    Ok(())
}

/// Checks the shape of the type. False if no impl of the trait could compile.
pub(crate) fn shape(input: &DeriveInput, ctxt: &Ctxt) -> bool {
    if let Data::Union(data) = &input.data {
        ctxt.error(data.union_token, "an event is a struct or an enum");
        return false;
    }
    let mut owned = true;
    for lifetime in input.generics.lifetimes() {
        ctxt.error(
            lifetime,
            "events must be owned, since they outlive the message that they are read from: use `String` instead of \
             `&str`, and so on",
        );
        owned = false;
    }
    if owned {
        for field in fields(input).filter(|field| is_read_by_reference(field)) {
            ctxt.error(
                &field.ty,
                "events must be owned: use `String` instead of `&str`, and so on",
            );
            owned = false;
        }
    }
    owned
}

/// With an attribute of serde's, such as `skip`, a `&'static str` can be right.
fn is_read_by_reference(field: &Field) -> bool {
    let reference = matches!(tokens::peel(&field.ty), Type::Reference(_));
    reference && !field.attrs.iter().any(|attr| attr.path().is_ident("serde"))
}

fn fields(input: &DeriveInput) -> impl Iterator<Item = &Field> {
    let of: Vec<&Fields> = match &input.data {
        Data::Struct(data) => vec![&data.fields],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| &variant.fields)
            .collect(),
        Data::Union(_) => Vec::new(),
    };
    of.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_nats_takes_as_one_subject() {
        for text in [
            "a",
            "shop.orders.placed",
            "shop.orders-v1_x.placed",
            "a.$x",
            "a._INBOX",
            &"a".repeat(200),
        ] {
            assert_eq!(subject(text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn refuses_what_nats_would_misread() {
        let long = "a".repeat(201);
        for (text, why) in [
            ("", "empty"),
            (".", "empty token"),
            ("a..b", "empty token"),
            (".a", "empty token"),
            ("a.", "empty token"),
            ("a b", "blank"),
            ("a\tb", "blank"),
            ("a\n", "blank"),
            ("a\u{a0}b", "blank"),
            ("a\u{7f}", "\\u{7f}"),
            ("a\0", "\\u{0}"),
            ("shop.größe", "\\u{f6}"),
            ("a.*", "wildcards"),
            ("a.>", "wildcards"),
            ("orders.{region}.placed", "fixed"),
            ("$JS.API", "belong to NATS"),
            ("_INBOX.x", "belong to NATS"),
            (&long, "201 bytes"),
        ] {
            let refused = subject(text);
            assert!(
                refused.as_ref().is_err_and(|error| error.contains(why)),
                "{text:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_type_is_less_strict_than_a_subject() {
        for text in [
            "com.example.OrderPlaced",
            "orders/placed",
            "a..b",
            "urn:x:*",
        ] {
            assert_eq!(event_type(text), Ok(()), "{text:?}");
        }
        for text in ["", "order placed", "größe", "a\r\nb"] {
            assert!(event_type(text).is_err(), "{text:?}");
        }
    }
}
