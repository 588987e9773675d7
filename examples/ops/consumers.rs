//! Where the consumers stand, as the broker tells.

use async_nats::jetstream;
use futures_util::TryStreamExt;
use outbox_core::error::BoxError;

pub(crate) struct Standing {
    pub(crate) name: String,
    pub(crate) stream: String,
    /// Not delivered yet.
    pub(crate) waiting: u64,
    /// Delivered and not settled.
    pub(crate) unsettled: usize,
    /// Of those, delivered more than once.
    pub(crate) redelivered: usize,
}

/// All durables of all streams that this account may see.
pub(crate) async fn all(nats_url: &str) -> Result<Vec<Standing>, BoxError> {
    let servers: Vec<&str> = nats_url.split(',').map(str::trim).collect();
    let options = async_nats::ConnectOptions::new().name("outbox-ops");
    let jetstream = jetstream::new(options.connect(servers).await?);
    let mut found = Vec::new();
    let mut streams = jetstream.stream_names();
    while let Some(stream) = streams.try_next().await? {
        let handle = jetstream.get_stream_no_info(&stream).await?;
        let mut consumers = handle.consumers();
        while let Some(info) = consumers.try_next().await? {
            if info.config.durable_name.is_some() {
                found.push(Standing {
                    name: info.name,
                    stream: stream.clone(),
                    waiting: info.num_pending,
                    unsettled: info.num_ack_pending,
                    redelivered: info.num_redelivered,
                });
            }
        }
    }
    found.sort_by(|a, b| (&a.stream, &a.name).cmp(&(&b.stream, &b.name)));
    Ok(found)
}
