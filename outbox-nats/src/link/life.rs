//! One connection, from its handshake to its end.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_nats::{Client, HeaderMap, PublishError, PublishErrorKind, Subject};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use outbox_core::failpoint::Failpoint;
use tokio::task::{Unconstrained, unconstrained};

use super::calls::{CallError, Calls, Reply, Ticket};

/// At most so many refused subjects are remembered.
const MAX_REFUSED: usize = 256;
/// Rights may be given later, so a refusal is believed for a while only.
const BELIEVED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) client: Client,
    pub(super) calls: Arc<Calls>,
    /// What reply subjects begin with, dot included.
    pub(super) inbox: String,
    refused: Mutex<HashMap<String, Refused>>,
}

/// A subject that the server refused.
#[derive(Debug)]
struct Refused {
    text: Arc<str>,
    at: Instant,
    /// A refused subscription stays refused for as long as the connection lives.
    lasting: bool,
}

impl Refused {
    fn holds(&self) -> bool {
        self.lasting || self.at.elapsed() < BELIEVED
    }
}

impl Life {
    pub(super) fn new(client: Client, inbox: String) -> Self {
        Self {
            client,
            calls: Arc::default(),
            inbox,
            refused: Mutex::default(),
        }
    }

    /// Hands a request to the connection at the first poll; the reply is then awaited with the ticket.
    pub(crate) fn send(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Sending<'_>, CallError> {
        let (ticket, token) = self.calls.register(subject.clone(), timeout)?;
        let point = Failpoint::after(|| step(&subject, &payload) + ": sent");
        let reply = format!("{}{token:x}", self.inbox);
        let handing: BoxFuture<'_, _> = match headers {
            Some(headers) => Box::pin(
                self.client
                    .publish_with_reply_and_headers(subject, reply, headers, payload),
            ),
            None => Box::pin(self.client.publish_with_reply(subject, reply, payload)),
        };
        Ok(Sending {
            ticket: Some(ticket),
            // Unconstrained: a task's budget must not delay the hand-over past that of a later message.
            handing: unconstrained(handing),
            point,
        })
    }

    /// A request and its reply.
    pub(crate) async fn call(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        let point = Failpoint::after(|| step(&subject, &payload) + ": answered");
        let reply = self
            .send(subject, headers, payload, timeout)?
            .await?
            .reply()
            .await?;
        point.passed();
        Ok(reply)
    }

    /// Publishes without waiting for an answer.
    pub(crate) async fn publish(
        &self,
        subject: Subject,
        reply: Option<String>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let point = Failpoint::after(|| step(&subject, &payload) + ": sent");
        let sending = async {
            match reply {
                Some(reply) => {
                    self.client
                        .publish_with_reply(subject, reply, payload)
                        .await
                }
                None => self.client.publish(subject, payload).await,
            }
        };
        match tokio::time::timeout(timeout, sending).await {
            Ok(sent) => {
                sent.map_err(|error| unsent(&error))?;
                point.passed();
                Ok(())
            }
            Err(_) => Err(CallError::TimedOut),
        }
    }

    /// Why the server refused a subject on this connection, if it did lately.
    pub(crate) fn refused(&self, subject: &str) -> Option<Arc<str>> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = refused.get(subject).filter(|refused| refused.holds())?;
        Some(refused.text.clone())
    }

    /// Takes note that the server refused a subject; whether that is news.
    pub(super) fn refuse(&self, subject: &str, text: &Arc<str>) -> bool {
        let own_inbox = subject.strip_suffix('*') == Some(self.inbox.as_str());
        if own_inbox {
            self.calls.close(&CallError::Denied(text.clone()));
        } else {
            self.calls.deny(subject, text);
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let news = !refused.get(subject).is_some_and(Refused::holds);
        if news && refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        let lasting = text.contains("for Subscription");
        let refusal = Refused {
            text: text.clone(),
            at: Instant::now(),
            lasting,
        };
        refused.insert(subject.to_owned(), refusal);
        news
    }
}

/// A request on its way to the connection.
///
/// There are many of them at a time, nearly all of which are soon done, so it is small, and what
/// async-nats needs to hand a message over is on the heap for as long as that takes.
pub(crate) struct Sending<'a> {
    /// `None` when it has been sent.
    ticket: Option<Ticket>,
    handing: Unconstrained<BoxFuture<'a, Result<(), PublishError>>>,
    point: Failpoint,
}

impl Future for Sending<'_> {
    type Output = Result<Ticket, CallError>;

    /// Ready when it is sent, or answered before that is known.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(handed) = self.handing.poll_unpin(cx) {
            handed.map_err(|error| unsent(&error))?;
        } else if let Some(ticket) = &mut self.ticket {
            ready!(ticket.poll_early(cx));
        }
        self.point.passed();
        Poll::Ready(self.ticket.take().ok_or(CallError::Disconnected))
    }
}

/// What a message is to a test that kills the process after it: the API's function, the kind of
/// acknowledgement, or where it goes.
fn step(subject: &str, payload: &[u8]) -> String {
    if let Some(function) = subject.strip_prefix("$JS.API.") {
        return function.split('.').take(2).collect::<Vec<_>>().join(".");
    }
    if subject.starts_with("$JS.ACK.") {
        let body = String::from_utf8_lossy(payload);
        return body.split_whitespace().next().unwrap_or("+ACK").to_owned();
    }
    let message: Vec<_> = subject.split('.').take(2).collect();
    format!("message to {}", message.join("."))
}

fn unsent(error: &PublishError) -> CallError {
    match error.kind() {
        PublishErrorKind::Send => CallError::Disconnected,
        PublishErrorKind::InvalidSubject => {
            CallError::Invalid("the subject is not valid".to_owned())
        }
        PublishErrorKind::MaxPayloadExceeded => CallError::Invalid(
            std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string),
        ),
    }
}
