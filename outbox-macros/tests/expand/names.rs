//! Type, version and subject come from the attribute, never from the Rust name.

use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed")]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: String,
}

#[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
#[event(
    subject = "shop.orders.cancelled",
    type = "com.example/order-cancelled",
    version = 7
)]
struct Cancelled;

/// Moved and renamed, with the name that messages in flight still bear.
mod moved {
    use super::{Deserialize, IntegrationEvent, Serialize};

    #[derive(Serialize, Deserialize, IntegrationEvent)]
    #[event(subject = "shop.orders.placed")]
    pub(crate) struct PurchaseMade {
        pub(crate) order_id: String,
    }
}

/// Options may be spread over several attributes.
#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a.b", version = 2)]
#[event(key = r#type)]
#[allow(dead_code)]
struct r#Raw {
    r#type: String,
    r#match: u8,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a.renamed", crate = "renamed")]
struct ByRename(u8);

mod facade {
    pub(crate) use outbox_core as core;
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a.facade", crate = "crate::names::facade::core", key = 0)]
struct ByFacade(u8);

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a.unquoted", crate = super::names::facade::core,)]
struct ByFacadeUnquoted(u8);

#[test]
fn the_type_defaults_to_the_subject_and_the_version_to_one() {
    assert_eq!(OrderPlaced::TYPE, "shop.orders.placed");
    assert_eq!(OrderPlaced::SUBJECT, "shop.orders.placed");
    assert_eq!(OrderPlaced::VERSION, 1);
    assert_eq!(
        OrderPlaced {
            order_id: "o-1".to_owned()
        }
        .key(),
        None
    );
}

#[test]
fn each_can_be_given() {
    assert_eq!(Cancelled::TYPE, "com.example/order-cancelled");
    assert_eq!(Cancelled::SUBJECT, "shop.orders.cancelled");
    assert_eq!(Cancelled::VERSION, 7);
}

#[test]
fn a_rename_keeps_them() {
    assert_eq!(moved::PurchaseMade::TYPE, OrderPlaced::TYPE);
    let payload = serde_json::to_vec(&OrderPlaced {
        order_id: "o-1".to_owned(),
    })
    .unwrap();
    let read: moved::PurchaseMade = outbox_core::decode(1, &payload).unwrap();
    assert_eq!(read.order_id, "o-1");
}

#[test]
fn raw_identifiers_work() {
    let raw = r#Raw {
        r#type: "t".to_owned(),
        r#match: 1,
    };
    assert_eq!(raw.key().as_deref(), Some("t"));
    assert_eq!(r#Raw::VERSION, 2);
}

#[test]
fn the_core_crate_may_be_found_elsewhere() {
    assert_eq!(ByRename::TYPE, "a.renamed");
    assert_eq!(ByFacade(3).key().as_deref(), Some("3"));
    assert_eq!(ByFacadeUnquoted::TYPE, "a.unquoted");
}

#[test]
fn the_envelope_has_a_name() {
    fn is_same(envelope: OrderPlacedEnvelope) -> outbox_core::Envelope<OrderPlaced> {
        envelope
    }
    let _: fn(_) -> _ = is_same;
}

#[test]
fn an_event_may_be_local_to_a_function() {
    #[derive(Serialize, Deserialize, IntegrationEvent)]
    #[event(subject = "a.local")]
    struct Local {}
    assert_eq!(Local::TYPE, "a.local");
}
