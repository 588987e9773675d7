//! Texts that go into columns.

/// The longest error text that is stored, in bytes.
pub(crate) const MAX_ERROR: usize = 2_000;

/// An error's text, cut to [`MAX_ERROR`] bytes at a character's end. PostgreSQL cannot store NUL.
pub(crate) fn clip(text: Option<&str>) -> Option<String> {
    let text = text?;
    let mut end = text.len().min(MAX_ERROR);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(text[..end].replace('\0', "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_cut_between_characters() {
        let text = "🦀".repeat(600);
        let cut = clip(Some(&text)).unwrap();
        assert!(cut.len() <= MAX_ERROR && cut.len() > MAX_ERROR - 4);
        assert!(text.starts_with(&cut));
        assert_eq!(clip(Some("a\0b")).as_deref(), Some("a\u{fffd}b"));
        assert_eq!(clip(None), None);
    }
}
