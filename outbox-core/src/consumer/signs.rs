//! Signs of life: telling the broker that messages are being worked on.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::settings::Settings;
use crate::broker::DeliveryHandle;

/// Signs are sent this long beyond the handler's time-out, then no more.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// Sent three times in each ack wait. A handler that blocks its thread stops them, so that its message
/// goes to another process.
#[derive(Debug)]
pub(super) struct SignsOfLife {
    consumer: Arc<str>,
    ticks: Interval,
    patience: Duration,
}

impl SignsOfLife {
    pub(super) fn new(settings: &Settings) -> Self {
        let every = settings.ack_wait / 3;
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            consumer: Arc::clone(&settings.name),
            ticks,
            patience: settings.timeout + GRACE,
        }
    }

    /// Does the work and sends signs for `handles` meanwhile, until the work should long have ended.
    pub(super) async fn during<H: DeliveryHandle, T>(
        &mut self,
        handles: &[&H],
        work: impl Future<Output = T>,
    ) -> T {
        let end = Instant::now() + self.patience;
        let (ticks, consumer) = (&mut self.ticks, &self.consumer);
        let signs = async {
            while ticks.tick().await < end {
                let sent = join_all(handles.iter().map(|handle| handle.in_progress())).await;
                for error in sent.into_iter().filter_map(Result::err) {
                    tracing::debug!(%consumer, %error, "a sign of life could not be sent");
                }
            }
        };
        tokio::pin!(work, signs);
        tokio::select! {
            biased;
            done = &mut work => done,
            () = &mut signs => work.await,
        }
    }
}
