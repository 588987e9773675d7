//! Generic events: one wire name for all instances.

use std::marker::PhantomData;

use outbox_core::{IntegrationEvent, OrderingKey};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.changed")]
pub(crate) struct Changed<T> {
    pub(crate) item: T,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.keyed", key = id)]
struct Keyed<K: OrderingKey, T = u8>
where
    T: Clone,
{
    id: K,
    item: T,
}

trait Table {
    type Row;
}

struct Orders;

impl Table for Orders {
    type Row = String;
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.row")]
#[serde(bound = "B::Row: Serialize + DeserializeOwned")]
struct Inserted<B: Table, const N: usize = 4>
where
    B::Row: Sync,
{
    row: B::Row,
    #[serde(skip)]
    table: PhantomData<[B; N]>,
}

#[derive(Serialize, Deserialize)]
struct NotAKey;

fn is_event<E: IntegrationEvent>(_: &E) {}

fn publish_any<T: Serialize + DeserializeOwned + Send + Sync + 'static>(item: T) -> Vec<u8> {
    let event = Changed { item };
    is_event(&event);
    serde_json::to_vec(&event).unwrap()
}

#[test]
fn serdes_own_bounds_suffice() {
    assert_eq!(publish_any(1), br#"{"item":1}"#);
    assert_eq!(publish_any("a".to_owned()), br#"{"item":"a"}"#);
    let read: Changed<u8> = outbox_core::decode(1, br#"{"item":1}"#).unwrap();
    assert_eq!(read, Changed { item: 1 });
    assert_eq!(Changed::<u8>::SUBJECT, Changed::<String>::SUBJECT);
    is_event(&Changed { item: NotAKey });
}

#[test]
fn bounds_defaults_and_constants_are_carried_over() {
    let keyed: Keyed<String> = Keyed {
        id: "k".to_owned(),
        item: 1,
    };
    assert_eq!(keyed.key().as_deref(), Some("k"));
    let inserted = Inserted::<Orders> {
        row: "r".to_owned(),
        table: PhantomData,
    };
    is_event(&inserted);
    assert_eq!(serde_json::to_string(&inserted).unwrap(), r#"{"row":"r"}"#);
    let _: [Option<KeyedEnvelope<u8>>; 0] = [];
    let _: [Option<InsertedEnvelope<Orders, 3>>; 0] = [];
}
