//! The rules that users are promised, each on every database with a real nats-server.
//!
//! One module for each group of rules; `shop` is the service that they all run.

mod archiving;
mod batches;
mod brokers;
mod consuming;
mod databases;
mod dying;
mod formats;
mod interop;
mod layers;
mod observing;
mod ordering;
mod outages;
mod publishing;
mod recorder;
mod relaying;
mod server;
mod shop;
mod starting;
mod stopping;
mod versions;
