//! Lists of parameters.

use std::iter;

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use outbox_core::store::SeqRuns;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use uuid::Uuid;

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use super::Published;

/// `?, ?, ?`.
pub(crate) fn binds(count: usize) -> String {
    iter::repeat_n("?", count).collect::<Vec<_>>().join(", ")
}

/// `(?, ?), (?, ?)`: `count` tuples of `width` parameters.
pub(crate) fn tuples(count: usize, width: usize) -> String {
    let tuple = format!("({})", binds(width));
    iter::repeat_n(tuple.as_str(), count)
        .collect::<Vec<_>>()
        .join(", ")
}

/// `items`, with the last one repeated up to the next power of two: drivers keep a prepared
/// statement for each text, and so there are few texts. Only for lists in which a repetition does
/// no harm.
pub(crate) fn padded<T>(items: &[T]) -> impl Iterator<Item = &T> + Clone {
    let length = if items.is_empty() {
        0
    } else {
        items.len().next_power_of_two()
    };
    items
        .iter()
        .chain(iter::repeat_n(items.last(), length - items.len()).flatten())
}

/// How many of `rows` the next INSERT takes: all up to eight, then powers of two up to 256, again to
/// keep the number of prepared statements small on the user's connection.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn chunk(rows: usize) -> usize {
    match rows {
        0..=8 => rows,
        9..=511 => 1 << rows.ilog2(),
        _ => 256,
    }
}

/// The gaps between `runs` above `floor` that a number can lie in, as a JSON array of exclusive
/// pairs, and the number above which nothing is excluded any more.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn gaps(floor: i64, runs: &SeqRuns) -> (Option<String>, i64) {
    let mut low = floor;
    let mut gaps = Vec::new();
    for (first, last) in runs.as_slice() {
        if *first > low.saturating_add(1) {
            gaps.push(format!("[{low},{first}]"));
        }
        low = low.max(*last);
    }
    let json = (!gaps.is_empty()).then(|| format!("[{}]", gaps.join(",")));
    (json, low)
}

/// Pairs of a number and an id in hexadecimal digits, as a JSON array of arrays.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn pairs_json(rows: &[(i64, Uuid)]) -> String {
    let rows = rows
        .iter()
        .map(|(number, id)| format!("[{number},\"{}\"]", id.simple()));
    format!("[{}]", rows.collect::<Vec<_>>().join(","))
}

/// Number, id, stream and sequence of published rows, as a JSON array of arrays.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn published_json(rows: &[Published<'_>]) -> String {
    let rows = rows.iter().map(|row| {
        let (id, stream) = (row.id.simple(), json_string(row.stream));
        format!("[{},\"{id}\",{stream},{}]", row.number, row.stream_seq())
    });
    format!("[{}]", rows.collect::<Vec<_>>().join(","))
}

#[cfg(any(feature = "mysql", feature = "sqlite"))]
fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c.is_control() => json.extend(format!("\\u{:04x}", u32::from(c)).chars()),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(tuples(2, 2), "(?, ?), (?, ?)");
        assert_eq!(
            padded(&[1, 2, 3]).copied().collect::<Vec<_>>(),
            [1, 2, 3, 3]
        );
        assert_eq!(padded::<i32>(&[]).count(), 0);
        assert_eq!(padded(&[1, 2]).count(), 2);
    }

    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    #[test]
    fn published_rows_as_json() {
        let (id, stream) = (Uuid::from_u128(7), "a\"\\\n🦀");
        let row = |number, stream_seq| Published {
            number,
            id,
            stream,
            stream_seq,
        };
        assert_eq!(
            published_json(&[row(1, 2), row(-3, u64::MAX)]),
            r#"[[1,"00000000000000000000000000000007","a\"\\\u000a🦀",2],[-3,"00000000000000000000000000000007","a\"\\\u000a🦀",9223372036854775807]]"#
        );
        assert_eq!(
            pairs_json(&[(5, id)]),
            r#"[[5,"00000000000000000000000000000007"]]"#
        );
        assert_eq!(pairs_json(&[]), "[]");
    }

    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    #[test]
    fn gaps_lie_between_runs() {
        let runs = SeqRuns::of([1, 2, 5, 6, 9]);
        assert_eq!(gaps(0, &runs), (Some("[[2,5],[6,9]]".to_owned()), 9));
        assert_eq!(gaps(3, &runs), (Some("[[3,5],[6,9]]".to_owned()), 9));
        assert_eq!(gaps(5, &runs), (Some("[[6,9]]".to_owned()), 9));
        assert_eq!(gaps(20, &runs), (None, 20));
        assert_eq!(gaps(-9, &SeqRuns::default()), (None, -9));
    }

    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    #[test]
    fn chunks_add_up() {
        for mut rows in 1..1_500 {
            while rows > 0 {
                let chunk = chunk(rows);
                assert!(chunk > 0 && chunk <= rows && chunk <= 256);
                rows -= chunk;
            }
        }
    }
}
