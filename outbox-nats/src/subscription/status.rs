//! What the server says about a pull request besides answering it.

use async_nats::{HeaderMap, Message};

use crate::text::one_line;

/// A status message, reduced to what follows from it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The request is alive.
    Heartbeat,
    /// The request is over; `left` of its messages were still to come.
    Ended { left: Option<usize> },
    /// The request is over, and the next one should wait a moment.
    Paused { left: Option<usize>, why: String },
    /// Nobody answers: no leader, or no consumer.
    NoResponders,
    /// The consumer is gone.
    Deleted,
    /// The consumer cannot be pulled from.
    Unusable { why: String },
}

impl Status {
    pub(super) fn of(message: &Message) -> Option<Self> {
        let code = message.status?.as_u16();
        // Whoever knows the inbox may write it.
        let why = one_line(message.description.as_deref().unwrap_or_default(), 200);
        let left = message.headers.as_ref().and_then(pending);
        let lower = why.to_ascii_lowercase();
        Some(match code {
            100 => Self::Heartbeat,
            // No messages, expired, batch completed, message larger than asked for.
            404 | 408 => Self::Ended { left },
            409 if lower.contains("consumer deleted") => Self::Deleted,
            409 if lower.contains("push based") => Self::Unusable { why },
            409 if lower.contains("batch completed") => Self::Ended { left },
            // Leadership change, server shutdown, a limit of the consumer, and what is new to us.
            409 | 423 => Self::Paused { left, why },
            503 => Self::NoResponders,
            400 => Self::Unusable { why },
            _ => Self::Paused {
                left,
                why: format!("{code} {why}"),
            },
        })
    }
}

fn pending(headers: &HeaderMap) -> Option<usize> {
    headers.get("Nats-Pending-Messages")?.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use async_nats::StatusCode;
    use bytes::Bytes;

    use super::*;

    fn status(code: u16, description: &str, pending: Option<&str>) -> Option<Status> {
        let mut headers = HeaderMap::new();
        if let Some(pending) = pending {
            headers.insert("Nats-Pending-Messages", pending);
        }
        Status::of(&Message {
            subject: "inbox.1".into(),
            reply: None,
            payload: Bytes::new(),
            headers: Some(headers),
            status: StatusCode::from_u16(code).ok(),
            description: Some(description.to_owned()),
            length: 0,
        })
    }

    #[test]
    fn every_known_status_has_its_meaning() {
        assert_eq!(status(100, "Idle Heartbeat", None), Some(Status::Heartbeat));
        assert_eq!(
            status(408, "Request Timeout", Some("3")),
            Some(Status::Ended { left: Some(3) })
        );
        assert_eq!(
            status(404, "No Messages", None),
            Some(Status::Ended { left: None })
        );
        assert_eq!(status(409, "Consumer Deleted", None), Some(Status::Deleted));
        assert!(matches!(
            status(409, "Consumer is push based", None),
            Some(Status::Unusable { .. })
        ));
        for why in [
            "Leadership Change",
            "Server Shutdown",
            "Exceeded MaxWaiting",
            "Exceeded MaxRequestBatch of 5",
            "what is this",
        ] {
            assert!(
                matches!(
                    status(409, why, Some("1")),
                    Some(Status::Paused { left: Some(1), .. })
                ),
                "{why}"
            );
        }
        assert_eq!(status(503, "", None), Some(Status::NoResponders));
    }
}
