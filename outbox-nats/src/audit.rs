//! Looks whether streams still hold what they confirmed.
//!
//! Messages are asked for with `STREAM.MSG.GET`, which the stream's leader answers: a replica that lags
//! behind would seem to have lost what it has not got yet.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use outbox_core::broker::{BrokerError, Confirmed, Holding};
use serde_json::Value;
use uuid::Uuid;

use crate::api::{Api, ApiError, Settings, StreamState, code, readable};

/// Questions on their way at a time.
const IN_FLIGHT: usize = 32;

/// What is at a message's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Itself,
    /// Another message, which got the number after the stream had lost it.
    Other,
    Nothing,
    NoStream,
}

pub(crate) async fn look_up(
    api: &Api,
    confirmed: &[Confirmed],
) -> Result<Vec<Holding>, BrokerError> {
    let questions: Vec<_> = confirmed.iter().map(|one| place(api, one)).collect();
    let places: Vec<Place> = stream::iter(questions)
        .buffered(IN_FLIGHT)
        .try_collect()
        .await?;
    // Asked afterwards: what a stream ages out meanwhile lies below its first message by then.
    let mut streams: HashMap<&str, Option<Rules>> = HashMap::new();
    let mut answers = Vec::with_capacity(places.len());
    for (message, place) in confirmed.iter().zip(places) {
        let explained = match place {
            Place::Itself => {
                answers.push(Holding::Present);
                continue;
            }
            Place::Other | Place::NoStream => false,
            Place::Nothing => {
                let name = message.stream.as_str();
                let rules = match streams.get(name) {
                    Some(known) => known,
                    None => streams.entry(name).or_insert(rules(api, name).await?),
                };
                rules.is_some_and(|rules| rules.explain(message.sequence, message.age))
            }
        };
        answers.push(if explained {
            Holding::Expired
        } else {
            Holding::Missing
        });
    }
    Ok(answers)
}

async fn place(api: &Api, message: &Confirmed) -> Result<Place, BrokerError> {
    // Sequences begin at 1; the server takes 0 for something else.
    if message.sequence == 0 {
        return Ok(Place::Nothing);
    }
    match api.message_at(&message.stream, message.sequence).await {
        Ok(Some(stored)) if is(&stored.raw_headers, message.id) => Ok(Place::Itself),
        Ok(Some(_)) => Ok(Place::Other),
        Ok(None) => Ok(Place::Nothing),
        Err(error) if error.is(code::STREAM_NOT_FOUND) => Ok(Place::NoStream),
        Err(error) => Err(failed(&message.stream, &error)),
    }
}

/// Whether the message of these headers has the id.
fn is(raw_headers: &[u8], id: Uuid) -> bool {
    let headers = readable(raw_headers).unwrap_or_default();
    ["Nats-Msg-Id", "ce-id"]
        .iter()
        .any(|name| headers.get(name).is_some_and(|text| text.parse() == Ok(id)))
}

fn failed(stream: &str, error: &ApiError) -> BrokerError {
    error.while_doing(format_args!(
        "look whether stream `{stream}` holds a message"
    ))
}

/// The rules of a stream; `None` if it does not exist (any more).
async fn rules(api: &Api, stream: &str) -> Result<Option<Rules>, BrokerError> {
    match api.stream(stream).await {
        Ok(info) => Ok(Some(Rules::new(&info.config, info.state))),
        Err(error) if error.is(code::STREAM_NOT_FOUND) => Ok(None),
        Err(error) => Err(failed(stream, &error)),
    }
}

/// How a stream comes to drop messages by itself.
#[derive(Debug, Clone, Copy)]
struct Rules {
    state: StreamState,
    max_age: Option<Duration>,
    /// It drops its oldest messages when it is full.
    drops_oldest: bool,
    /// It drops messages anywhere: consumed, replaced, or with an age limit of their own.
    drops_any: bool,
}

impl Rules {
    fn new(config: &Settings, state: StreamState) -> Self {
        let text = |name| config.get(name).and_then(Value::as_str);
        let limited = |name| {
            config
                .get(name)
                .and_then(Value::as_i64)
                .is_some_and(|limit| limit > 0)
        };
        let set = |name| config.get(name).and_then(Value::as_bool) == Some(true);
        let refuses = text("discard") == Some("new");
        let max_age = config.get("max_age").and_then(Value::as_u64);
        Self {
            state,
            max_age: max_age.filter(|age| *age > 0).map(Duration::from_nanos),
            drops_oldest: !refuses && (limited("max_msgs") || limited("max_bytes")),
            drops_any: text("retention").is_some_and(|retention| retention != "limits")
                || (limited("max_msgs_per_subject")
                    && !(refuses && set("discard_new_per_subject")))
                || set("allow_msg_ttl"),
        }
    }

    /// Whether they explain that a message of this age is not there. An age close to the limit is taken
    /// for reached: it is measured from a moment after the message was stored.
    fn explain(self, sequence: u64, age: Duration) -> bool {
        // A stream never forgets what it has numbered, unless it has lost it.
        if sequence == 0 || sequence > self.state.last_seq {
            return false;
        }
        self.drops_any
            || (sequence < self.state.first_seq
                && (self.drops_oldest
                    || self
                        .max_age
                        .is_some_and(|max| age >= max.saturating_sub(max / 10))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn rules(config: Value) -> Rules {
        let Value::Object(config) = config else {
            panic!("an object");
        };
        let state = StreamState {
            first_seq: 10,
            last_seq: 20,
        };
        Rules::new(&config, state)
    }

    #[test]
    fn only_a_rule_explains_that_a_message_is_gone() {
        let none =
            rules(json!({ "retention": "limits", "max_age": 0, "max_msgs": -1, "discard": "old" }));
        let age = rules(
            json!({ "retention": "limits", "max_age": HOUR.as_nanos() as u64, "discard": "new" }),
        );
        let full = rules(json!({ "retention": "limits", "max_bytes": 1000, "discard": "old" }));
        let refusing = rules(json!({ "retention": "limits", "max_bytes": 1000, "discard": "new" }));
        for sequence in [0, 5, 9, 10, 15, 20, 21] {
            assert!(!none.explain(sequence, 100 * HOUR), "{sequence}");
            assert!(!refusing.explain(sequence, 100 * HOUR), "{sequence}");
            let below = (1..10).contains(&sequence);
            assert_eq!(full.explain(sequence, Duration::ZERO), below, "{sequence}");
            assert_eq!(age.explain(sequence, HOUR), below, "{sequence}");
            assert!(!age.explain(sequence, HOUR / 2), "{sequence}");
        }
        for config in [
            json!({ "retention": "workqueue" }),
            json!({ "retention": "interest" }),
            json!({ "max_msgs_per_subject": 1, "discard": "old" }),
            json!({ "max_msgs_per_subject": 1, "discard": "new" }),
            json!({ "allow_msg_ttl": true }),
        ] {
            let any = rules(config);
            assert!(any.explain(5, Duration::ZERO) && any.explain(15, Duration::ZERO));
            assert!(!any.explain(21, 100 * HOUR), "the stream never had it");
        }
        let all_refused =
            json!({ "max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": true });
        assert!(!rules(all_refused).explain(5, 100 * HOUR));
    }

    #[test]
    fn a_message_is_known_by_its_id() {
        let id = Uuid::from_u128(7);
        let block = |name: &str, id: &str| format!("NATS/1.0\r\n{name}: {id}\r\n\r\n").into_bytes();
        assert!(is(&block("Nats-Msg-Id", &id.to_string()), id));
        assert!(is(&block("ce-id", &id.to_string()), id));
        assert!(!is(&block("ce-id", &Uuid::from_u128(8).to_string()), id));
        assert!(!is(&block("ce-id", "7"), id));
        assert!(!is(b"", id) && !is(b"NATS/1.0\r\nbroken\r\n\r\n", id));
    }
}
