//! What a process uses that has nothing to do.

use std::time::Duration;

use outbox_core::{Consumer, HandlerError, RelayOptions, handler};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome,
    event::{PLAIN, Placed},
    report::{Figure, Report},
    usage::{CpuTime, memory},
    world::World,
};

const WHILE: Duration = Duration::from_secs(20);

#[handler(consumer = "idle")]
async fn nothing(_: Placed) -> Result<(), HandlerError> {
    Ok(())
}

pub(crate) async fn measure(world: &World, report: &mut Report) -> Outcome {
    world.fill(0, PLAIN).await?;
    let runtime = world
        .bus
        .runtime(world.broker.clone())
        .relay(RelayOptions::default())
        .consumer(Consumer::of(nothing {}));
    let stop = CancellationToken::new();
    let running = tokio::spawn(runtime.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = CpuTime::now();
    tokio::time::sleep(WHILE).await;
    let after = CpuTime::now();
    stop.cancel();
    running.await??;
    let share = |now: Duration, then: Duration| {
        now.saturating_sub(then).as_secs_f64() / WHILE.as_secs_f64() * 100.0
    };
    let figure =
        |name: &str, unit| Figure::new(world.name(), "idle, relay and consumer", name, unit);
    for (name, value) in [
        ("own CPU, of one processor", share(after.own, before.own)),
        ("database", share(after.database, before.database)),
        ("broker", share(after.broker, before.broker)),
    ] {
        report.add(figure(name, "%").of(vec![value]));
    }
    let (now, most) = memory();
    report.add(figure("memory of this program, now", "MiB").of(vec![now]));
    report.add(figure("memory of this program, at its highest", "MiB").of(vec![most]));
    Ok(())
}
