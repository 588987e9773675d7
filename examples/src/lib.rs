//! What the examples share: a small shop that tells others what happens in it, and what a program
//! needs around it.

pub mod program;
pub mod shop;
