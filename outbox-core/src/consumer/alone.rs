//! Letting a suspect run alone in the process.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Shared by all consumers of a runtime: handlers enter together, a suspect alone.
///
/// Tokio's lock is fair, so a suspect waits only for those that are inside and is not overtaken.
#[derive(Debug, Clone, Default)]
pub(super) struct Alone(Arc<RwLock<()>>);

/// Being inside.
#[derive(Debug)]
pub(super) enum Permit {
    Shared { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

impl Alone {
    /// Waits to be let in.
    pub(super) async fn enter(&self, alone: bool) -> Permit {
        let lock = Arc::clone(&self.0);
        if alone {
            Permit::Alone {
                _guard: lock.write_owned().await,
            }
        } else {
            Permit::Shared {
                _guard: lock.read_owned().await,
            }
        }
    }
}
