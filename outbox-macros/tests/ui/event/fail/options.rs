use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subjcet = "shop.orders", subject = "shop.orders")]
struct Misspelt;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", topic = "shop")]
struct Unknown;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 1)]
#[event(version = 2)]
struct Twice;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 0)]
struct VersionZero;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 65536)]
struct VersionTooLarge;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = "2")]
struct VersionAsText;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version, key =)]
struct NoValues;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event("shop.orders")]
struct NoName;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders" version = 2)]
struct NoComma;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", crate = "not a path")]
struct NoPath;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders")]
struct OnAField {
    #[event(key)]
    id: u8,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders")]
enum OnAVariant {
    #[event(subject = "shop.orders.placed")]
    Placed,
}

// All mistakes are reported at once.
#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(version = 0, subject = "a b", key = nowhere, vers = 1)]
struct Many {
    id: u8,
}

fn main() {}
