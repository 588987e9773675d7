//! What the documentation shows, with every lint that a crate may turn on.
#![deny(warnings, missing_docs, missing_debug_implementations, unreachable_pub, unused_qualifications)]
#![deny(unused_results, single_use_lifetimes, trivial_casts, elided_lifetimes_in_paths, unused_lifetimes)]
#![no_implicit_prelude]

use ::outbox_core::IntegrationEvent;
use ::serde::{Deserialize, Serialize};
use ::std::{prelude::rust_2024::*, string::String as Text};

/// An order was placed.
#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", version = 2, key = order_id, upcast_from = OrderPlacedV1)]
pub struct OrderPlaced {
    /// Which.
    pub order_id: Text,
}

/// As it was before.
#[derive(Debug, Clone, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed", key = number())]
pub struct OrderPlacedV1 {
    /// Which.
    pub id: u32,
}

impl OrderPlacedV1 {
    fn number(&self) -> u32 {
        self.id
    }
}

impl From<OrderPlacedV1> for OrderPlaced {
    fn from(older: OrderPlacedV1) -> Self {
        Self { order_id: ::std::format!("o-{}", older.id) }
    }
}

/// Any of two.
#[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.changed", key = id)]
pub enum Changed<T> {
    /// This.
    Set {
        /// Which.
        id: Text,
        /// What.
        item: T,
    },
    /// That.
    Unset {
        /// Which.
        id: Text,
    },
}

fn main() {}
