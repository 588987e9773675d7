//! What does not change while much passes through: memory. And how soon a process under load stops.

use std::time::{Duration, Instant};

use outbox_core::{Consumer, HandlerError, RelayOptions, handler};
use sea_orm::{ConnectionTrait, DatabaseTransaction};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome, Plan,
    event::{PLAIN, Placed},
    report::{Figure, Report},
    usage::memory,
    world::World,
};

const LOOK: Duration = Duration::from_millis(50);

#[handler(consumer = "steady", batch = 100)]
async fn insert(placed: Vec<Placed>, tx: &DatabaseTransaction) -> Result<(), HandlerError> {
    let rows = vec!["(1)"; placed.len()].join(", ");
    tx.execute_unprepared(&format!("INSERT INTO effects (number) VALUES {rows}"))
        .await?;
    Ok(())
}

pub(crate) async fn measure(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    memory_while_much_passes(world, plan, report).await?;
    stop_under_load(world, plan, report).await
}

/// One runtime relays and handles so many messages; its memory is read at each quarter.
async fn memory_while_much_passes(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    world.fill(plan.rows, PLAIN).await?;
    world.empty("inbox").await?;
    world.empty("effects").await?;
    let runtime = world
        .bus
        .runtime(world.broker.clone())
        .relay(RelayOptions::default())
        .consumer(Consumer::of(insert {}));
    let stop = CancellationToken::new();
    let running = tokio::spawn(runtime.run(stop.clone()));
    let scenario = format!("memory while {} messages pass", plan.rows);
    for quarter in 1..=4 {
        while usize::try_from(world.count("inbox").await?)? < plan.rows * quarter / 4 {
            tokio::time::sleep(LOOK).await;
        }
        let name = format!("resident after {} %", quarter * 25);
        report.add(Figure::new(world.name(), &scenario, &name, "MiB").of(vec![memory().0]));
    }
    stop.cancel();
    running.await??;
    Ok(())
}

/// From the stop signal to the end, with relay and consumer in the middle of their work.
async fn stop_under_load(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    let mut times = Vec::new();
    for _ in 0..plan.rounds {
        world.fill(plan.rows, PLAIN).await?;
        let runtime = world
            .bus
            .runtime(world.broker.clone())
            .relay(RelayOptions::default())
            .consumer(Consumer::of(insert {}));
        let stop = CancellationToken::new();
        let running = tokio::spawn(runtime.run(stop.clone()));
        while world.stored().await? < 2000 {
            tokio::time::sleep(LOOK).await;
        }
        let began = Instant::now();
        stop.cancel();
        running.await??;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let figure = Figure::new(world.name(), "stop under load", "signal to end", "ms");
    report.add(figure.of(times));
    Ok(())
}
