#![doc = include_str!("../docs/crate.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod audit;
mod broker;
mod builder;
mod credentials;
mod dead_letter;
mod link;
mod provision;
mod publisher;
mod servers;
mod subscription;
mod text;
mod topology;
mod version;
mod wire;

pub use self::{
    broker::JetStream,
    builder::JetStreamBuilder,
    publisher::JetStreamPublisher,
    subscription::{JetStreamDelivery, JetStreamSubscription},
    topology::{StreamSpec, Topology},
};
