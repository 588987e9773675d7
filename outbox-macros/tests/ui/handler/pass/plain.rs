//! What the documentation shows, with every lint that a crate may turn on.
#![deny(warnings, missing_docs, missing_debug_implementations, missing_copy_implementations, unreachable_pub)]
#![deny(unused_results, single_use_lifetimes, trivial_casts, elided_lifetimes_in_paths, unused_lifetimes)]
#![deny(unused_qualifications)]

use outbox_core::{Context, HandlerError, State, Store, handler};

#[allow(missing_docs, missing_debug_implementations, unreachable_pub, missing_copy_implementations)]
#[path = "../../support.rs"]
mod support;
use support::{OrderPlaced, OrderPlacedEnvelope, Tx, mount};

#[derive(Debug, Clone)]
struct App;

#[handler(consumer = "a", backoff = exponential("1s", max = "5m"), timeout = "30s")]
async fn all_arguments(_event: OrderPlaced, tx: &Tx, cx: Context, State(app): State<App>) -> Result<(), HandlerError> {
    let _ = (tx, cx, app);
    Ok(())
}

#[handler(consumer = "a")]
async fn never_mounted(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[allow(dead_code)]
fn mounts<S: Store<Tx = Tx>>() {
    mount::<S, App, _>(all_arguments {});
    mount::<S, App, _>(never_mounted {});
    let _: [Option<OrderPlacedEnvelope>; 0] = [];
}

fn main() {}
