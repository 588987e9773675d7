//! Health: what a probe, a page or an alert asks.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    consumer::{ConsumerState, ConsumerStatus, DatabaseWatch, SharedConsumerStatus},
    relay::{RelayState, RelayStatus, SharedStatus},
    store::Backlog,
};

/// An event that has waited longer than this is a problem.
const LATE: Duration = Duration::from_secs(60);

/// A handle that tells how a runtime is. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    database: DatabaseWatch,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Why it could not start.
    failure: Option<String>,
    relay: Option<SharedStatus>,
    consumers: Vec<SharedConsumerStatus>,
    backlog: Option<Backlog>,
    dead_letters: Option<u64>,
}

/// How a runtime is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthReport {
    /// It runs: false before it is started, from the beginning of a graceful stop, and when it could
    /// not start. A runtime that waits for its database or broker lives.
    pub live: bool,
    /// Its database can be reached, so the process can do its work. A broker outage does not make
    /// it unready: events wait in the outbox meanwhile, which is what it is for.
    pub ready: bool,
    /// What is wrong, in sentences; empty if nothing is.
    pub problems: Vec<String>,
    /// The relay, if this runtime has one.
    pub relay: Option<RelayStatus>,
    /// The consumers.
    pub consumers: Vec<ConsumerStatus>,
    /// What waits in the outbox, as of a few seconds ago.
    pub backlog: Option<Backlog>,
    /// How many dead letters the broker holds, as of a few seconds ago.
    pub dead_letters: Option<u64>,
}

impl Health {
    /// How the runtime is now. Asks nobody: what it tells is at most a few seconds old.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        let state = self.lock();
        let relay = state.relay.as_ref().map(SharedStatus::get);
        let consumers: Vec<_> = state
            .consumers
            .iter()
            .map(SharedConsumerStatus::get)
            .collect();
        let mut problems = Vec::new();
        let mut database = self.0.database.works();
        if !database {
            problems
                .push("the consumers' database cannot be reached; consumers are paused".to_owned());
        }
        if let Some(relay) = &relay {
            if let Some(error) = &relay.store_error {
                database = false;
                problems.push(format!("the relay's database: {error}"));
            }
            if let Some(problem) = &relay.problem {
                problems.push(problem.clone());
            } else if relay.state == RelayState::Active && !relay.broker_connected {
                problems.push(
                    "the relay's broker cannot be reached; events wait in the outbox".to_owned(),
                );
            }
            for (lane, reason) in &relay.unavailable {
                problems.push(format!(
                    "`{lane}` is unavailable and its events wait: {reason}"
                ));
            }
        }
        if let Some(age) = state
            .backlog
            .as_ref()
            .and_then(|backlog| backlog.oldest_age)
            && age > LATE
        {
            let who = if relay.is_some() {
                ""
            } else {
                "; this runtime has no relay (`Runtime::relay`): is there one in another process?"
            };
            problems.push(format!(
                "the oldest event has been waiting for {} s{who}",
                age.as_secs()
            ));
        }
        for consumer in &consumers {
            if let ConsumerState::Failing(error) = &consumer.state {
                problems.push(format!("consumer `{}`: {error}", consumer.name));
            }
        }
        for consumer in &consumers {
            if let Some(error) = &consumer.store_error {
                database = false;
                problems.push(format!(
                    "consumer `{}` cannot write to its database: {error}",
                    consumer.name
                ));
            }
        }
        for consumer in &consumers {
            if let Some(error) = &consumer.replay_error {
                problems.push(format!("replays of consumer `{}`: {error}", consumer.name));
            }
        }
        let live = state.running;
        match &state.failure {
            Some(cause) => problems.push(format!("the runtime could not start: {cause}")),
            None if !live => problems.push("the runtime is not running".to_owned()),
            None => {}
        }
        HealthReport {
            live,
            ready: live && database,
            problems,
            relay,
            consumers,
            backlog: state.backlog.clone(),
            dead_letters: state.dead_letters,
        }
    }

    pub(super) fn database(&self) -> &DatabaseWatch {
        &self.0.database
    }

    pub(super) fn add_consumer(&self, status: SharedConsumerStatus) {
        self.lock().consumers.push(status);
    }

    pub(super) fn set_relay(&self, status: SharedStatus) {
        self.lock().relay = Some(status);
    }

    pub(super) fn running(&self, running: bool) {
        self.lock().running = running;
    }

    pub(super) fn could_not_start(&self, cause: String) {
        let mut state = self.lock();
        state.running = false;
        state.failure = Some(cause);
    }

    pub(super) const fn stopped_when_dropped(self) -> StoppedWhenDropped {
        StoppedWhenDropped(self)
    }

    pub(super) fn observed(&self, backlog: Option<Backlog>, dead_letters: Option<u64>) {
        let mut state = self.lock();
        state.backlog = backlog;
        state.dead_letters = dead_letters;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the runtime does not run any more when it is dropped.
pub(super) struct StoppedWhenDropped(Health);

impl Drop for StoppedWhenDropped {
    fn drop(&mut self) {
        self.0.running(false);
    }
}
