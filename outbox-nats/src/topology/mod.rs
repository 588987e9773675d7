//! Streams and durables: created, compared, changed, or only verified.

pub(crate) mod consumer;
pub(crate) mod diff;
mod ensure;
pub(crate) mod filter;
pub(crate) mod hazards;
pub(crate) mod locate;
pub(crate) mod stream;

pub use self::stream::StreamSpec;

/// What may be done about streams and durables that are missing or differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// Creates what is missing and adds subjects that are missing. Anything else that differs is
    /// left as it is, with a warning that names the setting and both values, except for what would
    /// strand messages (a delivery limit, a server-side backoff, a durable that expires) and a
    /// consumer's ack wait: that is corrected, with a warning.
    #[default]
    Ensure,
    /// As `Ensure`, and then makes the server agree with the code: every setting that the code
    /// states is applied, subjects that the code no longer names are removed. Each change is
    /// logged with its old and new value.
    Apply,
    /// Changes nothing. Everything must exist, and every difference is an error that names the
    /// setting and both values. Needs the least rights.
    Verify,
}
