//! Letting a suspect run alone in the process.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::timeout,
};

/// How long a suspect waits for the others to finish, before it is handed back to try elsewhere or
/// later. Nobody is let in meanwhile, so it must not be long.
const SUSPECT_WAITS: Duration = Duration::from_secs(10);

/// Shared by all consumers of a runtime: handlers enter together, a suspect alone.
#[derive(Debug, Clone)]
pub(super) struct Alone {
    lock: Arc<RwLock<()>>,
    /// Longer than any handler may take: after that, whoever is inside has blocked its thread.
    longest: Duration,
}

/// Being inside.
#[derive(Debug)]
pub(super) enum Permit {
    Shared {
        _guard: OwnedRwLockReadGuard<()>,
    },
    Alone {
        _guard: OwnedRwLockWriteGuard<()>,
    },
    /// Let in although a suspect does not leave.
    Regardless,
}

impl Alone {
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            lock: Arc::default(),
            longest,
        }
    }

    /// Waits to be let in. `None` if a suspect cannot be alone soon.
    ///
    /// Tokio's lock is fair: a suspect waits only for those that are inside and is not overtaken.
    pub(super) async fn enter(&self, alone: bool) -> Option<Permit> {
        let lock = Arc::clone(&self.lock);
        if alone {
            let guard = timeout(SUSPECT_WAITS, lock.write_owned()).await.ok()?;
            return Some(Permit::Alone { _guard: guard });
        }
        match timeout(self.longest, lock.read_owned()).await {
            Ok(guard) => Some(Permit::Shared { _guard: guard }),
            Err(_) => {
                tracing::error!(
                    waited = ?self.longest,
                    "a suspect message does not end: its handler blocks its thread; the others go on without waiting for it"
                );
                Some(Permit::Regardless)
            }
        }
    }
}
