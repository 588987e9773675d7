//! The dead-letter queue: a stream of its own.
//!
//! | subject | holds |
//! |---|---|
//! | `<prefix>.letter.<consumer>.<stream>.<sequence>.<stored at>` | a dead letter: the original's headers and body, and `outbox-` headers that say what happened |
//! | the same with `.body` after it | headers and body of a letter that is too large for one message |
//! | `<prefix>.replay.<consumer>.<stream>.<sequence>.<stored at>.<number>` | the copy of letter `<number>` that goes to its consumer again |
//!
//! The stream keeps one message a subject and refuses a second, so whatever is repeated after a
//! crash or a lost answer is recognised.

mod letter;
mod place;
mod read;
mod replay;
mod resolve;
mod store;

use outbox_core::broker::{BrokerError, StartAt};
use serde_json::json;

use self::place::Subjects;
pub(crate) use self::replay::ReplayCopy;
use crate::{
    api::{Api, ApiError},
    topology::{Topology, consumer::Durable, stream::StreamSpec},
};

/// The dead-letter queue.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    api: Api,
    pub(crate) stream: String,
    subjects: Subjects,
    spec: StreamSpec,
    topology: Topology,
}

impl DeadLetters {
    pub(crate) fn new(
        api: Api,
        stream: &str,
        prefix: &str,
        replicas: Option<u8>,
        topology: Topology,
    ) -> Self {
        let subjects = Subjects(prefix.to_owned());
        let mut spec = StreamSpec::new(stream, [subjects.all()])
            .setting("max_msgs_per_subject", json!(1))
            .setting("discard", json!("new"))
            .setting("discard_new_per_subject", json!(true));
        if let Some(replicas) = replicas {
            spec = spec.replicas(replicas);
        }
        Self {
            api,
            stream: stream.to_owned(),
            subjects,
            spec,
            topology,
        }
    }

    pub(crate) async fn ensure(&self) -> Result<(), BrokerError> {
        self.spec.ensure(&self.api, self.topology).await
    }

    /// The durable that reads a consumer's replays.
    pub(crate) fn replays(&self, consumer: &str, ack_wait: std::time::Duration) -> Durable {
        Durable {
            stream: self.stream.clone(),
            name: format!("{consumer}-replay"),
            filters: vec![self.subjects.replays(consumer)],
            ack_wait,
            start: StartAt::Beginning,
        }
    }

    fn failed(&self, what: &str, error: &ApiError) -> BrokerError {
        error.while_doing(format_args!("{what} in stream `{}`", self.stream))
    }
}
