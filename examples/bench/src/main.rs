//! Measures the workspace on servers of its own, in one run, several rounds of each thing interleaved.
//!
//! `cargo run --release -p outbox-bench -- --help` says how. Ratios are what counts: database, broker
//! and framework share one machine, and what a figure is compared with was measured in the same round.

mod consume;
mod drain;
mod event;
mod growth;
mod idle;
mod latency;
mod peers;
mod plot;
mod publish;
mod report;
mod steady;
mod usage;
mod world;

use std::{error::Error, os::unix::process::CommandExt, path::PathBuf, process::Command};

use lexopt::{Arg, ValueExt};
use outbox_tests::{DATA_DIR, Database};

use crate::{report::Report, world::World};

/// What any step may end with.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
outbox-bench [SCENARIO..] [--database postgres|mariadb|sqlite] [--rounds N] [--rows N]
             [--json FILE] [--plot FILE]

Scenarios, all by default: publish drain growth consume latency steady idle
           for a profiler: relay (nothing but drains), handler (nothing but handlers)
--database  where the tables are; may be given several times (default: postgres)
--rounds    how often each thing is measured (default: 7)
--rows      rows of a drain, and messages of a consumer (default: 100000)
--json      writes every value of every round
--plot      draws the ratios";

/// What to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    scenarios: Vec<String>,
    databases: Vec<Database>,
    pub(crate) rounds: usize,
    pub(crate) rows: usize,
    json: Option<PathBuf>,
    plot: Option<PathBuf>,
}

impl Plan {
    fn parse() -> Outcome<Option<Self>> {
        let mut plan = Self {
            scenarios: Vec::new(),
            databases: Vec::new(),
            rounds: 7,
            rows: 100_000,
            json: None,
            plot: None,
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("database") => {
                    let name = arguments.value()?.string()?;
                    plan.databases.push(match name.as_str() {
                        "postgres" => Database::Postgres,
                        "mariadb" => Database::MariaDb,
                        "sqlite" => Database::Sqlite,
                        _ => return Err(format!("no database is called `{name}`\n\n{HELP}").into()),
                    });
                }
                Arg::Long("rounds") => plan.rounds = arguments.value()?.parse()?,
                Arg::Long("rows") => plan.rows = arguments.value()?.parse()?,
                Arg::Long("json") => plan.json = Some(arguments.value()?.into()),
                Arg::Long("plot") => plan.plot = Some(arguments.value()?.into()),
                Arg::Value(name) => plan.scenarios.push(name.string()?),
                other => return Err(format!("{}\n\n{HELP}", other.unexpected()).into()),
            }
        }
        if plan.databases.is_empty() {
            plan.databases.push(Database::Postgres);
        }
        Ok(Some(plan))
    }

    fn wants(&self, scenario: &str) -> bool {
        self.scenarios.is_empty() || self.scenarios.iter().any(|name| name == scenario)
    }
}

/// Begins anew with the servers' data on a disk, unless the environment says where it is to be: the
/// harness would keep it in memory, where a commit costs next to nothing.
fn on_disk() -> Outcome {
    if std::env::var_os(DATA_DIR).is_some() {
        return Ok(());
    }
    let data = std::env::current_dir()?.join("target/bench-data");
    std::fs::create_dir_all(&data)?;
    let failed = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(DATA_DIR, data)
        .exec();
    Err(failed.into())
}

fn main() -> Outcome {
    let Some(plan) = Plan::parse()? else {
        println!("{HELP}");
        return Ok(());
    };
    on_disk()?;
    let runtime = tokio::runtime::Runtime::new()?;
    // Everything measured is spawned: what `block_on` drives itself pays for its wake-ups.
    runtime.block_on(run(plan))
}

async fn run(plan: Plan) -> Outcome {
    let mut report = Report::default();
    for &database in &plan.databases {
        let world = World::start(database).await?;
        if plan.wants("publish") {
            publish::measure(&world, &plan, &mut report).await?;
        }
        if plan.wants("drain") {
            drain::measure(&world, &plan, &mut report).await?;
        }
        if plan.scenarios.iter().any(|name| name == "relay") {
            drain::alone(&world, &plan).await?;
        }
        if plan.scenarios.iter().any(|name| name == "handler") {
            consume::alone(&world, &plan).await?;
        }
        if plan.wants("growth") {
            growth::measure(&world, &plan, &mut report).await?;
        }
        if plan.wants("consume") {
            consume::measure(&world, &plan, &mut report).await?;
        }
        if plan.wants("latency") {
            latency::measure(&world, &plan, &mut report).await?;
        }
        if plan.wants("steady") {
            steady::measure(&world, &plan, &mut report).await?;
        }
        if plan.wants("idle") {
            idle::measure(&world, &mut report).await?;
        }
    }
    if let Some(path) = &plan.json {
        std::fs::write(path, report.json()?)?;
    }
    if let Some(path) = &plan.plot {
        std::fs::write(path, plot::draw(&report))?;
    }
    Ok(())
}
