//! What the examples share: a small shop that tells others what happens in it, and what a program
//! needs around it.

pub mod program;
pub mod shop;

/// The programs of the README, so that they are compiled.
#[cfg(all(doctest, feature = "nats"))]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
