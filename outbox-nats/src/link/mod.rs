//! A link to NATS: connections, one after the other, each of which lives once.

mod calls;
mod dial;
mod life;
mod supervise;
mod violation;

use std::{sync::Arc, time::Duration};

use async_nats::Subject;
use bytes::Bytes;
use outbox_core::broker::{BrokerError, BrokerErrorKind};
use tokio::{sync::watch, time::Instant};

pub(crate) use self::{
    calls::{CallError, Reply},
    dial::{ConnectSettings, DialError},
    life::Life,
    violation::subject as violated_subject,
};
use self::{dial::Dialer, supervise::supervise};

#[derive(Debug, Clone)]
enum State {
    /// The first attempt, or the first after a loss, is under way.
    Connecting,
    Up(Arc<Life>),
    /// The last attempt failed.
    Down(Arc<DialError>),
}

/// A handle on a supervised connection; when the last one is dropped, the connection closes.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    state: watch::Receiver<State>,
}

impl Link {
    /// Starts connecting.
    pub(crate) fn open(settings: Arc<ConnectSettings>) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        tokio::spawn(supervise(Dialer::new(settings), sender));
        Self { state }
    }

    /// The connection, if it is up.
    pub(crate) fn current(&self) -> Option<Arc<Life>> {
        match &*self.state.borrow() {
            State::Up(life) => Some(life.clone()),
            State::Connecting | State::Down(_) => None,
        }
    }

    /// Waits for the connection or for the first failure to make it.
    pub(crate) async fn first_outcome(&self) -> Result<Arc<Life>, Arc<DialError>> {
        let mut state = self.state.clone();
        let outcome = state
            .wait_for(|state| !matches!(state, State::Connecting))
            .await;
        match outcome.as_deref() {
            Ok(State::Up(life)) => Ok(life.clone()),
            Ok(State::Down(error)) => Err(error.clone()),
            Ok(State::Connecting) | Err(_) => Err(Arc::new(DialError {
                kind: BrokerErrorKind::Unavailable,
                text: "the runtime that kept the NATS connection is gone".to_owned(),
            })),
        }
    }

    /// Waits for a connection, however long it takes.
    pub(crate) async fn up(&self) -> Result<Arc<Life>, BrokerError> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| matches!(state, State::Up(_))).await;
        match up.as_deref() {
            Ok(State::Up(life)) => Ok(life.clone()),
            _ => Err(BrokerError::new(
                BrokerErrorKind::Other,
                "the runtime that kept the NATS connection is gone",
            )),
        }
    }

    /// A request that may be repeated: when a connection is lost, it is sent again over the next.
    pub(crate) async fn call(
        &self,
        subject: &Subject,
        headers: Option<&async_nats::HeaderMap>,
        payload: &Bytes,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        let deadline = Instant::now() + timeout;
        loop {
            let Ok(Ok(life)) = tokio::time::timeout_at(deadline, self.up()).await else {
                return Err(CallError::Disconnected);
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match life
                .call(subject.clone(), headers.cloned(), payload.clone(), left)
                .await
            {
                Err(CallError::Disconnected) if Instant::now() < deadline => {
                    // The next connection is another one, or this one's end is about to be seen.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                reply => return reply,
            }
        }
    }

    /// Why the last attempt to connect failed, if the link is down for that.
    pub(crate) fn why_down(&self) -> Option<Arc<DialError>> {
        match &*self.state.borrow() {
            State::Down(error) => Some(error.clone()),
            State::Up(_) | State::Connecting => None,
        }
    }
}
