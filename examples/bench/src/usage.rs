//! What processes use, as the kernel counts it.

use std::time::Duration;

use outbox_tests::Database;
use sea_orm::{ConnectionTrait, Statement};
use serde::Serialize;

use crate::{Outcome, world::World};

/// The machine of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    processors: usize,
    model: String,
    kernel: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| line.split(':').nth(1))
            .map(|name| name.trim().to_owned());
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            model: model.unwrap_or_default(),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// CPU time of this process and of the servers, so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTime {
    pub(crate) own: Duration,
    pub(crate) database: Duration,
    pub(crate) broker: Duration,
}

impl CpuTime {
    pub(crate) fn now() -> Self {
        let mut database = Duration::ZERO;
        let mut broker = Duration::ZERO;
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some((name, time)) = of(&process.path()) else {
                continue;
            };
            match name.as_str() {
                "postgres" | "mariadbd" | "mysqld" => database += time,
                "nats-server" => broker += time,
                _ => {}
            }
        }
        let own = of("/proc/self".as_ref()).map_or(Duration::ZERO, |(_, time)| time);
        Self {
            own,
            database,
            broker,
        }
    }

    /// Microseconds of each a message, since `before`.
    pub(crate) fn each(&self, before: &Self, messages: usize) -> [f64; 3] {
        let micros = |now: Duration, then: Duration| {
            now.saturating_sub(then).as_secs_f64() * 1e6 / messages as f64
        };
        [
            micros(self.own, before.own),
            micros(self.database, before.database),
            micros(self.broker, before.broker),
        ]
    }
}

/// Name and CPU time of a process, its ended children included.
fn of(process: &std::path::Path) -> Option<(String, Duration)> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    let name = stat.split_once('(')?.1.rsplit_once(')')?.0.to_owned();
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // utime, stime, cutime, cstime: fields 14 to 17, counted from the state as the third.
    let ticks: u64 = fields
        .get(11..15)?
        .iter()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    // The kernel's unit for user space, whatever it ticks with itself: proc(5).
    const TICKS_A_SECOND: f64 = 100.0;
    Some((name, Duration::from_secs_f64(ticks as f64 / TICKS_A_SECOND)))
}

/// The resident memory of this process in MiB: now, and at its highest.
pub(crate) fn memory() -> (f64, f64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mib = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|kib| kib.parse::<f64>().ok())
            .unwrap_or_default()
            / 1024.0
    };
    (mib("VmRSS:"), mib("VmHWM:"))
}

/// What a database has done so far, as it counts itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) statements: f64,
    /// Pages that were looked at, in memory or not.
    pub(crate) pages: f64,
}

impl Work {
    /// `None` for SQLite, which does not count. PostgreSQL's connections tell what they did when they have
    /// been idle for ten seconds.
    pub(crate) async fn so_far(world: &World) -> Outcome<Option<Self>> {
        let numbers = match world.database {
            Database::Sqlite => return Ok(None),
            Database::Postgres => {
                const TOLD: Duration = Duration::from_secs(11);
                tokio::time::sleep(TOLD).await;
                let sql = "SELECT xact_commit + xact_rollback, blks_hit + blks_read \
                           FROM pg_stat_database WHERE datname = current_database()";
                let row = row(world, sql).await?;
                [row.try_get_by_index(0)?, row.try_get_by_index(1)?]
            }
            Database::MariaDb => {
                let status = async |name| -> Outcome<i64> {
                    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
                    let value: String = row(world, &sql).await?.try_get_by_index(1)?;
                    Ok(value.parse()?)
                };
                let pages = status("Innodb_buffer_pool_read_requests").await?;
                [status("Questions").await?, pages]
            }
        };
        let [statements, pages] = numbers.map(|number: i64| number as f64);
        Ok(Some(Self { statements, pages }))
    }
}

async fn row(world: &World, sql: &str) -> Outcome<sea_orm::QueryResult> {
    let statement = Statement::from_string(world.db.get_database_backend(), sql);
    let row = world.db.query_one_raw(statement).await?;
    Ok(row.ok_or("no row")?)
}
