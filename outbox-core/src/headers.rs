//! Message headers: an ordered list of names and values, with the rules that both must follow.

use std::{borrow::Cow, fmt, vec};

use crate::error::{PublishError, PublishErrorKind};

/// Headers of a message, in the order in which they were added.
///
/// Names are compared by bytes, as NATS does. A name may stand more than once; [`get`](Self::get)
/// returns the first value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Cow<'static, str>, Cow<'static, str>)>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// No headers, with room for `capacity`.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// The first value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// Adds a value without checking it: for headers that came from the wire. Literals are not copied.
    pub fn append(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) {
        self.0.push((name.into(), value.into()));
    }

    /// All names and values.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size on the wire in bytes: names, values and four bytes of punctuation each.
    #[must_use]
    pub fn size(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum()
    }
}

impl fmt::Debug for Headers {
    /// Shows the names only: values can be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|(name, _)| name))
            .finish()
    }
}

impl FromIterator<(String, String)> for Headers {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(headers: I) -> Self {
        let headers = headers.into_iter();
        Self(
            headers
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

impl IntoIterator for Headers {
    type Item = (Cow<'static, str>, Cow<'static, str>);
    type IntoIter = vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Checks a header that a user adds to an event.
///
/// # Errors
///
/// [`PublishErrorKind::Header`]: the name is empty, has a character outside printable ASCII or a
/// colon, or is reserved (`Nats-..`, `ce-..`, `outbox-..`); or the value has a control character or
/// begins or ends with a blank (the wire format would not keep it).
pub(crate) fn check(name: &str, value: &str) -> Result<(), PublishError> {
    let refuse = |why: String| Err(PublishError::new(PublishErrorKind::Header, why));
    if name.is_empty()
        || name.len() > 128
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':')
    {
        return refuse(format!(
            "header name {name:?} is not allowed: it must be 1 to 128 printable ASCII characters without blanks and `:`"
        ));
    }
    let lower = name.to_ascii_lowercase();
    if ["nats-", "ce-", "outbox-"]
        .iter()
        .any(|prefix| lower.starts_with(prefix))
    {
        return refuse(format!(
            "header name `{name}` is reserved: choose one that does not begin with `Nats-`, `ce-` or `outbox-`"
        ));
    }
    if value.chars().any(char::is_control) {
        return refuse(format!(
            "the value of header `{name}` has a control character or line break"
        ));
    }
    if value.trim() != value {
        return refuse(format!(
            "the value of header `{name}` begins or ends with a blank"
        ));
    }
    Ok(())
}

/// The column form: one `name: value` a line, each line ended by `\n`.
pub(crate) fn push_line(lines: &mut String, name: &str, value: &str) {
    lines.push_str(name);
    lines.push_str(": ");
    lines.push_str(value);
    lines.push('\n');
}

/// Splits the column form again; a line without a colon is an error that names its number.
pub(crate) fn parse_lines(lines: &str) -> impl Iterator<Item = Result<(&str, &str), usize>> {
    lines
        .lines()
        .enumerate()
        .map(|(number, line)| line.split_once(": ").ok_or(number + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_would_break_the_wire() {
        for (name, value) in [
            ("", "v"),
            ("a b", "v"),
            ("a:b", "v"),
            ("a\n", "v"),
            ("ä", "v"),
            ("Nats-Msg-Id", "v"),
            ("ce-id", "v"),
            ("CE-Id", "v"),
            ("a", "v\r\nb: c"),
            ("a", "\u{7f}"),
            ("a", " v"),
        ] {
            let error = check(name, value).unwrap_err();
            assert_eq!(
                error.kind(),
                PublishErrorKind::Header,
                "{name:?}: {value:?}"
            );
        }
        assert!(check("tenant", "acme 🦀").is_ok());
    }

    #[test]
    fn debug_shows_no_values() {
        let mut headers = Headers::new();
        headers.append("authorization", "hunter2");
        assert_eq!(format!("{headers:?}"), r#"["authorization"]"#);
    }
}
