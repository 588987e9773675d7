//! A process dies, or is frozen beyond its lease, between every two effects that the framework has:
//! at each place once, in a shop that takes every path.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, stream};
use outbox_tests::{
    Child, Database, eventually,
    history::{Handling, KILL_AT, LISTING, PLACED, Plan, Publishing, STOP_AT, Settings, World},
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_outbox-history-node");
const EVERYTHING: &str = "orders,relay,consumer,operator";
const LONG: Duration = Duration::from_secs(60);
/// Worlds at the same time: they mostly wait for leases and deliveries to run out.
const AT_ONCE: usize = 6;
const ORDERS: i64 = 28;
/// The environment variable that lets a process be frozen at every place instead of a part of them.
const EVERYWHERE: &str = "WALK_EVERYWHERE";
const FROZEN_EVERY: usize = 6;

/// Places that every database and the broker must have: that none is forgotten when code moves.
const LANDMARKS: [&str; 24] = [
    "begin a transaction: BEGIN",
    "write to the outbox: INSERT",
    "commit a transaction: RELEASE",
    "commit a transaction: COMMIT",
    "roll a transaction back: ROLLBACK",
    "the order's own commit",
    "read the outbox: ",
    "delete published rows: ",
    "move rows to the held table: DELETE",
    "move rows to the held table: COMMIT",
    "delete published held rows: DELETE",
    "move scheduled rows that are due: INSERT",
    "move scheduled rows that are due: COMMIT",
    "record a message in the inbox: INSERT",
    "record an attempt's start: ",
    "record an attempt's end: ",
    "forget the attempts at a message: ",
    "take the relay's lease: ",
    "message to shop.orders: sent",
    "message to shop.orders.placed: answered",
    "+ACK: sent",
    "-NAK: sent",
    "+TERM: answered",
    "STREAM.MSG: answered",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Killed,
    Frozen,
}

/// The first seed whose orders take every path.
fn seed() -> u64 {
    let published = [
        Publishing::Direct,
        Publishing::Unit,
        Publishing::UnitWithUndoneSavepoint,
        Publishing::UndoneSavepoint,
        Publishing::Twice,
        Publishing::Scheduled,
        Publishing::RolledBack,
        Publishing::Dropped,
    ];
    let handled = [
        Handling::Ship,
        Handling::Fail(1),
        Handling::FailAfterTheEffect,
        Handling::Reject,
        Handling::Panic,
    ];
    (0..)
        .find(|seed| {
            let orders = || (0..ORDERS).map(|number| Plan::new(*seed).of(number));
            published
                .iter()
                .all(|way| orders().any(|order| order.publishing == *way))
                && handled
                    .iter()
                    .all(|way| orders().any(|order| order.handling == *way && order.commits()))
        })
        .expect("there is one")
}

async fn world(kind: Database) -> World {
    let settings = Settings {
        program: PROGRAM.into(),
        seed: seed(),
        slots: 1,
        orders: Some(ORDERS),
        pace: 0,
    };
    World::open(settings, kind.fresh().await).await
}

/// The places that a whole run passes, and how often.
async fn places(kind: Database) -> BTreeMap<String, u32> {
    let world = world(kind).await;
    let node = world.node(0, EVERYTHING, &[(LISTING, "1")]);
    node.line_with(PLACED, LONG).await;
    let findings = world.come_to_rest(false).await;
    assert!(findings.violations.is_empty(), "{findings}");
    node.terminate();
    node.exit(LONG).await;
    let mut places = BTreeMap::new();
    for line in node.lines() {
        if let Some(place) = line.strip_prefix("place: ") {
            *places.entry(place.to_owned()).or_default() += 1;
        }
    }
    places
}

/// Ends a node at one place, lets another go on, and returns what is wrong. Says whether the node passed
/// the place: some are passed only by a run in which something took long.
async fn end_at(kind: Database, place: &str, end: End) -> Result<bool, String> {
    let world = world(kind).await;
    let here = format!("1, {place}");
    let variable = if end == End::Killed { KILL_AT } else { STOP_AT };
    let first = world.node(0, EVERYTHING, &[(variable, here.as_str())]);
    let reached = |node: &Child| {
        node.lines()
            .iter()
            .any(|line| line.starts_with("reached: "))
    };
    // Places at the end of a run are passed only when it is asked to stop.
    eventually("the place, or everything placed", LONG, async || {
        reached(&first) || first.lines().iter().any(|line| line == PLACED)
    })
    .await;
    if !reached(&first) {
        let quiet = world.come_to_rest(false);
        tokio::select! {
            findings = quiet => {
                if !findings.violations.is_empty() {
                    return Err(format!("before {here}: {findings}"));
                }
            }
            () = eventually("the place", 2 * LONG, async || reached(&first)) => {}
        }
        if !reached(&first) {
            first.terminate();
            eventually("the place, or the end", LONG, async || {
                reached(&first) || first.has_exited()
            })
            .await;
        }
    }
    if !reached(&first) {
        return Ok(false);
    }
    let second = world.node(0, EVERYTHING, &[]);
    second.line_with("ready", LONG).await;
    if end == End::Frozen {
        // Beyond the lease and the ack wait of one second each.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        first.thaw();
    }
    second.line_with(PLACED, 2 * LONG).await;
    let findings = world.come_to_rest(false).await;
    for node in [&first, &second] {
        if end == End::Frozen || std::ptr::eq(node, &second) {
            node.terminate();
            let status = node.exit(LONG).await;
            if !status.success() {
                return Err(format!("after {here} a node ended with {status}"));
            }
        }
    }
    if findings.violations.is_empty() {
        Ok(true)
    } else {
        Err(format!("after {here}: {findings}"))
    }
}

async fn walk(kind: Database, end: End) {
    let places = places(kind).await;
    for landmark in LANDMARKS {
        assert!(
            places.keys().any(|place| place.starts_with(landmark)),
            "nothing passes `{landmark}`; places: {places:#?}"
        );
    }
    let chosen: Vec<&String> = match end {
        End::Killed => places.keys().collect(),
        // A frozen process takes longer: a part of the places with each run, unless all are asked for.
        End::Frozen if std::env::var_os(EVERYWHERE).is_none() => {
            let first = fastrand::usize(..FROZEN_EVERY);
            places.keys().skip(first).step_by(FROZEN_EVERY).collect()
        }
        End::Frozen => places.keys().collect(),
    };
    let ended: Vec<_> = stream::iter(&chosen)
        .map(|place| async move { (place, end_at(kind, place, end).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let (mut failures, mut passed_by) = (Vec::new(), Vec::new());
    for (place, result) in ended {
        match result {
            Ok(true) => {}
            Ok(false) => passed_by.push(place.as_str()),
            Err(failure) => failures.push(failure),
        }
    }
    failures.sort();
    println!(
        "{} of {} places, {} failures; not passed this time: {passed_by:?}",
        chosen.len() - passed_by.len(),
        places.len(),
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Those that a run passes only when something took long are few.
    assert!(passed_by.len() <= 3, "{passed_by:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_place_postgres() {
    walk(Database::Postgres, End::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_place_mariadb() {
    walk(Database::MariaDb, End::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_place_sqlite() {
    walk(Database::Sqlite, End::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_between_effects_postgres() {
    walk(Database::Postgres, End::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_between_effects_mariadb() {
    walk(Database::MariaDb, End::Frozen).await;
}
