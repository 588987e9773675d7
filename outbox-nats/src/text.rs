//! Text that is safe in a header, a log line or a protocol message.

/// `text` in one line of at most `limit` bytes, control characters escaped.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit));
    for char in text.trim().chars() {
        let from = out.len();
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Line and paragraph separators are no control characters, but are taken for line ends.
            char if char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') => {
                out.extend(char.escape_unicode());
            }
            char => out.push(char),
        }
        if out.len() > limit {
            out.truncate(from);
            break;
        }
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn stays_in_one_line_and_within_its_limit() {
        assert_eq!(
            one_line(" a\r\n\u{2028}b\u{0} ", 100),
            "a\\r\\n\\u{2028}b\\u{0}"
        );
        assert_eq!(one_line("ääää", 5), "ää");
        assert_eq!(one_line("ab   ", 4), "ab");
        assert_eq!(one_line("a\n\nb", 4), "a\\n");
    }
}
