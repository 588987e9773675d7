use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 2)]
struct SameVersion;

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", version = 2, upcast_from = SameVersion)]
struct Current;

impl From<SameVersion> for Current {
    fn from(_: SameVersion) -> Self {
        Self
    }
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.others", version = 3, upcast_from = Current)]
struct OtherType;

impl From<Current> for OtherType {
    fn from(_: Current) -> Self {
        Self
    }
}

fn main() {}
