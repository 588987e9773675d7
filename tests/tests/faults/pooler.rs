//! A pooler in transaction mode between the shop and PostgreSQL.

use std::time::Duration;

use outbox_tests::{
    Database, PgBouncer, Postgres, TestDatabase,
    history::{PLACED, Settings, World},
};

use crate::walk::PROGRAM;

const LONG: Duration = Duration::from_secs(60);

/// Everything goes through the pooler, migration included, and the pooler is killed on the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_harms_nothing() {
    let postgres = Postgres::start().await;
    let pooler = PgBouncer::start(postgres.port()).await;
    let url = pooler.server().create_database().await;
    let settings = Settings {
        program: PROGRAM.into(),
        seed: 5,
        slots: 2,
        orders: Some(150),
        pace: 10,
    };
    let db = TestDatabase::on(Database::Postgres, url).await;
    let world = World::open(settings, db).await;
    let roles = "orders,relay,consumer,operator";
    let nodes = [world.node(0, roles, &[]), world.node(1, roles, &[])];
    for node in &nodes {
        node.line_with("ready", LONG).await;
    }
    pooler.restart().await;
    for node in &nodes {
        node.line_with(PLACED, LONG).await;
    }
    let findings = world.come_to_rest(false).await;
    assert!(findings.violations.is_empty(), "{findings}");
    for node in nodes {
        node.terminate();
        assert!(node.exit(LONG).await.success());
    }
}
