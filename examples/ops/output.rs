//! What goes to the standard output, and how it is made harmless.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The standard output, in the form that was asked for.
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Writes one thing: as an object on one line, or as text.
    pub(crate) fn write(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            // JSON leaves some control characters as they are, and escapes in its strings are free.
            writeln!(out, "{}", escaped_json(&json().to_string()))
        } else {
            writeln!(out, "{}", text())
        }
    }
}

/// Whether a terminal would do something with it, or a reader be misled by it.
fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}')
}

/// A text that others wrote, on one line.
pub(crate) fn line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_dangerous(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Bytes that others wrote: text with its line breaks, anything else escaped.
pub(crate) fn body(bytes: &[u8]) -> String {
    let mut safe = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for part in chunk.valid().split_inclusive(['\n', '\t']) {
            match part.strip_suffix(['\n', '\t']) {
                Some(before) => {
                    safe.push_str(&line(before));
                    safe.push_str(&part[before.len()..]);
                }
                None => safe.push_str(&line(part)),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    safe
}

fn escaped_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if is_dangerous(c) {
            // All of them lie in the basic plane, so one escape is enough.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// How long, roughly: `850 ms`, `12 s`, `3 min`, `2 h`, `5 d`.
pub(crate) fn rough(duration: Duration) -> String {
    match (duration.as_millis(), duration.as_secs()) {
        (millis, 0) => format!("{millis} ms"),
        (_, seconds @ ..120) => format!("{seconds} s"),
        (_, seconds @ ..7200) => format!("{} min", seconds / 60),
        (_, seconds @ ..172_800) => format!("{} h", seconds / 3600),
        (_, seconds) => format!("{} d", seconds / 86_400),
    }
}

pub(crate) fn moment(moment: OffsetDateTime) -> String {
    let seconds = moment.replace_nanosecond(0).unwrap_or(moment);
    seconds
        .format(&Rfc3339)
        .unwrap_or_else(|_| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_act_on() {
        assert_eq!(
            line("a\u{1b}[2Jb\nc\u{202e}d"),
            "a\\u{1b}[2Jb\\nc\\u{202e}d"
        );
        assert_eq!(
            body(b"{\n\t\"a\": \"\x1b\"\xff}"),
            "{\n\t\"a\": \"\\u{1b}\"\\xff}"
        );
        let json = serde_json::json!({ "a": "\u{9b}2J\u{7f}é" }).to_string();
        let safe = escaped_json(&json);
        assert_eq!(safe, r#"{"a":"\u009b2J\u007fé"}"#);
        assert_eq!(
            serde_json::from_str::<Value>(&safe).ok(),
            serde_json::from_str(&json).ok()
        );
    }
}
