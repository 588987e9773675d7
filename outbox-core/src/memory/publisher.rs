//! Publishing to the in-process broker.

use std::sync::{Arc, atomic::Ordering};

use super::Shared;
use crate::{
    broker::{FailureKind, PublishFailure, Publisher, Receipt, WireMessage},
    subject::check_subject,
};

/// The publishing side of a [`MemoryBroker`](crate::MemoryBroker).
#[derive(Debug)]
pub struct MemoryPublisher {
    shared: Arc<Shared>,
}

impl MemoryPublisher {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Publisher for MemoryPublisher {
    fn publish(
        &self,
        message: WireMessage,
    ) -> impl Future<Output = Result<Receipt, PublishFailure>> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move {
            if shared.offline.load(Ordering::Acquire) {
                return Err(PublishFailure::new(
                    FailureKind::Disconnected,
                    "the in-process broker was taken offline",
                ));
            }
            check_subject(&message.subject)
                .map_err(|error| PublishFailure::new(FailureKind::Rejected, error.to_string()))?;
            Ok(shared.store(message))
        }
    }

    async fn probe(&self, _: &str) -> Result<(), PublishFailure> {
        self.shared
            .online()
            .map_err(|error| PublishFailure::new(FailureKind::Disconnected, error.to_string()))
    }

    fn connected(&self) -> bool {
        !self.shared.offline.load(Ordering::Acquire)
    }
}
