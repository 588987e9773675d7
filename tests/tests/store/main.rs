//! The SeaORM store keeps the contract of every trait method, on every database.

mod archive;
mod classify;
mod guard;
mod hold;
mod inbox;
mod insert;
mod lease;
mod migrate;
mod pools;
mod read;
mod support;
