//! A chain of older versions is followed.

use outbox_core::{IntegrationEvent, decode, error::DecodeErrorKind};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.placed", version = 1)]
#[deprecated = "read, and no longer written"]
struct PlacedV1 {
    id: u32,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.placed", version = 2, upcast_from = PlacedV1)]
struct PlacedV2 {
    order_id: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.v4.placed", type = "shop.placed", version = 4, upcast_from = PlacedV2)]
struct Placed {
    order_id: String,
    total: Option<i64>,
}

#[allow(deprecated)]
impl From<PlacedV1> for PlacedV2 {
    fn from(older: PlacedV1) -> Self {
        Self {
            order_id: format!("o-{}", older.id),
        }
    }
}

impl From<PlacedV2> for Placed {
    fn from(older: PlacedV2) -> Self {
        Self {
            order_id: older.order_id,
            total: None,
        }
    }
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.changed")]
struct ChangedV1<T, U>(T, U);

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.changed", upcast_from = ChangedV1<T, u8>, version = 2)]
struct Changed<T> {
    item: T,
}

impl<T> From<ChangedV1<T, u8>> for Changed<T> {
    fn from(older: ChangedV1<T, u8>) -> Self {
        Self { item: older.0 }
    }
}

#[test]
fn every_older_version_is_read() {
    let read = |version, payload: &str| decode::<Placed>(version, payload.as_bytes()).unwrap();
    let placed = |total| Placed {
        order_id: "o-1".to_owned(),
        total,
    };
    assert_eq!(read(1, r#"{"id":1}"#), placed(None));
    assert_eq!(read(2, r#"{"order_id":"o-1"}"#), placed(None));
    assert_eq!(read(4, r#"{"order_id":"o-1","total":5}"#), placed(Some(5)));
}

#[test]
fn other_versions_are_refused() {
    let kind = |version, payload: &str| {
        decode::<Placed>(version, payload.as_bytes())
            .unwrap_err()
            .kind()
    };
    assert_eq!(kind(0, "{}"), DecodeErrorKind::UnknownVersion);
    assert_eq!(kind(3, "{}"), DecodeErrorKind::NewerVersion);
    assert_eq!(kind(5, "{}"), DecodeErrorKind::NewerVersion);
    assert_eq!(kind(1, "{}"), DecodeErrorKind::Payload);
}

#[test]
fn generic_events_have_older_versions_too() {
    assert_eq!(
        decode::<Changed<u8>>(1, b"[1, 2]").unwrap(),
        Changed { item: 1 }
    );
    assert_eq!(Changed::<u8>::VERSION, 2);
}
