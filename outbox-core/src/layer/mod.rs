//! Layers of the framework's own.

mod inbox;

pub use inbox::{Inbox, InboxLayer};
