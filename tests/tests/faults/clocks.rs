//! Hosts whose clocks are wrong by an hour.

use std::{path::PathBuf, time::Duration};

use outbox_tests::{
    Database, eventually,
    history::{PLACED, Settings, World},
};

use crate::walk::PROGRAM;

const ORDERS: i64 = 60;
const LONG: Duration = Duration::from_secs(60);

/// libfaketime, which `tests/install` installs.
fn library() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib")
        .expect("read /usr/lib")
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists());
    found.expect("libfaketime is installed: run tests/install")
}

/// Two hosts place, relay and ship; the clock of one is an hour ahead, that of the other an hour behind.
/// The first has the lease and dies with it: the second does not wait for an hour, but for a second.
async fn wrong_clocks_harm_nothing(kind: Database) {
    let settings = Settings {
        program: PROGRAM.into(),
        seed: 3,
        slots: 2,
        orders: Some(ORDERS),
        pace: 10,
    };
    let world = World::open(settings, kind.fresh().await).await;
    let library = library().to_string_lossy().into_owned();
    let node = |slot, offset| {
        let clock = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME", offset),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        world.node(slot, "orders,relay,consumer,operator", &clock)
    };
    let ahead = node(0, "+3600s");
    let jetstream = world.nats.nats().jetstream().await;
    eventually("the first is the active relay", LONG, async || {
        let stream = jetstream.get_stream("SHOP").await.ok()?;
        (stream.cached_info().state.messages > 0).then_some(())
    })
    .await;
    let behind = node(1, "-3600s");
    behind.line_with("ready", LONG).await;
    ahead.kill();
    behind.line_with(PLACED, LONG).await;
    let findings = world.come_to_rest(true).await;
    assert!(findings.violations.is_empty(), "{findings}");
    // It comes back, even more ahead, while the other is active.
    let ahead = node(0, "+7200s");
    ahead.line_with(PLACED, LONG).await;
    let findings = world.come_to_rest(true).await;
    assert!(findings.violations.is_empty(), "{findings}");
    for node in [ahead, behind] {
        node.terminate();
        assert!(node.exit(LONG).await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clocks_harm_nothing_postgres() {
    wrong_clocks_harm_nothing(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clocks_harm_nothing_mariadb() {
    wrong_clocks_harm_nothing(Database::MariaDb).await;
}
