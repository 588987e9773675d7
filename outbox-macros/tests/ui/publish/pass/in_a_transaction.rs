//! Publishing in the caller's transaction, in a unit of work, and in repository code that is generic
//! over both; also from tasks, whose futures must be `Send`.

use outbox_core::{Bus, OpenTx, Store, Unit, error::StoreError};

#[path = "../../support.rs"]
mod support;
use support::OrderPlaced;

async fn place<S: Store>(bus: &Bus<S>, tx: &(impl OpenTx<S> + Sync), event: &OrderPlaced) {
    let _ = bus.publish(tx, event).await;
    let _ = bus.publish_all(tx, [event, event]).await;
}

async fn in_a_unit<S: Store>(bus: Bus<S>, event: OrderPlaced) -> Result<(), StoreError> {
    let unit: Unit<S> = bus.begin().await?;
    place(&bus, &unit, &event).await;
    let _ = unit.publish(&event);
    unit.commit().await
}

fn from_a_task<S: Store>(bus: Bus<S>, event: OrderPlaced) {
    fn is_send<T: Send>(_: T) {}
    is_send(in_a_unit(bus, event));
}

fn main() {}
