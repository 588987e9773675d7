//! Publishing, with a confirmation for each message.

mod failure;
mod forms;

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use outbox_core::{
    broker::{FailureKind, PublishFailure, Publisher, Receipt, WireMessage},
    check_subject,
    failpoint::Failpoint,
};
use serde::Deserialize;

use self::{
    failure::{disconnected, failed, refused},
    forms::Forms,
};
use crate::{
    api::{Api, ApiError, Refusal},
    link::{CallError, Link, Reply},
    provision::Provision,
};

/// How long a probe waits for each of its answers.
const PROBE: Duration = Duration::from_secs(2);

/// Publishes over a connection of its own, which closes when the publisher is dropped.
///
/// A message is handed over at the first poll of its future, in the order of those polls. Nothing
/// is kept for later: what had not reached the socket when a connection broke, or when the
/// publisher was dropped, is not sent. What had may still be stored; publishing it again under its
/// id is then recognised by the stream's duplicate window.
pub struct JetStreamPublisher {
    link: Link,
    api: Api,
    provision: Arc<Provision>,
    ack_timeout: Duration,
    names: Arc<Names>,
    forms: Forms,
}

/// The confirmation as the server writes it.
#[derive(Deserialize)]
struct PubAck<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<Refusal>,
}

impl JetStreamPublisher {
    pub(crate) fn new(
        link: Link,
        api: Api,
        provision: Arc<Provision>,
        ack_timeout: Duration,
    ) -> Self {
        Self {
            link,
            api,
            provision,
            ack_timeout,
            names: Arc::default(),
            forms: Forms::default(),
        }
    }
}

impl Publisher for JetStreamPublisher {
    fn publish(
        &self,
        message: WireMessage,
    ) -> impl Future<Output = Result<Receipt, PublishFailure>> + Send + 'static {
        // Weak: neither this future nor its wait keeps the connection open.
        let life = self.link.current().as_ref().map(Arc::downgrade);
        let names = self.names.clone();
        let provision = Arc::downgrade(&self.provision);
        let timeout = self.ack_timeout;
        let prepared = prepare(message, &self.forms);
        async move {
            let Prepared {
                subject,
                headers,
                payload,
            } = prepared?;
            let Some(life) = life.and_then(|life| life.upgrade()) else {
                return Err(disconnected(&subject));
            };
            let point = Failpoint::after(|| format!("message to {subject}: answered"));
            let sent = match life.send(subject.clone(), Some(headers), payload, timeout) {
                Ok(sending) => sending.await,
                Err(error) => Err(error),
            };
            drop(life);
            let reply = match sent {
                Ok(mut ticket) => ticket.reply().await,
                Err(error) => Err(error),
            };
            match reply {
                Ok(reply) => {
                    point.passed();
                    confirmed(&subject, &reply, &names)
                }
                Err(error) => {
                    if matches!(error, CallError::NoResponders)
                        && let Some(provision) = provision.upgrade()
                    {
                        provision.stream_is_missing(&subject);
                    }
                    Err(failed(&subject, &error))
                }
            }
        }
    }

    async fn probe(&self, subject: &str) -> Result<(), PublishFailure> {
        let failure = |kind, why: String| {
            Err(PublishFailure::new(
                kind,
                format!("subject `{subject}`: {why}"),
            ))
        };
        if self.link.current().is_none() {
            return Err(disconnected(subject));
        }
        match self.api.probe(subject, PROBE).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.provision.stream_is_missing(subject);
                failure(FailureKind::NoStream, "no stream carries it".to_owned())
            }
            // Without the right to ask there is no telling; the messages themselves will show.
            Err(error) if error.is_denied() => Ok(()),
            Err(ApiError::Call {
                error: CallError::TimedOut,
                ..
            }) => failure(
                FailureKind::TimedOut,
                "its stream does not answer".to_owned(),
            ),
            Err(ApiError::Call {
                error: CallError::Disconnected,
                ..
            }) => Err(disconnected(subject)),
            Err(error) => failure(FailureKind::Unavailable, error.to_string()),
        }
    }

    fn connected(&self) -> bool {
        self.link.current().is_some()
    }
}

/// A message as async-nats takes it.
struct Prepared {
    subject: Subject,
    headers: HeaderMap,
    payload: Bytes,
}

/// Checks what the server or the client would stumble over, and makes the headers.
fn prepare(message: WireMessage, forms: &Forms) -> Result<Prepared, PublishFailure> {
    let reject = |why: String| PublishFailure::new(FailureKind::Rejected, why);
    check_subject(&message.subject).map_err(|error| reject(error.to_string()))?;
    let headers = forms
        .fill(message.headers, message.id)
        .map_err(|why| reject(format!("subject `{}`: {why}", message.subject)))?;
    Ok(Prepared {
        subject: message.subject.into(),
        headers,
        payload: message.payload,
    })
}

fn confirmed(subject: &str, reply: &Reply, names: &Names) -> Result<Receipt, PublishFailure> {
    match serde_json::from_slice::<PubAck<'_>>(&reply.payload) {
        Ok(PubAck {
            error: Some(refusal),
            ..
        }) => Err(refused(subject, &refusal)),
        Ok(ack) if ack.seq > 0 && !ack.stream.is_empty() => Ok(Receipt {
            stream: names.intern(&ack.stream),
            sequence: ack.seq,
            duplicate: ack.duplicate,
        }),
        _ => Err(PublishFailure::new(
            FailureKind::TimedOut,
            format!(
                "subject `{subject}`: something other than a stream answered; is there a responder on it?"
            ),
        )),
    }
}

/// The names of streams, each kept once.
#[derive(Debug, Default)]
struct Names(Mutex<Vec<Arc<str>>>);

impl Names {
    fn intern(&self, name: &str) -> Arc<str> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.iter().find(|known| ***known == *name) {
            return known.clone();
        }
        let new: Arc<str> = Arc::from(name);
        // There are few streams; whoever answers with ever new names shall not fill the memory.
        if names.len() >= 64 {
            names.clear();
        }
        names.push(new.clone());
        new
    }
}

impl fmt::Debug for JetStreamPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamPublisher")
            .field("connected", &self.connected())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &'static str) -> Result<Receipt, PublishFailure> {
        confirmed(
            "a.b",
            &Reply {
                payload: Bytes::from_static(text.as_bytes()),
            },
            &Names::default(),
        )
    }

    #[test]
    fn only_a_stream_confirms() {
        let receipt = answer(r#"{"stream":"S","domain":"d","seq":7,"duplicate":true}"#).unwrap();
        assert_eq!(
            (&*receipt.stream, receipt.sequence, receipt.duplicate),
            ("S", 7, true)
        );
        for foreign in ["", "ok", "{}", "[]", r#"{"stream":"S"}"#, r#"{"seq":"7"}"#] {
            assert_eq!(
                answer(foreign).unwrap_err().kind(),
                FailureKind::TimedOut,
                "{foreign}"
            );
        }
        let refusal = r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        assert_eq!(
            answer(refusal).unwrap_err().kind(),
            FailureKind::Unavailable
        );
    }

    #[test]
    fn what_would_break_the_connection_is_rejected_first() {
        let message = |subject: &str, name: &'static str, value: &'static str| {
            let mut message = WireMessage {
                subject: subject.to_owned(),
                ..WireMessage::default()
            };
            message.headers.append(name, value);
            prepare(message, &Forms::default()).map(drop)
        };
        assert!(message("a.b", "x", "y").is_ok());
        for (subject, name, value) in [
            ("a.b", "x", "y\nz"),
            ("a.b", "x", "y\rz"),
            ("a.b", "x y", "z"),
            ("a.b", "", "z"),
            ("a b", "x", "y"),
            ("", "x", "y"),
            ("a..b", "x", "y"),
        ] {
            assert_eq!(
                message(subject, name, value).unwrap_err().kind(),
                FailureKind::Rejected
            );
        }
    }
}
