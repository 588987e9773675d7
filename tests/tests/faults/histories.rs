//! Random histories: the seed is printed on failure, and reproduces plan and faults.

use std::time::Duration;

use outbox_tests::{
    Database, MariaDb, Postgres, TestDatabase,
    history::{Restart, Settings, Storm, World},
};

use crate::walk::PROGRAM;

const RAGE: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    let seed = std::env::var("HISTORY_SEED").ok();
    Settings {
        program: PROGRAM.into(),
        seed: seed
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| fastrand::u64(..)),
        slots: 2,
        orders: None,
        pace: 20,
    }
}

async fn rage(mut storm: Storm<'_>, world: &World) {
    let seed = world.settings.seed;
    println!("HISTORY_SEED={seed}");
    storm.rage(RAGE).await;
    let (_nodes, faults) = storm.end().await;
    let findings = world.come_to_rest(true).await;
    println!("{findings}; {faults:?}");
    assert!(
        findings.violations.is_empty(),
        "HISTORY_SEED={seed}: {findings}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn random_faults_postgres() {
    let server = Postgres::start().await;
    let db = TestDatabase::on(Database::Postgres, server.create_database().await).await;
    let world = World::open(settings(), db).await;
    let restart: Box<Restart<'_>> = Box::new(|| Box::pin(server.restart()));
    rage(Storm::begin(&world, 0, Some(restart)), &world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_faults_mariadb() {
    let server = MariaDb::start().await;
    let db = TestDatabase::on(Database::MariaDb, server.create_database().await).await;
    let world = World::open(settings(), db).await;
    let restart: Box<Restart<'_>> = Box::new(|| Box::pin(server.restart()));
    rage(Storm::begin(&world, 0, Some(restart)), &world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_faults_sqlite() {
    let world = World::open(settings(), Database::Sqlite.fresh().await).await;
    rage(Storm::begin(&world, 0, None), &world).await;
}
