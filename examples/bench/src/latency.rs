//! How long it takes from a commit to its effect.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use outbox_core::{Consumer, HandlerError, RelayOptions, State, handler};
use sea_orm::{ConnectionTrait, DatabaseTransaction};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome, Plan,
    event::{PLAIN, Placed},
    report::{Figure, Report, quantile},
    world::World,
};

/// Orders a second, and for how long.
const RATE: u32 = 200;
const SECONDS: u32 = 10;

/// When the effect of each order could be seen.
#[derive(Debug, Clone, Default)]
struct Effects(Arc<Mutex<Vec<(u64, Instant)>>>);

#[handler(consumer = "latency")]
async fn effect(
    placed: Placed,
    tx: &DatabaseTransaction,
    effects: State<Effects>,
) -> Result<(), HandlerError> {
    tx.execute_unprepared("INSERT INTO effects (number) VALUES (1)")
        .await?;
    let mut effects = effects.0.0.lock().unwrap_or_else(PoisonError::into_inner);
    effects.push((placed.number, Instant::now()));
    Ok(())
}

pub(crate) async fn measure(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    let mut quantiles = [(0.5, vec![]), (0.99, vec![]), (0.999, vec![])];
    for _ in 0..plan.rounds {
        world.fill(0, PLAIN).await?;
        world.empty("inbox").await?;
        let effects = Effects::default();
        let runtime = world
            .bus
            .runtime(world.broker.clone())
            .state(effects.clone())
            .relay(RelayOptions::default())
            .consumer(Consumer::of(effect {}));
        let stop = CancellationToken::new();
        let running = tokio::spawn(runtime.run(stop.clone()));
        let mut committed = Vec::new();
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        for number in 0..u64::from(RATE * SECONDS) {
            ticks.tick().await;
            let unit = world.bus.begin().await?;
            unit.publish(&Placed::new(number, PLAIN))?;
            unit.commit().await?;
            committed.push(Instant::now());
        }
        let all = || {
            effects
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len()
        };
        outbox_tests::eventually("all effects", Duration::from_secs(60), async || {
            all() >= committed.len()
        })
        .await;
        stop.cancel();
        running.await??;
        let effects = effects.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The relay and its consumer can be faster than the committer learns of its commit.
        let times: Vec<f64> = effects
            .iter()
            .filter_map(|(number, at)| {
                let committed = committed.get(usize::try_from(*number).ok()?)?;
                Some(at.saturating_duration_since(*committed).as_secs_f64() * 1000.0)
            })
            .collect();
        // The first second is for connections and caches.
        let warm = times.get(RATE as usize..).unwrap_or_default();
        for (part, values) in &mut quantiles {
            values.push(quantile(warm, *part));
        }
    }
    let scenario = format!("commit to effect, {RATE} orders a second");
    for (part, values) in quantiles {
        let name = format!("p{}", part * 100.0);
        report.add(Figure::new(world.name(), &scenario, &name, "ms").of(values));
    }
    Ok(())
}
