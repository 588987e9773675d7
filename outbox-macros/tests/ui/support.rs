//! What the cases about handlers share.

#![allow(dead_code)]

use outbox_core::{Handler, IntegrationEvent, Store};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "shop.orders.placed")]
pub struct OrderPlaced {
    pub order_id: u32,
}

/// Stands for a database's transaction.
pub struct Tx;

/// Stands for mounting a handler where the state is `St`.
pub fn mount<S: Store<Tx = Tx>, St, H: Handler<S, St>>(_: H) {}
