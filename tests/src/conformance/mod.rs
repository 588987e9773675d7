//! Suites that every implementation of a trait of core must pass.

pub mod broker;
