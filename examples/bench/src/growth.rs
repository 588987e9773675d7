//! Whether a drain costs more when much has happened, or much is waiting.

use std::time::{Duration, Instant};

use outbox_core::{Publish, Relay, RelayOptions};
use outbox_tests::{Database, connect};
use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome, Plan, drain,
    event::{PLAIN, Placed},
    report::{Figure, Report},
    usage::Work,
    world::World,
};

/// Each of these is drained once a round, after a drain without anything special.
#[derive(Debug, Clone, Copy)]
enum Case {
    Held(usize),
    OldSnapshot,
    OpenWriter,
    RolledBack,
    Passed,
}

/// The cases, and what each drain of them is called.
const CASES: [(Case, &[&str]); 6] = [
    (Case::Held(10_000), &["10,000 rows are held"]),
    (Case::Held(100_000), &["100,000 rows are held"]),
    (Case::OldSnapshot, &["an old snapshot is held open"]),
    (
        Case::OpenWriter,
        &["a transaction that has written is open, twice the rows"],
    ),
    (
        Case::RolledBack,
        &["a tenth of the numbers was rolled back"],
    ),
    (
        Case::Passed,
        &[
            "ten times as many rows have passed just now",
            "and autovacuum has come since",
        ],
    ),
];

/// Rows that wait for an hour.
async fn hold(world: &World, rows: usize) -> Outcome {
    let mut left = rows;
    while left > 0 {
        let tx = world.db.begin().await?;
        for number in 0..left.min(1000) {
            let options = Publish::new().delay(Duration::from_secs(3600));
            let event = Placed::new(number as u64, PLAIN);
            world.bus.publish_with(&tx, &event, options).await?;
        }
        tx.commit().await?;
        left -= left.min(1000);
    }
    Ok(())
}

/// A transaction that sees the present for as long as it lives.
async fn snapshot(world: &World) -> Outcome<DatabaseTransaction> {
    let db = connect(&world.url, 1).await?;
    let level = sea_orm::IsolationLevel::RepeatableRead;
    let tx = match world.database {
        Database::Sqlite => db.begin().await?,
        _ => db.begin_with_config(Some(level), None).await?,
    };
    tx.query_one_raw(sea_orm::Statement::from_string(
        tx.get_database_backend(),
        "SELECT COUNT(*) FROM outbox",
    ))
    .await?;
    Ok(tx)
}

/// Rows with gaps between them.
async fn add_with_gaps(world: &World, rows: usize) -> Outcome {
    let events: Vec<_> = (0..9).map(|number| Placed::new(number, PLAIN)).collect();
    for _ in 0..rows / 900 {
        let tx = world.db.begin().await?;
        world.bus.publish(&tx, &events[0]).await?;
        tx.rollback().await?;
        let tx = world.db.begin().await?;
        for _ in 0..100 {
            world.bus.publish_all(&tx, &events).await?;
        }
        tx.commit().await?;
        let tx = world.db.begin().await?;
        for _ in 0..11 {
            world.bus.publish_all(&tx, &events).await?;
        }
        tx.rollback().await?;
    }
    Ok(())
}

/// What a drain of so many rows took.
#[derive(Debug, Default)]
struct Drained {
    rate: f64,
    /// Statements and pages of the database, if they were asked for.
    work: Option<Work>,
    rows: usize,
}

/// Drains, and asks the database what it did if `counting`.
async fn drain(world: &World, rows: usize, counting: bool) -> Outcome<Drained> {
    let before = if counting {
        Work::so_far(world).await?
    } else {
        None
    };
    let rate = drain::relay(world, rows).await?;
    let work = match before {
        Some(before) => Work::so_far(world).await?.map(|after| Work {
            statements: after.statements - before.statements,
            pages: after.pages - before.pages,
        }),
        None => None,
    };
    Ok(Drained { rate, work, rows })
}

/// Waits until autovacuum has removed what is dead. False if there is none, or it does not come.
async fn vacuumed(world: &World) -> Outcome<bool> {
    if world.database != Database::Postgres {
        return Ok(false);
    }
    let end = Instant::now() + Duration::from_secs(180);
    let dead = "SELECT 1 FROM pg_stat_user_tables WHERE relname = 'outbox' AND n_dead_tup > 10000 \
                UNION ALL SELECT 1 FROM pg_stat_progress_vacuum";
    while world.exists(dead).await? {
        if Instant::now() > end {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(true)
}

async fn under(world: &World, case: Case, rows: usize, counting: bool) -> Outcome<Vec<Drained>> {
    world.fill(0, PLAIN).await?;
    match case {
        Case::Held(held) => {
            hold(world, held).await?;
            world.fill(rows, PLAIN).await?;
            let drained = drain(world, rows, counting).await?;
            world.empty("outbox_held").await?;
            Ok(vec![drained])
        }
        Case::OldSnapshot => {
            let old = snapshot(world).await?;
            // Dead row versions from before, which nobody may remove.
            world.add(rows, PLAIN).await?;
            drain::relay(world, rows).await?;
            world.purge().await?;
            world.add(rows, PLAIN).await?;
            let drained = drain(world, rows, counting).await?;
            old.rollback().await?;
            Ok(vec![drained])
        }
        Case::OpenWriter => {
            if world.database == Database::Sqlite {
                return Ok(Vec::new());
            }
            // What is dead was deleted by the relay that goes on: on average as many as in the case before.
            let old = snapshot(world).await?;
            old.execute_unprepared("INSERT INTO orders (note) VALUES ('an order')")
                .await?;
            world.add(2 * rows, PLAIN).await?;
            let drained = drain(world, 2 * rows, counting).await?;
            old.rollback().await?;
            Ok(vec![drained])
        }
        Case::RolledBack => {
            let rows = rows / 900 * 900;
            add_with_gaps(world, rows).await?;
            world.settle_down().await?;
            Ok(vec![drain(world, rows, counting).await?])
        }
        Case::Passed => {
            for _ in 0..10 {
                world.add(rows, PLAIN).await?;
                drain::relay(world, rows).await?;
                world.purge().await?;
            }
            world.add(rows, PLAIN).await?;
            let mut drained = vec![drain(world, rows, counting).await?];
            if vacuumed(world).await? {
                world.purge().await?;
                world.add(rows, PLAIN).await?;
                drained.push(drain(world, rows, counting).await?);
            }
            Ok(drained)
        }
    }
}

/// Transactions a second of eight writers, while `relay` drains what they and others wrote or not.
async fn writers(world: &World, rows: usize, relay: bool) -> Outcome<f64> {
    const WRITERS: usize = 8;
    const WHILE: Duration = Duration::from_secs(3);
    world.fill(rows, PLAIN).await?;
    let stop = CancellationToken::new();
    let running = relay.then(|| {
        let relay =
            Relay::new(world.bus.clone(), world.broker.clone()).options(RelayOptions::default());
        let stop = stop.clone();
        tokio::spawn(async move { relay.run(stop).await })
    });
    let end = Instant::now() + WHILE;
    let writing = (0..WRITERS).map(async |_| {
        let mut written = 0_usize;
        while Instant::now() < end {
            let tx = world.db.begin().await?;
            tx.execute_unprepared("INSERT INTO orders (note) VALUES ('a customer''s order')")
                .await?;
            world.bus.publish(&tx, &Placed::new(0, PLAIN)).await?;
            tx.commit().await?;
            written += 1;
        }
        Outcome::Ok(written)
    });
    let written = futures_util::future::try_join_all(writing).await?;
    stop.cancel();
    if let Some(running) = running {
        running.await?;
    }
    Ok(written.iter().sum::<usize>() as f64 / WHILE.as_secs_f64())
}

pub(crate) async fn measure(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    let rows = plan.rows;
    let scenario = format!("growth, drain of {rows} rows");
    let figure = |name: &str| Figure::new(world.name(), &scenario, name, "/s");
    for (case, names) in CASES {
        let mut plain = Vec::new();
        let mut special = vec![Vec::new(); names.len()];
        let mut counted = Vec::new();
        for round in 0..plan.rounds {
            world.fill(rows, PLAIN).await?;
            // Counting takes its time, and the counts hardly differ.
            let counting = round == 0;
            let before = drain(world, rows, counting).await?;
            plain.push(before.rate);
            counted.push(("a drain just before", before));
            let drained = under(world, case, rows, counting).await?;
            for ((name, rates), drained) in names.iter().zip(&mut special).zip(drained) {
                rates.push(drained.rate);
                counted.push((name, drained));
            }
        }
        for (name, rates) in names.iter().zip(special) {
            // A case that could not be had in each round has nothing to be compared with.
            if rates.len() == plain.len() {
                let rates = figure(name).of(rates);
                report.add(rates.against("a drain just before", &plain));
            }
        }
        for (name, drained) in counted {
            if let Some(work) = drained.work {
                let rows = drained.rows as f64;
                let of = |what: &str, unit, value| {
                    let name = format!("{name}: {what}");
                    Figure::new(world.name(), &scenario, &name, unit).of(vec![value])
                };
                report.add(of("statements", "/1,000", work.statements / rows * 1000.0));
                report.add(of("pages", "/row", work.pages / rows));
            }
        }
    }
    let (mut without, mut with) = (vec![], vec![]);
    for _ in 0..plan.rounds {
        without.push(writers(world, rows, false).await?);
        with.push(writers(world, rows, true).await?);
    }
    let name = "transactions of 8 writers while it drains";
    report.add(figure(name).of(with).against("without a relay", &without));
    Ok(())
}
