//! Logging an outage without flooding the log.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// At most one line in this time while an outage lasts.
const EVERY: Duration = Duration::from_secs(30);

/// Logs the beginning, now and then the middle, and the end of an outage of one thing.
#[derive(Debug)]
pub(crate) struct OutageLog {
    what: &'static str,
    since: Option<Instant>,
    logged: Option<Instant>,
    failures: u64,
}

impl OutageLog {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self {
            what,
            since: None,
            logged: None,
            failures: 0,
        }
    }

    /// It failed (again).
    pub(crate) fn failed(&mut self, scope: &str, error: &(dyn std::error::Error + 'static)) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.failures += 1;
        if self.logged.is_none_or(|logged| now - logged >= EVERY) {
            self.logged = Some(now);
            tracing::warn!(scope, failures = self.failures, error = %Chain(error), "{} failed; trying again", self.what);
        }
    }

    /// It worked.
    pub(crate) fn worked(&mut self, scope: &str) {
        if let Some(since) = self.since.take() {
            tracing::info!(scope, lasted = ?since.elapsed(), failures = self.failures, "{} works again", self.what);
            self.logged = None;
            self.failures = 0;
        }
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        u32::try_from(self.failures).unwrap_or(u32::MAX)
    }
}

/// An error with its causes, on one line.
pub(crate) struct Chain<'e>(pub(crate) &'e (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        f.write_str(&one_line(&text, 1000))
    }
}

/// `text` on one line: control and bidirectional characters escaped, at most `limit` characters.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for (count, character) in text.chars().enumerate() {
        if count >= limit {
            out.push('…');
            break;
        }
        match character {
            '\n' => out.push_str("\\n"),
            c if c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}') =>
            {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}

/// The beginning of a text that others wrote, for a field of a log line; subscribers escape it.
pub(crate) fn short(text: &str) -> &str {
    text.get(..text.floor_char_boundary(200)).unwrap_or(text)
}
