//! The rules that a subject must follow, and matching against filters.

use crate::error::{PublishError, PublishErrorKind};

/// The longest subject in bytes. nats-server closes the connection of a client whose protocol line
/// exceeds `max_control_line` (4 KiB by default); this leaves room for prefixes.
pub const MAX_SUBJECT: usize = 1024;

/// Checks a subject that a message is to be published on.
///
/// # Errors
///
/// [`PublishErrorKind::Subject`], naming the rule: dot-separated tokens of printable ASCII, none
/// empty, without blanks and the wildcards `*` and `>`, not beginning with `$` or `_INBOX`, at
/// most [`MAX_SUBJECT`] bytes.
pub fn check_subject(subject: &str) -> Result<(), PublishError> {
    let refuse = |why: &str| {
        let shown: String = subject.chars().take(80).collect();
        Err(PublishError::new(
            PublishErrorKind::Subject,
            format!("subject {shown:?} is not allowed: {why}"),
        ))
    };
    if subject.len() > MAX_SUBJECT {
        return refuse("it is longer than 1024 bytes");
    }
    if subject.starts_with('$') || subject.starts_with("_INBOX") {
        return refuse("subjects that begin with `$` or `_INBOX` belong to NATS");
    }
    for token in subject.split('.') {
        if token.is_empty() {
            return refuse("it has an empty token");
        }
        if !token
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'*' && byte != b'>')
        {
            return refuse("its tokens must be printable ASCII without blanks, `*` and `>`");
        }
    }
    Ok(())
}

/// Whether `subject` is matched by `filter`, which may hold the wildcards `*` (one token) and a
/// trailing `>` (one token or more).
#[must_use]
pub fn subject_matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for part in filter.split('.') {
        if part == ">" {
            return tokens.next().is_some();
        }
        match tokens.next() {
            Some(token) if part == "*" || part == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_nats_would_misread() {
        let long = "a".repeat(MAX_SUBJECT + 1);
        for subject in [
            "", ".", "a..b", ".a", "a.", "a b", "a.*", "a.>", "a\n", "a\u{a0}b", "ä", "$JS.API",
            "_INBOX.x", &long,
        ] {
            assert_eq!(
                check_subject(subject).unwrap_err().kind(),
                PublishErrorKind::Subject,
                "{subject:?}"
            );
        }
        assert!(check_subject("shop.orders.placed-v1_x").is_ok());
    }

    #[test]
    fn matches_as_nats_does() {
        assert!(subject_matches("a.*.c", "a.b.c"));
        assert!(subject_matches("a.>", "a.b.c"));
        assert!(!subject_matches("a.>", "a"));
        assert!(!subject_matches("a.b", "a.b.c"));
        assert!(!subject_matches("a.b.c", "a.b"));
    }
}
