use std::borrow::Cow;

use outbox_core::IntegrationEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders", key = name)]
struct Borrowed<'a> {
    name: &'a str,
}

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders")]
struct MaybeBorrowed<'a, T> {
    name: Cow<'a, str>,
    item: T,
}

#[derive(Clone, Copy, IntegrationEvent)]
#[event(subject = "shop.orders")]
union Either {
    small: u8,
    large: u64,
}

fn main() {}
