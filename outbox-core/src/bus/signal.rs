//! How publishers tell the relay of their process that there is something to do.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

/// One target's signal.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    notify: Notify,
    wakes: AtomicU64,
    touches: AtomicU64,
}

/// What has been signalled so far; compared with what was seen last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) wakes: u64,
    pub(crate) touches: u64,
}

impl Signal {
    /// Something was committed.
    pub(crate) fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Release);
        self.notify.notify_one();
    }

    /// Something was written in a transaction whose end is not seen from here.
    pub(crate) fn touch(&self) {
        self.touches.fetch_add(1, Ordering::Release);
        self.notify.notify_one();
    }

    pub(crate) fn seen(&self) -> Seen {
        Seen {
            wakes: self.wakes.load(Ordering::Acquire),
            touches: self.touches.load(Ordering::Acquire),
        }
    }

    /// Resolves after the next signal, or at once if there was one since the last call.
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }
}

/// The signals of all targets of a bus.
#[derive(Debug, Default)]
pub(crate) struct Signals(Mutex<HashMap<Arc<str>, Arc<Signal>>>);

impl Signals {
    pub(crate) fn of(&self, target: &Arc<str>) -> Arc<Signal> {
        let mut signals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(signals.entry(Arc::clone(target)).or_default())
    }
}
