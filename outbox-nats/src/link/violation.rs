//! What the server says, outside of any reply, about missing rights.

/// The subject that a permissions violation names.
///
/// The server writes `Permissions Violation for Publish to "a.b"`, `.. for Subscription to "a.b"`
/// (with `using queue "q"` after it) and `.. for Publish with Reply of "a.b"`.
pub(crate) fn subject(text: &str) -> Option<&str> {
    let start = text.len().min("permissions violation".len());
    if !text
        .get(..start)?
        .eq_ignore_ascii_case("permissions violation")
    {
        return None;
    }
    let (_, rest) = text.split_once('"')?;
    let (subject, _) = rest.split_once('"')?;
    Some(subject)
}

#[cfg(test)]
mod tests {
    use super::subject;

    #[test]
    fn names_the_subject() {
        assert_eq!(
            subject(r#"Permissions Violation for Publish to "shop.x""#),
            Some("shop.x")
        );
        assert_eq!(
            subject(r#"Permissions Violation for Subscription to "_INBOX.a.*" using queue "q""#),
            Some("_INBOX.a.*")
        );
        assert_eq!(subject("maximum payload violation"), None);
        assert_eq!(subject(""), None);
    }
}
