//! Messages as a stream holds them, read without parsing their headers on the way.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use outbox_core::Headers;
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::ApiError;

/// A stored message.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    /// The header block, byte for byte.
    pub(crate) raw_headers: Vec<u8>,
    pub(crate) payload: Bytes,
    pub(crate) stored_at: OffsetDateTime,
}

#[derive(Deserialize)]
pub(super) struct Encoded {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: Option<String>,
    #[serde(default)]
    data: Option<String>,
    time: String,
}

impl Encoded {
    pub(super) fn decode(self) -> Result<Stored, ApiError> {
        let bytes = |text: Option<String>| {
            STANDARD
                .decode(text.unwrap_or_default())
                .map_err(|error| ApiError::Unreadable(error.to_string()))
        };
        Ok(Stored {
            subject: self.subject,
            sequence: self.seq,
            raw_headers: bytes(self.hdrs)?,
            payload: bytes(self.data)?.into(),
            stored_at: OffsetDateTime::parse(&self.time, &Rfc3339)
                .map_err(|error| ApiError::Unreadable(error.to_string()))?,
        })
    }
}

impl Stored {
    /// The headers, sorted by name as those of deliveries are; those of messages that we stored are
    /// always readable.
    pub(crate) fn headers(&self) -> Headers {
        let headers = readable(&self.raw_headers).unwrap_or_default();
        let mut sorted: Vec<_> = headers.iter().collect();
        sorted.sort_by_key(|(name, _)| *name);
        sorted
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

/// Reads a header block as async-nats does; `None` if async-nats would not, and end its connection
/// instead.
pub(crate) fn readable(block: &[u8]) -> Option<Headers> {
    let mut headers = Headers::new();
    if block.is_empty() {
        return Some(headers);
    }
    let mut lines = std::str::from_utf8(block).ok()?.lines().peekable();
    let status = lines.next()?.strip_prefix("NATS/1.0")?.trim();
    let status = status
        .split_once(' ')
        .map_or(status, |(status, _)| status.trim());
    if !status.is_empty() && status.parse::<async_nats::StatusCode>().is_err() {
        return None;
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':')?;
        if name.contains(|c: char| !c.is_ascii_graphic()) {
            return None;
        }
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        value.truncate(value.trim_end().len());
        if value.contains(['\r', '\n']) {
            return None;
        }
        headers.append(name.to_owned(), value);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn tells_what_would_end_a_connection() {
        for block in [
            &b"NATS/1.0\r\na: \xff\r\n\r\n"[..],
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\na b: c\r\n\r\n",
            b"NATS/1.0abc\r\na: b\r\n\r\n",
            b"HTTP/1.1\r\n\r\n",
            b"NATS/1.0\r\na: b\rc\r\n\r\n",
        ] {
            assert!(
                readable(block).is_none(),
                "{:?}",
                String::from_utf8_lossy(block)
            );
        }
        let headers = readable(b"NATS/1.0\r\na: b\r\nc:  d \r\na: e\r\n\r\n").unwrap();
        let headers: Vec<_> = headers.iter().collect();
        assert_eq!(headers, [("a", "b"), ("c", "d"), ("a", "e")]);
        assert!(readable(b"").unwrap().is_empty());
        assert!(readable(b"NATS/1.0 503\r\n\r\n").is_some());
    }
}
