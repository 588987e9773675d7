//! How fast the relay empties the outbox.

use std::time::{Duration, Instant};

use outbox_core::{Relay, RelayOptions};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome, Plan,
    event::Shape,
    peers::{self, BATCH, SMALL_BATCH},
    report::{Figure, Report},
    usage::CpuTime,
    world::{STREAM, World},
};

const LOOK: Duration = Duration::from_millis(5);

/// Messages a second of the relay, from its start to the last row's end.
pub(crate) async fn relay(world: &World, rows: usize) -> Outcome<f64> {
    let relay =
        Relay::new(world.bus.clone(), world.broker.clone()).options(RelayOptions::default());
    let stop = CancellationToken::new();
    let began = Instant::now();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { relay.run(stop).await }
    });
    // The stream is watched, and the table only in the end: to find no row among dead ones is work for
    // the database.
    let stream = world.jetstream().await.get_stream(STREAM).await?;
    while stream.get_info().await?.state.messages < rows as u64
        || world.exists("SELECT 1 FROM outbox LIMIT 1").await?
    {
        tokio::time::sleep(LOOK).await;
    }
    let rate = rows as f64 / began.elapsed().as_secs_f64();
    stop.cancel();
    running.await?;
    let stored = world.stored().await?;
    if stored != rows as u64 {
        return Err(
            format!("{rows} rows were drained, and the stream has {stored} messages").into(),
        );
    }
    Ok(rate)
}

/// What the two halves of the work allow that are done one after the other.
fn serial(publish: &[f64], database: &[f64]) -> Vec<f64> {
    let both = publish.iter().zip(database);
    both.map(|(publish, database)| 1.0 / (1.0 / publish + 1.0 / database))
        .collect()
}

pub(crate) async fn measure(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    for size in [256, 1024] {
        for keyed in [false, true] {
            one(world, plan, report, Shape { size, keyed }).await?;
        }
    }
    Ok(())
}

/// Nothing but drains, for a profiler.
pub(crate) async fn alone(world: &World, plan: &Plan) -> Outcome {
    for keyed in [false, true] {
        for _ in 0..plan.rounds {
            world.fill(plan.rows, Shape { size: 256, keyed }).await?;
            println!("drain begins, keyed: {keyed}");
            let before = CpuTime::now();
            let rate = relay(world, plan.rows).await?;
            let cpu = CpuTime::now().each(&before, plan.rows);
            println!("{rate:.0}/s, us of own, database, broker: {cpu:.1?}");
        }
    }
    Ok(())
}

async fn one(world: &World, plan: &Plan, report: &mut Report, shape: Shape) -> Outcome {
    let rows = plan.rows;
    let (mut publish, mut database, mut ours) = (vec![], vec![], vec![]);
    let (mut hand, mut small) = (vec![], vec![]);
    let mut cpu = [vec![], vec![], vec![]];
    for _ in 0..plan.rounds {
        world.fill(rows, shape).await?;
        publish.push(peers::publish(world).await?);
        world.purge().await?;
        database.push(peers::read_and_delete(world).await?);
        world.fill(rows, shape).await?;
        for (batch, rates) in [(BATCH, &mut hand), (SMALL_BATCH, &mut small)] {
            peers::prepare_by_hand(world).await?;
            rates.push(peers::by_hand(world, batch).await?);
            world.purge().await?;
        }
        let before = CpuTime::now();
        ours.push(relay(world, rows).await?);
        for (all, one) in cpu.iter_mut().zip(CpuTime::now().each(&before, rows)) {
            all.push(one);
        }
    }
    let keys = if shape.keyed { "1,000 keys" } else { "no keys" };
    let scenario = format!("drain of {rows} rows, {} B, {keys}", shape.size);
    let figure = |name: &str, unit| Figure::new(world.name(), &scenario, name, unit);
    let limit = serial(&publish, &database);
    report.add(figure("P: publishing alone", "/s").of(publish));
    report.add(figure("D: reading and deleting alone", "/s").of(database));
    report.add(figure("hand-written relay", "/s").of(hand.clone()));
    let by_hundreds = figure("hand-written relay, 100 rows a batch", "/s");
    report.add(by_hundreds.of(small.clone()));
    let relay = figure("relay", "/s").of(ours);
    report.add(
        relay
            .against("1/(1/P+1/D)", &limit)
            .against("hand-written", &hand)
            .against("hand-written, 100 rows a batch", &small),
    );
    for (name, values) in ["own", "database", "broker"].into_iter().zip(cpu) {
        report.add(figure(&format!("relay: CPU, {name}"), "us").of(values));
    }
    Ok(())
}
