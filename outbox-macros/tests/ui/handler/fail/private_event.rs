#![allow(private_interfaces)]

use outbox_core::{HandlerError, IntegrationEvent, handler};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, IntegrationEvent)]
#[event(subject = "a")]
struct Private;

#[handler(consumer = "a")]
pub async fn public(_: Private) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
