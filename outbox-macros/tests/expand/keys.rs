//! The ordering key.

use std::{borrow::Cow, sync::Arc};

use outbox_core::{IntegrationEvent, OrderingKey};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    id: Uuid,
    customer: (u32, Option<String>),
}

impl Order {
    fn label(&self) -> String {
        format!("order-{}", self.customer.0)
    }
}

fn order(name: Option<&str>) -> Order {
    Order {
        id: Uuid::from_u128(7),
        customer: (42, name.map(str::to_owned)),
    }
}

macro_rules! events {
    ($($name:ident($key:tt $($rest:tt)*);)*) => {$(
        #[derive(Serialize, Deserialize, IntegrationEvent)]
        #[event(subject = "a.key", key = $key $($rest)*)]
        struct $name {
            order: Order,
            #[serde(rename = "renamed")]
            number: u64,
        }

        impl $name {
            #[allow(dead_code)]
            fn order_key(&self) -> String {
                format!("{}/{}", self.order.id, self.number)
            }

            #[allow(dead_code)]
            fn borrowed(&self) -> &str {
                self.order.customer.1.as_deref().unwrap_or("nobody")
            }

            #[allow(dead_code)]
            fn sometimes(&self) -> Option<Cow<'_, str>> {
                (self.number > 1).then(|| Cow::Borrowed("many"))
            }
        }
    )*};
}

events! {
    Field(number);
    Nested(order.id);
    NestedTuple(order.customer.0);
    NestedOption(order.customer.1);
    Method(order_key());
    BorrowedMethod(borrowed());
    OptionalMethod(sometimes());
    NestedMethod(order.label());
    WithSelf(self.order.id);
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a.tuple", key = 1.0)]
struct Tuple(u8, (String,));

struct OrderId(String);

impl OrderingKey for OrderId {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        self.0.ordering_key()
    }
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a.newtype", key = id)]
struct Newtype {
    #[serde(with = "as_string")]
    id: OrderId,
    #[serde(skip)]
    _note: Option<Arc<str>>,
}

mod as_string {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::OrderId;

    pub(super) fn serialize<S: Serializer>(id: &OrderId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&id.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<OrderId, D::Error> {
        String::deserialize(deserializer).map(OrderId)
    }
}

#[test]
fn is_a_field_or_a_path_of_fields() {
    let id = Uuid::from_u128(7).to_string();
    assert_eq!(
        Field {
            order: order(None),
            number: 9
        }
        .key()
        .as_deref(),
        Some("9")
    );
    assert_eq!(
        Nested {
            order: order(None),
            number: 9
        }
        .key()
        .as_deref(),
        Some(&*id)
    );
    assert_eq!(
        WithSelf {
            order: order(None),
            number: 9
        }
        .key()
        .as_deref(),
        Some(&*id)
    );
    assert_eq!(
        NestedTuple {
            order: order(None),
            number: 9
        }
        .key()
        .as_deref(),
        Some("42")
    );
    assert_eq!(Tuple(1, ("t".to_owned(),)).key().as_deref(), Some("t"));
}

#[test]
fn borrows_from_a_string() {
    let event = NestedOption {
        order: order(Some("n")),
        number: 9,
    };
    assert!(matches!(event.key(), Some(Cow::Borrowed("n"))));
}

#[test]
fn may_be_absent() {
    assert_eq!(
        NestedOption {
            order: order(None),
            number: 9
        }
        .key(),
        None
    );
    assert_eq!(
        OptionalMethod {
            order: order(None),
            number: 1
        }
        .key(),
        None
    );
    assert_eq!(
        OptionalMethod {
            order: order(None),
            number: 2
        }
        .key()
        .as_deref(),
        Some("many")
    );
}

#[test]
fn may_come_from_a_method() {
    let id = Uuid::from_u128(7);
    assert_eq!(
        Method {
            order: order(None),
            number: 9
        }
        .key(),
        Some(format!("{id}/9").into())
    );
    assert_eq!(
        BorrowedMethod {
            order: order(None),
            number: 9
        }
        .key()
        .as_deref(),
        Some("nobody")
    );
    assert_eq!(
        NestedMethod {
            order: order(None),
            number: 9
        }
        .key()
        .as_deref(),
        Some("order-42")
    );
}

#[test]
fn may_be_of_the_users_own_type() {
    let event = Newtype {
        id: OrderId("o-1".to_owned()),
        _note: None,
    };
    assert_eq!(event.key().as_deref(), Some("o-1"));
}
