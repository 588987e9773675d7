//! A small shop: what it stores, what it tells others, and who listens.
//!
//! | module | |
//! |---|---|
//! | [`entity`] | the tables |
//! | [`event`] | what the shop tells others |
//! | [`orders`] | placing an order: the producer |
//! | [`shipping`], [`billing`], [`search`] | the consumers, each with a name and an inbox of its own |
//! | [`payments`] | a fake payment provider: an effect outside the database |

pub mod billing;
pub mod entity;
pub mod event;
pub mod orders;
pub mod payments;
pub mod search;
pub mod shipping;

pub use event::{OrderPlaced, ShipmentCreated};
pub use orders::{NewOrder, place_order};
