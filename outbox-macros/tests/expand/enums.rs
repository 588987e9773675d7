//! Enums have one subject; each of serde's representations round-trips.

use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

macro_rules! event {
    ($name:ident { $($variant:tt)* } $(#[$attr:meta])*) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, IntegrationEvent)]
        #[event(subject = "shop.orders", key = order_id)]
        $(#[$attr])*
        enum $name { $($variant)* }
    };
}

event!(External {
    Placed { total: i64, order_id: String },
    #[serde(rename = "gone")]
    Cancelled { order_id: u32 },
});
event!(Internal { Placed { total: i64, order_id: String }, Cancelled { order_id: u32 } } #[serde(tag = "kind")]);
event!(Adjacent { Placed { total: i64, order_id: String }, Cancelled { order_id: u32 } }
    #[serde(tag = "kind", content = "data", rename_all = "kebab-case")]);
event!(Untagged { Placed { total: i64, order_id: String }, Cancelled { order_id: u32 } } #[serde(untagged)]);

#[derive(Debug, PartialEq, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.mixed", key = label())]
enum Mixed {
    Unit,
    Tuple(u8, String),
    Struct { id: u8 },
}

impl Mixed {
    fn label(&self) -> Option<&str> {
        match self {
            Self::Unit => None,
            Self::Tuple(_, label) => Some(label),
            Self::Struct { .. } => Some("struct"),
        }
    }
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.tuples", key = 1.id)]
enum Tuples {
    Small(u8, Part),
    Large(u64, Part, String),
}

#[derive(Serialize, Deserialize)]
struct Part {
    id: String,
}

fn round_trip<E: IntegrationEvent>(event: &E) -> E {
    outbox_core::decode(E::VERSION, &serde_json::to_vec(event).unwrap()).unwrap()
}

macro_rules! check {
    ($($name:ident: $json:expr;)*) => {$(
        let placed = $name::Placed { total: 1, order_id: "o-1".to_owned() };
        assert_eq!(placed.key().as_deref(), Some("o-1"));
        assert_eq!(round_trip(&placed), placed);
        let cancelled = $name::Cancelled { order_id: 7 };
        assert_eq!(cancelled.key().as_deref(), Some("7"));
        assert_eq!(round_trip(&cancelled), cancelled);
        assert_eq!(serde_json::to_string(&cancelled).unwrap(), $json);
    )*};
}

#[test]
fn each_representation_round_trips_with_its_key() {
    check! {
        External: r#"{"gone":{"order_id":7}}"#;
        Internal: r#"{"kind":"Cancelled","order_id":7}"#;
        Adjacent: r#"{"kind":"cancelled","data":{"order_id":7}}"#;
        Untagged: r#"{"order_id":7}"#;
    }
}

#[test]
fn variants_of_all_shapes_may_share_a_method() {
    for (event, key) in [
        (Mixed::Unit, None),
        (Mixed::Tuple(1, "t".to_owned()), Some("t")),
        (Mixed::Struct { id: 1 }, Some("struct")),
    ] {
        assert_eq!(event.key().as_deref(), key);
        assert_eq!(round_trip(&event), event);
    }
}

#[test]
fn tuple_variants_are_keyed_by_position() {
    let part = |id: &str| Part { id: id.to_owned() };
    assert_eq!(Tuples::Small(1, part("a")).key().as_deref(), Some("a"));
    assert_eq!(
        Tuples::Large(1, part("b"), String::new()).key().as_deref(),
        Some("b")
    );
}
