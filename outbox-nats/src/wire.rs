//! Headers between core and async-nats.

use std::str::FromStr;

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use outbox_core::Headers;

/// Converts headers for sending.
///
/// async-nats panics on names and values that it cannot send, so they are checked here first.
///
/// # Errors
///
/// Names the header that cannot be sent, never its value.
pub(crate) fn to_nats(headers: &Headers) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter() {
        append(&mut map, name, value)?;
    }
    Ok(map)
}

/// Adds one header.
pub(crate) fn append(map: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
    let refuse = |why: &str| {
        let shown: String = name.chars().take(80).collect();
        Err(format!("header {shown:?} cannot be sent: {why}"))
    };
    if name.is_empty() {
        return refuse("its name is empty");
    }
    let Ok(key) = HeaderName::from_str(name) else {
        return refuse("its name is not allowed");
    };
    let Ok(value) = HeaderValue::from_str(value) else {
        return refuse("its value has a line break");
    };
    map.append(key, value);
    Ok(())
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
            headers.append(name, value.as_str());
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
