//! A process of the shop. It is told by its environment what to do and where to die.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_nats::jetstream::stream::Config;
use outbox_core::{
    Backoff, Bus, Consumer, DeadLetterFilter, RelayOptions, Retention,
    broker::Broker,
    failpoint,
    store::{HeldFilter, HeldReason, OutboxStore},
};
use outbox_nats::{JetStream, StreamSpec};
use outbox_seaorm::SeaOrm;
use rustix::process::{Signal, getpid, kill_process};
use sea_orm::DatabaseConnection;
use tokio_util::sync::CancellationToken;

use super::{
    plan::{Plan, SLOT},
    shop::{self, bill, book, numbers, ship},
};
use crate::connect;

/// The environment variable with the plan's seed.
pub const SEED: &str = "HISTORY_SEED";
/// The environment variable that says how many orders to place; no end without it.
pub const ORDERS: &str = "HISTORY_ORDERS";
/// The environment variable with the milliseconds between two orders.
pub const PACE: &str = "HISTORY_PACE_MS";
/// The environment variable that names the place to die at: `how often it is passed, its name`.
pub const KILL_AT: &str = "HISTORY_KILL_AT";
/// As [`KILL_AT`], to be frozen there instead.
pub const STOP_AT: &str = "HISTORY_STOP_AT";
/// The environment variable that makes the node print `place: ..` for each place that it passes.
pub const LISTING: &str = "HISTORY_LISTING";

/// The environment variable that makes the relay keep what it has published.
pub const KEEP: &str = "HISTORY_KEEP";

/// What a node prints when all its orders are placed. No name of a place, or of a subject, contains it.
pub const PLACED: &str = "all orders are placed";

/// Reports to write, which their stream does not take at first.
const REPORTS: i64 = 3;
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a node with the roles that `args` names: `orders`, `relay`, `consumer`, `operator`.
///
/// It works on `DATABASE_URL` and `NATS_URL` until SIGTERM, prints `ready` when it has started and
/// [`PLACED`] when all its orders are placed.
///
/// # Errors
///
/// When it cannot start.
pub async fn run_node(slot: i64, roles: &str) -> Result<(), Box<dyn Error>> {
    observe_places();
    let url = std::env::var("DATABASE_URL")?;
    let db = connect(&url, 10).await?;
    let nats = std::env::var("NATS_URL")?;
    let broker = JetStream::builder()
        .stream(StreamSpec::new("SHOP", ["shop.>"]))
        .ack_timeout(Duration::from_secs(1))
        .wait_for_server()
        .connect(&nats)
        .await?;
    let bus = Bus::new(SeaOrm::new(db.clone()));
    let mut runtime = bus.runtime(broker.clone());
    if roles.contains("relay") {
        runtime = runtime.relay(relay());
    }
    if roles.contains("consumer") {
        let backoff = Backoff::fixed(Duration::from_millis(100));
        let wait = Duration::from_secs(1);
        runtime = runtime
            .consumer(Consumer::of(ship {}).ack_wait(wait).backoff(backoff))
            .consumer(Consumer::of(bill {}).ack_wait(wait).backoff(backoff))
            .consumer(Consumer::of(book {}).ack_wait(wait).backoff(backoff));
    }
    let stop = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn({
        let stop = stop.clone();
        async move {
            terminate.recv().await;
            stop.cancel();
        }
    });
    let placing = async {
        if roles.contains("orders") {
            let plan = Plan::new(variable(SEED).unwrap_or_default());
            orders(&bus, &db, plan, slot, &stop).await;
        }
    };
    let operating = async {
        if roles.contains("operator") {
            operate(&bus, &broker, &db, &nats, &stop).await;
        }
    };
    println!("ready");
    let (report, (), ()) = tokio::join!(runtime.run(stop.clone()), placing, operating);
    println!("stopped {:?}", report?);
    Ok(())
}

fn relay() -> RelayOptions {
    let retention = match std::env::var_os(KEEP) {
        Some(_) => Retention::Keep(Duration::from_secs(3600)),
        None => Retention::Delete,
    };
    RelayOptions::default()
        .retention(retention)
        .lease(Duration::from_secs(1))
        .idle_poll(Duration::from_millis(100))
        .standby_poll(Duration::from_millis(100))
        .backoff(Backoff::fixed(Duration::from_millis(200)))
        .max_attempts(u32::MAX)
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Lists the places passed, or ends this process at one of them, as the environment says.
fn observe_places() {
    if [KILL_AT, STOP_AT, LISTING]
        .iter()
        .all(|name| std::env::var_os(name).is_none())
    {
        return;
    }
    static PASSED: Mutex<Option<HashMap<String, u32>>> = Mutex::new(None);
    failpoint::observe(|place| {
        let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
        let count = passed
            .get_or_insert_default()
            .entry(place.to_owned())
            .or_default();
        *count += 1;
        let here = format!("{count}, {place}");
        if std::env::var_os(LISTING).is_some() {
            println!("place: {place}");
        }
        let signal = match () {
            () if std::env::var(KILL_AT).is_ok_and(|wanted| wanted == here) => Signal::KILL,
            () if std::env::var(STOP_AT).is_ok_and(|wanted| wanted == here) => Signal::STOP,
            () => return,
        };
        println!("reached: {here}");
        let _ = kill_process(getpid(), signal);
        // It goes to another thread, and until that one runs, this one would go on.
        while is_pending(signal) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Whether no thread of this process has taken the signal yet.
fn is_pending(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    pending.is_some_and(|signals| signals & (1 << (signal.as_raw() - 1)) != 0)
}

/// Places the slot's orders, one after the other, each until it is there; then the reports.
async fn orders(
    bus: &Bus<SeaOrm>,
    db: &DatabaseConnection,
    plan: Plan,
    slot: i64,
    stop: &CancellationToken,
) {
    let first = slot * SLOT;
    let end = first + variable(ORDERS).unwrap_or(SLOT);
    let pace = Duration::from_millis(variable(PACE).unwrap_or_default());
    let highest = format!(
        "SELECT COALESCE(MAX(number) + 1, {first}) AS number FROM orders \
         WHERE number >= {first} AND number < {end}"
    );
    let mut number = until_done(stop, async || numbers(db, &highest).await.ok()?.pop()).await;
    while let Some(order) = number.filter(|number| *number < end) {
        let planned = plan.of(order);
        let there = format!("SELECT number FROM orders WHERE number = {order}");
        number = until_done(stop, async || {
            // Whether an attempt whose commit nobody saw was one is asked, as a client does.
            let found = numbers(db, &there).await.ok()?;
            let placed = !found.is_empty() || shop::place(bus, db, &planned).await.is_ok();
            placed.then_some(order + 1)
        })
        .await;
        tokio::time::sleep(pace).await;
    }
    if slot == 0 && number.is_some() {
        for number in 0..REPORTS {
            let there = format!("SELECT number FROM reports WHERE number = {number}");
            until_done(stop, async || {
                let found = numbers(db, &there).await.ok()?;
                let made = !found.is_empty() || shop::report(bus, number).await.is_ok();
                made.then_some(())
            })
            .await;
        }
    }
    if number.is_some() {
        println!("{PLACED}");
    }
}

/// Tries until it worked; `None` if the process is to stop.
async fn until_done<T>(
    stop: &CancellationToken,
    mut work: impl AsyncFnMut() -> Option<T>,
) -> Option<T> {
    while !stop.is_cancelled() {
        // Neither a broken connection nor a busy database may hold the shop for ever.
        if let Ok(Some(done)) = tokio::time::timeout(PATIENCE, work()).await {
            return Some(done);
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    None
}

/// Mends the shop once messages are dead and replays them, and lets the stream of the reports take
/// them once they wait for that.
async fn operate(
    bus: &Bus<SeaOrm>,
    broker: &JetStream,
    db: &DatabaseConnection,
    nats: &str,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // An order may fail as well, on a busy machine.
        let failing = HeldFilter {
            reasons: vec![HeldReason::Failing],
            key: Some(shop::SHELF.to_owned()),
            limit: 1,
            ..HeldFilter::default()
        };
        let waits = bus.store().held(bus.target_name(), &failing).await;
        if waits.is_ok_and(|rows| !rows.is_empty())
            && let Ok(client) = async_nats::connect(nats).await
        {
            let jetstream = async_nats::jetstream::new(client);
            let _ = jetstream.update_stream(reports_stream(-1)).await;
        }
        replay(bus, broker, db).await;
    }
}

/// The stream of the reports, with a limit on their size.
pub(super) fn reports_stream(max_message_size: i32) -> Config {
    Config {
        name: "REPORTS".to_owned(),
        subjects: vec!["reports.>".to_owned()],
        max_message_size,
        ..Config::default()
    }
}

/// Mends the shop and replays what is dead.
pub(super) async fn replay<B: Broker>(bus: &Bus<SeaOrm>, broker: &B, db: &DatabaseConnection) {
    let letters = bus.dead_letters(broker.clone());
    let Ok(dead) = letters.list(&DeadLetterFilter::default()).await else {
        return;
    };
    if dead.is_empty() {
        return;
    }
    if shop::insert(db, "mended", 1).await.is_ok() {
        for letter in dead {
            let _ = letters.replay(letter.id).await;
        }
    }
}
