//! Headers between core and async-nats.

use std::{borrow::Cow, str::FromStr};

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use outbox_core::Headers;

/// Converts headers for sending.
///
/// async-nats panics on names and values that it cannot send, so they are checked here first.
///
/// # Errors
///
/// Names the header that cannot be sent, never its value.
pub(crate) fn to_nats(headers: Headers) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    let repeats = may_repeat(&headers);
    for (name, value) in headers {
        let value = checked_value(&name, value)?;
        let name = checked_name(name)?;
        // An insertion does not look for earlier values of the name.
        if repeats {
            map.append(name, value);
        } else {
            map.insert(name, value);
        }
    }
    Ok(map)
}

/// Whether a name may stand more than once: it does, or there are too many to compare.
pub(crate) fn may_repeat(headers: &Headers) -> bool {
    const MANY: usize = 32;
    headers.len() > MANY
        || headers
            .iter()
            .enumerate()
            .any(|(at, (name, _))| headers.iter().take(at).any(|(other, _)| other == name))
}

/// Adds one header.
pub(crate) fn append(
    map: &mut HeaderMap,
    name: Cow<'static, str>,
    value: Cow<'static, str>,
) -> Result<(), String> {
    let value = checked_value(&name, value)?;
    map.append(checked_name(name)?, value);
    Ok(())
}

pub(crate) fn checked_name(name: Cow<'static, str>) -> Result<HeaderName, String> {
    if name.is_empty() {
        return Err(refuse(&name, "its name is empty"));
    }
    let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    match name {
        // Not copied, and not checked by `from_static`.
        Cow::Borrowed(known) if known.bytes().all(allowed) => Ok(HeaderName::from_static(known)),
        other => {
            HeaderName::from_str(&other).map_err(|_| refuse(&other, "its name is not allowed"))
        }
    }
}

pub(crate) fn checked_value(name: &str, value: Cow<'static, str>) -> Result<HeaderValue, String> {
    if value.bytes().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Err(refuse(name, "its value has a line break"));
    }
    Ok(HeaderValue::from(value.into_owned()))
}

fn refuse(name: &str, why: &str) -> String {
    let shown: String = name.chars().take(80).collect();
    format!("header {shown:?} cannot be sent: {why}")
}

/// Converts received headers: sorted by name, since async-nats does not keep their order.
pub(crate) fn from_nats(map: &HeaderMap) -> Headers {
    let mut sorted: Vec<(&str, &[HeaderValue])> = map
        .iter()
        .map(|(name, values)| (name.as_ref(), values.as_slice()))
        .collect();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    let mut headers = Headers::with_capacity(sorted.len());
    for (name, values) in sorted {
        for value in values {
            headers.append(name.to_owned(), value.as_str().to_owned());
        }
    }
    headers
}

/// Whether a header belongs to NATS or to us, and not to the message.
pub(crate) fn is_reserved(name: &str) -> bool {
    ["nats-", "outbox-"].iter().any(|prefix| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_name_is_sent() {
        for others in [0, 40] {
            let mut headers = Headers::new();
            for (name, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
                headers.append(name, value);
            }
            for number in 0..others {
                headers.append(format!("x-{number}"), "y");
            }
            let map = to_nats(headers).unwrap();
            let values =
                |name: &str| -> Vec<_> { map.get_all(name).map(HeaderValue::as_str).collect() };
            assert_eq!((values("a"), values("b")), (vec!["1", "3"], vec!["2"]));
            assert_eq!(map.len(), 2 + others);
        }
    }
}
