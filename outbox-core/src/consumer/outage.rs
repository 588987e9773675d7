//! Whether the consumers' database can be reached.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{policy::Backoff, store::Store, telemetry::OutageLog};

const RETRY: Backoff = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));

/// How often the database is asked while all is well.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Shared by all consumers of a runtime: while the database is down they stop pulling.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseWatch(Arc<watch::Sender<bool>>);

impl Default for DatabaseWatch {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(true)))
    }
}

impl DatabaseWatch {
    /// A connection outside the handlers' pool failed.
    pub(crate) fn down(&self) {
        self.0
            .send_if_modified(|works| std::mem::replace(works, false));
    }

    /// It answered.
    pub(crate) fn up(&self) {
        self.0.send_replace(true);
    }

    /// Whether it can be reached, as far as is known.
    pub(crate) fn works(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it can be reached.
    pub(crate) async fn until_up(&self) {
        let mut watch = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = watch.wait_for(|works| *works).await;
    }

    /// Waits until it cannot be reached.
    pub(crate) async fn until_down(&self) {
        let mut watch = self.0.subscribe();
        let _ = watch.wait_for(|works| !*works).await;
    }

    /// Asks a database that is down until it answers, for as long as `stop` is not cancelled.
    pub(crate) async fn guard<S: Store>(self, store: S, stop: CancellationToken) {
        let mut watch = self.0.subscribe();
        let mut outage = OutageLog::new("the consumers' database");
        loop {
            tokio::select! {
                down = watch.wait_for(|works| !*works) => if down.is_err() { return },
                () = stop.cancelled() => return,
                // A sign of life now and then: a connection that is cut for being idle must not
                // look like an outage at the next failure.
                () = sleep(KEEP_ALIVE) => {}
            }
            while let Err(error) = store.ping().await {
                self.down();
                outage.failed("consumers", &error);
                tokio::select! {
                    () = sleep(RETRY.delay(outage.failures())) => {}
                    () = stop.cancelled() => return,
                }
            }
            outage.worked("consumers");
            self.up();
        }
    }
}
