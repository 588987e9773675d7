//! Policies that are plain functions: how long to wait before the next try.

mod backoff;

pub use backoff::Backoff;
