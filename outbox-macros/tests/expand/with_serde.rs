//! Attributes of other derives are left alone, and the wire form is serde's.

use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

/// Documented.
#[derive(IntegrationEvent, Debug, Default, Serialize, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[event(subject = "shop.orders.placed", key = order_id)]
struct First {
    #[serde(rename = "id")]
    order_id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    customer_note: Option<String>,
    #[cfg(not(test))]
    gone: NoSuchType,
    #[cfg(test)]
    kept_field: u8,
    #[serde(skip)]
    shown_as: &'static str,
}

#[derive(Debug, IntegrationEvent, Serialize)]
#[event(subject = "shop.orders.placed", key = order_id)]
#[derive(Deserialize, PartialEq)]
#[serde(tag = "kind")]
struct Last {
    order_id: String,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Rest {
    total: i64,
}

#[test]
fn the_key_comes_from_the_rust_field_and_the_names_from_serde() {
    let event = First {
        order_id: "o-1".to_owned(),
        kept_field: 2,
        ..First::default()
    };
    assert_eq!(event.key().as_deref(), Some("o-1"));
    let payload = serde_json::to_string(&event).unwrap();
    assert_eq!(payload, r#"{"id":"o-1","keptField":2}"#);
    assert_eq!(
        outbox_core::decode::<First>(1, payload.as_bytes()).unwrap(),
        event
    );
}

#[test]
fn the_order_of_derives_does_not_matter() {
    let event = Last {
        order_id: "o-1".to_owned(),
        rest: Rest { total: 3 },
    };
    assert_eq!(event.key().as_deref(), Some("o-1"));
    let payload = serde_json::to_string(&event).unwrap();
    assert_eq!(payload, r#"{"kind":"Last","order_id":"o-1","total":3}"#);
    assert_eq!(
        outbox_core::decode::<Last>(1, payload.as_bytes()).unwrap(),
        event
    );
}

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.opened")]
struct Unit;

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.closed")]
struct Skipped {
    #[serde(skip)]
    note: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.listed")]
struct Wrapped<T>(T);

#[test]
fn events_without_content_round_trip() {
    fn check<E>(event: &E, payload: &str)
    where
        E: IntegrationEvent + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(event).unwrap(), payload);
        let read: E = outbox_core::decode(1, payload.as_bytes()).unwrap();
        assert_eq!(read, *event);
        assert!(outbox_core::decode::<E>(1, b"").is_err(), "no bytes at all");
    }
    check(&Unit, "null");
    check(
        &Skipped {
            note: String::new(),
        },
        "{}",
    );
    check(&Wrapped(String::new()), r#""""#);
    check(&Wrapped(Vec::<u8>::new()), "[]");
    check(&Wrapped(None::<u8>), "null");
}
