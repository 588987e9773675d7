//! Puts the configured streams in place.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::broker::BrokerError;

use crate::{
    api::Api,
    topology::{Topology, hazards::warn_of_losses, stream::StreamSpec},
};

/// At most so often is a missing stream created again.
const PAUSE: Duration = Duration::from_secs(2);

/// The streams that the application configured, and what may be done about them.
#[derive(Debug)]
pub(crate) struct Provision {
    pub(crate) api: Api,
    pub(crate) streams: Vec<StreamSpec>,
    pub(crate) topology: Topology,
    /// The streams have been put in place once.
    done: AtomicBool,
    /// A missing stream is being created.
    busy: AtomicBool,
    /// The streams whose dangers have been told.
    warned: Mutex<BTreeSet<String>>,
}

impl Provision {
    pub(crate) fn new(api: Api, streams: Vec<StreamSpec>, topology: Topology) -> Self {
        Self {
            api,
            streams,
            topology,
            done: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            warned: Mutex::default(),
        }
    }

    /// Creates, compares or changes all configured streams, unless that has been done.
    pub(crate) async fn ensure_once(&self) -> Result<(), BrokerError> {
        if self.done.load(Ordering::Acquire) {
            return Ok(());
        }
        for stream in &self.streams {
            stream.ensure(&self.api, self.topology).await?;
        }
        self.done.store(true, Ordering::Release);
        Ok(())
    }

    /// Creates those configured streams that do not exist.
    pub(crate) async fn create_missing(&self) -> Result<(), BrokerError> {
        if self.topology != Topology::Verify {
            for stream in &self.streams {
                stream.create_if_missing(&self.api).await?;
            }
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
            if let Err(error) = provision.create_missing().await {
                tracing::warn!("{error}");
            }
            tokio::time::sleep(PAUSE).await;
            provision.busy.store(false, Ordering::Release);
        });
    }

    /// Warns, once a stream, of settings by which it can lose events that nobody has handled.
    pub(crate) async fn warn_of_losses(&self, stream: &str) -> Result<(), BrokerError> {
        // Without the right to look there is no telling.
        let Ok(info) = self.api.stream(stream).await else {
            return Ok(());
        };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let news = warned.insert(stream.to_owned());
        drop(warned);
        warn_of_losses(stream, &info.config, news)
    }
}
