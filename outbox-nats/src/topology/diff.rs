//! Differences between what the server has and what the code says.

use std::fmt;

use serde_json::Value;

use crate::api::Settings;

/// One setting that differs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    pub(crate) field: String,
    pub(crate) theirs: Value,
    pub(crate) ours: Value,
}

/// The settings of `ours` that differ in `theirs`; an absent one counts as its zero value.
pub(crate) fn differences(theirs: &Settings, ours: &Settings) -> Vec<Difference> {
    ours.iter()
        .filter_map(|(field, ours)| {
            let theirs = theirs.get(field).unwrap_or(&Value::Null);
            (!same(theirs, ours)).then(|| Difference {
                field: field.clone(),
                theirs: theirs.clone(),
                ours: ours.clone(),
            })
        })
        .collect()
}

fn same(theirs: &Value, ours: &Value) -> bool {
    if is_zero(theirs) && is_zero(ours) {
        return true;
    }
    match (theirs, ours) {
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len() && theirs.iter().all(|one| ours.contains(one))
        }
        _ => theirs == ours,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::Bool(true) => false,
    }
}

/// All differences in one line.
pub(crate) fn list(differences: &[Difference]) -> String {
    differences
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            theirs,
            ours,
        } = self;
        write!(
            f,
            "`{field}` is {} on the server and {} in the code",
            Shown(field, theirs),
            Shown(field, ours)
        )
    }
}

/// A value as a person reads it: JetStream counts durations in nanoseconds.
pub(crate) struct Shown<'a>(pub(crate) &'a str, pub(crate) &'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DURATIONS: [&str; 4] = [
            "ack_wait",
            "max_age",
            "duplicate_window",
            "inactive_threshold",
        ];
        match (self.1, self.1.as_u64()) {
            (_, Some(0)) | (Value::Null, _) => f.write_str("not set"),
            (_, Some(nanos)) if DURATIONS.contains(&self.0) => {
                write!(f, "{:?}", std::time::Duration::from_nanos(nanos))
            }
            (Value::String(text), _) => f.write_str(text),
            (other, _) => other.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(value: &Value) -> Settings {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn names_field_and_both_values() {
        let theirs = settings(
            &json!({ "ack_wait": 30_000_000_000u64, "filter_subjects": ["b", "a"], "other": 1 }),
        );
        let ours = settings(
            &json!({ "ack_wait": 5_000_000_000u64, "filter_subjects": ["a", "b"], "backoff": [] }),
        );
        let found = differences(&theirs, &ours);
        assert_eq!(
            list(&found),
            "`ack_wait` is 30s on the server and 5s in the code"
        );
    }
}
