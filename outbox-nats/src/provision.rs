//! Puts the configured streams in place.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::broker::BrokerError;

use crate::{
    api::Api,
    topology::{Topology, stream::StreamSpec},
};

/// At most so often is a missing stream created again.
const PAUSE: Duration = Duration::from_secs(2);

/// The streams that the application configured, and what may be done about them.
#[derive(Debug)]
pub(crate) struct Provision {
    pub(crate) api: Api,
    pub(crate) streams: Vec<StreamSpec>,
    pub(crate) topology: Topology,
    busy: AtomicBool,
}

impl Provision {
    pub(crate) fn new(api: Api, streams: Vec<StreamSpec>, topology: Topology) -> Self {
        Self {
            api,
            streams,
            topology,
            busy: AtomicBool::new(false),
        }
    }

    /// Creates, compares or changes all configured streams.
    pub(crate) async fn ensure(&self) -> Result<(), BrokerError> {
        for stream in &self.streams {
            stream.ensure(&self.api, self.topology).await?;
        }
        Ok(())
    }

    /// A publish found no stream: if it is one of ours, it is created again, in the background.
    pub(crate) fn stream_is_missing(self: &Arc<Self>, subject: &str) {
        if self.topology == Topology::Verify
            || !self.streams.iter().any(|stream| stream.carries(subject))
            || self.busy.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let provision = self.clone();
        tokio::spawn(async move {
            if let Err(error) = provision.ensure().await {
                tracing::warn!("{error}");
            }
            tokio::time::sleep(PAUSE).await;
            provision.busy.store(false, Ordering::Release);
        });
    }
}
