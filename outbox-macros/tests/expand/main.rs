//! What the macros expand to, seen from a crate that uses them.

#![allow(missing_docs, missing_debug_implementations)]
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]
// Neither macro may bring warnings into the user's code.
#![deny(warnings)]

extern crate outbox_core as renamed;

mod attributes;
mod by_macro_rules;
mod enums;
mod generics;
mod handlers;
mod keys;
mod names;
mod store;
mod upcast;
mod with_serde;
