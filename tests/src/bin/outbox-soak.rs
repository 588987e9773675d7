//! Random faults for as long as asked: `outbox-soak postgres|mariadb|sqlite MINUTES [SEED]`.
//!
//! In rounds of two minutes: processes place orders, relay and ship while things break, then nothing
//! breaks until all is quiet, and every promise is checked. Ends with an error at the first round
//! that broke one; the seed that it prints reproduces plan and faults.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use outbox_tests::{
    Database, MariaDb, Postgres, TestDatabase,
    history::{Fault, Findings, Restart, Settings, Storm, World},
};

const ROUND: Duration = Duration::from_secs(120);

enum Server {
    Postgres(Postgres),
    MariaDb(MariaDb),
    File,
}

impl Server {
    async fn restart(&self) {
        match self {
            Self::Postgres(server) => server.restart().await,
            Self::MariaDb(server) => server.restart().await,
            Self::File => {}
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let minutes = args.get(1).and_then(|minutes| minutes.parse::<f64>().ok());
    let (Some(kind), Some(minutes)) = (args.first(), minutes) else {
        eprintln!("usage: outbox-soak postgres|mariadb|sqlite MINUTES [SEED]");
        return ExitCode::from(2);
    };
    let (server, db) = match kind.as_str() {
        "postgres" => {
            let server = Postgres::start().await;
            let url = server.create_database().await;
            let db = TestDatabase::on(Database::Postgres, url).await;
            (Server::Postgres(server), db)
        }
        "mariadb" => {
            let server = MariaDb::start().await;
            let url = server.create_database().await;
            let db = TestDatabase::on(Database::MariaDb, url).await;
            (Server::MariaDb(server), db)
        }
        _ => (Server::File, Database::Sqlite.fresh().await),
    };
    let seed = args.get(2).and_then(|seed| seed.parse().ok());
    let program = std::env::current_exe()
        .expect("this program has a path")
        .with_file_name("outbox-history-node");
    let settings = Settings {
        program,
        seed: seed.unwrap_or_else(|| fastrand::u64(..)),
        slots: 3,
        orders: None,
        pace: 20,
    };
    println!("{kind}, {minutes} minutes, seed {}", settings.seed);
    let world = World::open(settings, db).await;
    soak(&world, &server, Duration::from_secs_f64(minutes * 60.0)).await
}

async fn soak(world: &World, server: &Server, time: Duration) -> ExitCode {
    let began = Instant::now();
    let mut all: BTreeMap<Fault, u32> = BTreeMap::new();
    let mut findings = Findings::default();
    let mut round = 0;
    while began.elapsed() < time {
        round += 1;
        let restart: Box<Restart<'_>> = Box::new(|| Box::pin(server.restart()));
        let may_restart = !matches!(server, Server::File);
        let mut storm = Storm::begin(world, round, may_restart.then_some(restart));
        storm.rage(ROUND.min(time)).await;
        let (nodes, faults) = storm.end().await;
        for (fault, count) in faults {
            *all.entry(fault).or_default() += count;
        }
        findings = world.come_to_rest(true).await;
        drop(nodes);
        println!("after {:?}: {findings}", began.elapsed());
        if !findings.violations.is_empty() {
            break;
        }
    }
    let count: u32 = all.values().sum();
    println!("{count} faults: {all:?}");
    if findings.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
