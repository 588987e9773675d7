//! "Did you mean ..?"

/// The ending of an error about an unknown name: the nearest known one, or all of them.
pub(crate) fn ending<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    if let Some(near) = nearest(name, known) {
        return format!("did you mean `{near}`?");
    }
    let listed: Vec<String> = known
        .iter()
        .map(|name| format!("`{}`", name.as_ref()))
        .collect();
    match listed.as_slice() {
        [] => "there are none".to_owned(),
        [one] => format!("the only one is {one}"),
        all => format!("expected one of {}", all.join(", ")),
    }
}

/// The known name that differs from `name` in at most a third of its characters.
fn nearest<'a, S: AsRef<str>>(name: &str, known: &'a [S]) -> Option<&'a str> {
    let most = (name.chars().count() / 3).max(1);
    known
        .iter()
        .map(AsRef::as_ref)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to
/// turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("subject", "subject"), 0);
        assert_eq!(distance("subjcet", "subject"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn names_the_nearest_or_all() {
        let known = ["subject", "version", "key"];
        assert_eq!(ending("subjects", &known), "did you mean `subject`?");
        assert_eq!(ending("kye", &known), "did you mean `key`?");
        assert_eq!(
            ending("retries", &known),
            "expected one of `subject`, `version`, `key`"
        );
        assert_eq!(ending("x", &["key"]), "the only one is `key`");
        assert_eq!(ending::<&str>("x", &[]), "there are none");
    }
}
