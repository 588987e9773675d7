//! Sets of subject filters.

/// Whether every subject that `narrow` matches is matched by `wide`.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    let mut narrow = narrow.split('.');
    for part in wide.split('.') {
        match (part, narrow.next()) {
            (">", Some(_)) => return true,
            (_, None | Some(">")) => return false,
            ("*", Some(_)) => {}
            (part, Some(token)) if part == token => {}
            _ => return false,
        }
    }
    narrow.next().is_none()
}

/// The union of filters: sorted, and none that another covers.
pub(crate) fn union<'a>(filters: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut filters: Vec<&str> = filters.into_iter().collect();
    filters.sort_unstable();
    filters.dedup();
    filters
        .iter()
        .filter(|filter| {
            !filters
                .iter()
                .any(|other| other != *filter && covers(other, filter))
        })
        .map(|filter| (*filter).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_filter_covers_a_narrow_one() {
        for (wide, narrow) in [
            ("a.>", "a.b"),
            ("a.*", "a.b"),
            ("a.>", "a.*.c"),
            ("a.>", "a.>"),
            (">", "a"),
            ("a", "a"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("a.*", "a.>"),
            ("a.b", "a.*"),
            ("a.>", "a"),
            ("a", "a.b"),
            ("a.b", "a"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn a_union_has_no_overlaps() {
        assert_eq!(union(["b", "a.x", "a.>", "b"]), ["a.>", "b"]);
    }
}
