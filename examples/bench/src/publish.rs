//! What publishing adds to an order's transaction.

use std::time::Instant;

use futures_util::future::try_join_all;
use outbox_core::Bus;
use outbox_seaorm::SeaOrm;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, Statement, TransactionTrait};

use crate::{
    Outcome, Plan,
    event::{PLAIN, Placed},
    report::{Figure, Report},
    world::World,
};

const ORDER: &str = "INSERT INTO orders (note) VALUES ('a customer''s order')";
/// What a row has besides its payload, roughly.
const HEADERS: usize = 100;
/// Transactions of one measurement.
const TRANSACTIONS: usize = 400;

#[derive(Debug, Clone, Copy)]
enum How {
    Bare,
    Second,
    Publish,
    PublishAll(u64),
    Unit(u64),
}

const ALL: [(How, &str); 7] = [
    (How::Bare, "order alone"),
    (How::Second, "order and another INSERT of an event's size"),
    (How::Publish, "order and publish"),
    (How::PublishAll(10), "order and publish_all(10)"),
    (How::PublishAll(100), "order and publish_all(100)"),
    (How::Unit(1), "unit of work with 1 event"),
    (How::Unit(10), "unit of work with 10 events"),
];

async fn transaction(bus: &Bus<SeaOrm>, db: &DatabaseConnection, how: How) -> Outcome {
    let event = |number| Placed::new(number, PLAIN);
    if let How::Unit(events) = how {
        let unit = bus.begin().await?;
        unit.tx().execute_unprepared(ORDER).await?;
        for number in 0..events {
            unit.publish(&event(number))?;
        }
        unit.commit().await?;
        return Ok(());
    }
    let tx = db.begin().await?;
    tx.execute_unprepared(ORDER).await?;
    match how {
        How::Second => {
            let note = "x".repeat(PLAIN.size + HEADERS);
            let sql = match tx.get_database_backend() {
                DbBackend::Postgres => "INSERT INTO orders (note) VALUES ($1)",
                _ => "INSERT INTO orders (note) VALUES (?)",
            };
            let backend = tx.get_database_backend();
            let second = Statement::from_sql_and_values(backend, sql, [note.into()]);
            tx.execute_raw(second).await?;
        }
        How::Publish => {
            bus.publish(&tx, &event(0)).await?;
        }
        How::PublishAll(events) => {
            let events: Vec<_> = (0..events).map(event).collect();
            bus.publish_all(&tx, &events).await?;
        }
        How::Bare | How::Unit(_) => {}
    }
    tx.commit().await?;
    Ok(())
}

/// Microseconds of a transaction, as a writer sees it.
async fn time(world: &World, writers: usize, how: How) -> Outcome<f64> {
    let each = TRANSACTIONS / writers;
    let began = Instant::now();
    let writing = (0..writers).map(|_| {
        let (bus, db) = (world.bus.clone(), world.db.clone());
        // Each in a task of its own, as requests are.
        tokio::spawn(async move {
            for _ in 0..each {
                transaction(&bus, &db, how).await?;
            }
            Outcome::Ok(())
        })
    });
    for done in try_join_all(writing).await? {
        done?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / each as f64)
}

pub(crate) async fn measure(world: &World, plan: &Plan, report: &mut Report) -> Outcome {
    for writers in [1, 8] {
        let mut times = ALL.map(|_| Vec::new());
        for _ in 0..plan.rounds {
            world.empty("outbox").await?;
            for ((how, _), times) in ALL.iter().zip(&mut times) {
                times.push(time(world, writers, *how).await?);
            }
        }
        let scenario = format!("publish, {writers} writer(s)");
        let [bare, second, single, ..] = &times;
        for ((how, name), values) in ALL.iter().zip(&times) {
            let mut figure = Figure::new(world.name(), &scenario, name, "us").of(values.clone());
            if !matches!(how, How::Bare) {
                figure = figure.against("order alone", bare);
            }
            if matches!(how, How::Publish) {
                figure = figure.against("another INSERT", second);
            }
            if matches!(how, How::PublishAll(_)) {
                figure = figure.against("publish", single);
            }
            report.add(figure);
        }
    }
    Ok(())
}
