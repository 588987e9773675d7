//! What operators see: log lines, and metrics through the `metrics` facade.

mod metrics;
mod outage;

pub(crate) use metrics::*;
pub(crate) use outage::{Chain, OutageLog, one_line, short};
