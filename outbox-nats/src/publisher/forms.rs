//! Header maps that are made from earlier ones.
//!
//! Most messages have the same header names, and many the same values. async-nats hashes every name of
//! every message; a clone of a map hashes none, so only what differs from message to message is put in.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use async_nats::{HeaderMap, HeaderName, HeaderValue, header::NATS_MESSAGE_ID};
use outbox_core::Headers;
use uuid::Uuid;

use crate::wire;

/// So many sets of names are kept.
const KEPT: usize = 4;

/// The forms of the latest messages.
#[derive(Default)]
pub(super) struct Forms(Mutex<VecDeque<Form>>);

/// The headers of messages that have the same names.
struct Form {
    fields: Vec<Field>,
    with_id: bool,
    /// What does not vary; what does is empty.
    map: HeaderMap,
}

struct Field {
    text: String,
    name: HeaderName,
    /// `None` once two messages differed.
    value: Option<String>,
}

impl Forms {
    /// The headers as async-nats takes them, with the message's id.
    ///
    /// # Errors
    ///
    /// Names the header that cannot be sent, never its value.
    pub(super) fn fill(&self, headers: Headers, id: Option<Uuid>) -> Result<HeaderMap, String> {
        let mut map = self.headers(headers, id.is_some())?;
        if let Some(id) = id {
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            map.insert(NATS_MESSAGE_ID, &*id.hyphenated().encode_lower(&mut text));
        }
        Ok(map)
    }

    fn headers(&self, headers: Headers, with_id: bool) -> Result<HeaderMap, String> {
        let mut forms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(form) = forms.iter_mut().find(|form| form.fits(&headers, with_id)) {
            return form.fill(headers);
        }
        if wire::may_repeat(&headers) {
            return wire::to_nats(headers);
        }
        let mut form = Form::of(&headers, with_id)?;
        let map = form.fill(headers)?;
        forms.truncate(KEPT - 1);
        forms.push_front(form);
        Ok(map)
    }
}

impl Form {
    fn of(headers: &Headers, with_id: bool) -> Result<Self, String> {
        let mut map = HeaderMap::new();
        let mut fields = Vec::with_capacity(headers.len());
        for (name, value) in headers.iter() {
            let field = Field {
                text: name.to_owned(),
                name: wire::checked_name(name.to_owned().into())?,
                value: Some(value.to_owned()),
            };
            let value = wire::checked_value(name, value.to_owned().into())?;
            map.insert(field.name.clone(), value);
            fields.push(field);
        }
        if with_id {
            // Its place, so that a clone need not grow.
            map.insert(NATS_MESSAGE_ID, HeaderValue::new());
        }
        Ok(Self {
            fields,
            with_id,
            map,
        })
    }

    fn fits(&self, headers: &Headers, with_id: bool) -> bool {
        self.with_id == with_id
            && self.fields.len() == headers.len()
            && self
                .fields
                .iter()
                .zip(headers.iter())
                .all(|(field, (name, _))| field.text == name)
    }

    fn fill(&mut self, headers: Headers) -> Result<HeaderMap, String> {
        for (field, (_, value)) in self.fields.iter_mut().zip(headers.iter()) {
            if field.value.as_deref().is_some_and(|known| known != value) {
                field.value = None;
                self.map.insert(field.name.clone(), HeaderValue::new());
            }
        }
        let mut map = self.map.clone();
        for (field, (name, value)) in self.fields.iter().zip(headers) {
            if field.value.is_none() {
                map.insert(field.name.clone(), wire::checked_value(&name, value)?);
            }
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&str, &str)]) -> Headers {
        let all = all
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        all.collect()
    }

    /// Whatever was filled before: the same as without forms.
    #[test]
    fn a_form_changes_nothing() {
        let forms = Forms::default();
        let names = ["a", "b", "c", "Nats-Expected-Stream", "d"];
        let values = ["", "1", "2"];
        for round in 0..2_000 {
            let count = fastrand::usize(0..=names.len());
            let all: Vec<_> = (0..count)
                .map(|at| {
                    (
                        names[(at + round % 3) % names.len()],
                        *fastrand::choice(&values).unwrap(),
                    )
                })
                .collect();
            let id = fastrand::bool().then(Uuid::now_v7);
            let map = forms.fill(headers(&all), id).unwrap();
            let mut expected = wire::to_nats(headers(&all)).unwrap();
            if let Some(id) = id {
                expected.insert(NATS_MESSAGE_ID, id.to_string().as_str());
            }
            assert_eq!(map, expected, "round {round}: {all:?}");
        }
    }

    #[test]
    fn values_are_checked_in_a_known_form_as_well() {
        let forms = Forms::default();
        forms.fill(headers(&[("a", "1")]), None).unwrap();
        for bad in ["x\ny", "x\ry"] {
            let error = forms.fill(headers(&[("a", bad)]), None).unwrap_err();
            assert!(error.contains("\"a\"") && !error.contains('x'), "{error}");
        }
        let map = forms.fill(headers(&[("a", "2")]), None).unwrap();
        assert_eq!(map.get("a").map(HeaderValue::as_str), Some("2"));
    }

    #[test]
    fn repeated_names_keep_all_their_values() {
        let forms = Forms::default();
        for _ in 0..2 {
            let map = forms
                .fill(headers(&[("a", "1"), ("a", "2")]), None)
                .unwrap();
            assert_eq!(map.get_all("a").count(), 2);
        }
    }
}
