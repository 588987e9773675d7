//! Streams: what they are to be, and whether they are.

use std::time::Duration;

use outbox_core::broker::{BrokerError, BrokerErrorKind};
use serde_json::{Value, json};

use super::{
    Topology,
    diff::{self, Difference, differences},
    filter::{covers, union},
};
use crate::api::{Api, ApiError, Settings, code};

/// A stream that the application needs.
///
/// What is not set here is not compared, and has these values when the stream is created: file
/// storage, one replica, no limits on age, size or count (so that nothing is dropped unread),
/// `discard: new` (so that a limit that is added later refuses publishes, which wait in the
/// outbox, instead of dropping events that nobody has seen), and the server's duplicate window of
/// two minutes.
///
/// ```
/// use std::time::Duration;
/// use outbox_nats::StreamSpec;
///
/// let stream = StreamSpec::new("SHOP", ["shop.>"]).replicas(3).max_age(Duration::from_secs(30 * 86_400));
/// # let _ = stream;
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct StreamSpec {
    pub(crate) name: String,
    pub(crate) subjects: Vec<String>,
    settings: Settings,
}

impl StreamSpec {
    /// A stream that carries `subjects`, which may have wildcards.
    pub fn new<S: Into<String>>(
        name: impl Into<String>,
        subjects: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            name: name.into(),
            subjects: subjects.into_iter().map(Into::into).collect(),
            settings: Settings::new(),
        }
    }

    /// How many servers store it. Use 3 for anything that must survive a server.
    pub fn replicas(self, replicas: u8) -> Self {
        self.set("num_replicas", json!(replicas))
    }

    /// Messages older than this are dropped, handled or not.
    pub fn max_age(self, age: Duration) -> Self {
        self.set("max_age", nanos(age))
    }

    /// The most bytes that it holds; further publishes wait in the outbox.
    pub fn max_bytes(self, bytes: u64) -> Self {
        self.set("max_bytes", json!(i64::try_from(bytes).unwrap_or(i64::MAX)))
    }

    /// The most messages that it holds; further publishes wait in the outbox.
    pub fn max_messages(self, messages: u64) -> Self {
        self.set(
            "max_msgs",
            json!(i64::try_from(messages).unwrap_or(i64::MAX)),
        )
    }

    /// How long the server recognises a message that is published again by its id. Costs about
    /// 230 bytes of its memory per message.
    pub fn duplicate_window(self, window: Duration) -> Self {
        self.set("duplicate_window", nanos(window))
    }

    /// Compresses the stream's files.
    pub fn compressed(self) -> Self {
        self.set("compression", json!("s2"))
    }

    /// Sets any other field of the server's stream configuration by its JSON name.
    pub fn setting(self, name: &str, value: Value) -> Self {
        self.set(name, value)
    }

    fn set(mut self, name: &str, value: Value) -> Self {
        self.settings.insert(name.to_owned(), value);
        self
    }

    /// Whether it carries every subject that `filter` matches.
    pub(crate) fn carries(&self, filter: &str) -> bool {
        self.subjects.iter().any(|subject| covers(subject, filter))
    }

    fn for_creation(&self) -> Settings {
        let mut settings = Settings::new();
        settings.insert("name".to_owned(), json!(self.name));
        settings.insert("subjects".to_owned(), json!(self.subjects));
        settings.insert("storage".to_owned(), json!("file"));
        settings.insert("retention".to_owned(), json!("limits"));
        settings.insert("discard".to_owned(), json!("new"));
        settings.insert("num_replicas".to_owned(), json!(1));
        for limit in [
            "max_consumers",
            "max_msgs",
            "max_bytes",
            "max_msgs_per_subject",
            "max_msg_size",
        ] {
            settings.insert(limit.to_owned(), json!(-1));
        }
        settings.extend(self.settings.clone());
        settings
    }

    /// Creates, compares or changes the stream.
    pub(crate) async fn ensure(&self, api: &Api, topology: Topology) -> Result<(), BrokerError> {
        let name = &self.name;
        let theirs = match api.stream(name).await {
            Ok(info) => info.config,
            Err(error) if error.is(code::STREAM_NOT_FOUND) => {
                return match topology {
                    Topology::Verify => Err(configuration(format!(
                        "stream `{name}` does not exist; create it, or let the application do so with `Topology::Ensure`"
                    ))),
                    Topology::Ensure | Topology::Apply => self.create(api).await,
                };
            }
            Err(error) if error.is_denied() => {
                tracing::debug!("stream `{name}` is taken as it is: {error}");
                return Ok(());
            }
            Err(error) => {
                return Err(error.while_doing(format_args!("read the settings of stream `{name}`")));
            }
        };
        self.compare(api, topology, theirs).await
    }

    async fn create(&self, api: &Api) -> Result<(), BrokerError> {
        match api.create_stream(&self.name, self.for_creation()).await {
            Ok(()) => {
                tracing::info!(
                    "created stream `{}` for {}",
                    self.name,
                    self.subjects.join(", ")
                );
                Ok(())
            }
            // Another process was faster; its settings are compared at the next start.
            Err(error) if error.is(code::STREAM_NAME_IN_USE) => Ok(()),
            Err(error) if error.is(code::STREAM_OVERLAP) => Err(self.overlap(api, &error).await),
            Err(error) => Err(error.while_doing(format_args!("create stream `{}`", self.name))),
        }
    }

    async fn overlap(&self, api: &Api, error: &ApiError) -> BrokerError {
        let mut others = Vec::new();
        for subject in &self.subjects {
            for stream in api.streams_of(subject).await.unwrap_or_default() {
                let carried = api
                    .stream(&stream)
                    .await
                    .map(|info| subjects(&info.config))
                    .unwrap_or_default();
                let text = format!("stream `{stream}` already carries {}", carried.join(", "));
                if stream != self.name && !others.contains(&text) {
                    others.push(text);
                }
            }
        }
        configuration(format!(
            "could not create stream `{}` for {}: {}; use that stream, or choose subjects that do not overlap ({error})",
            self.name,
            self.subjects.join(", "),
            if others.is_empty() {
                "another stream carries some of its subjects".to_owned()
            } else {
                others.join("; ")
            },
        ))
    }

    async fn compare(
        &self,
        api: &Api,
        topology: Topology,
        theirs: Settings,
    ) -> Result<(), BrokerError> {
        let name = &self.name;
        let mut ours = self.settings.clone();
        let carried = subjects(&theirs);
        let missing = self
            .subjects
            .iter()
            .any(|subject| !carried.iter().any(|other| covers(other, subject)));
        let wanted = match topology {
            Topology::Ensure => union(carried.iter().chain(&self.subjects).map(String::as_str)),
            Topology::Apply | Topology::Verify => self.subjects.clone(),
        };
        ours.insert(
            "subjects".to_owned(),
            json!(if missing || topology == Topology::Apply {
                wanted
            } else {
                carried
            }),
        );
        let found = differences(&theirs, &ours);
        if found.is_empty() {
            return Ok(());
        }
        let (apply, leave): (Vec<Difference>, Vec<Difference>) = match topology {
            Topology::Apply => (found, Vec::new()),
            Topology::Ensure => found
                .into_iter()
                .partition(|difference| difference.field == "subjects"),
            Topology::Verify => {
                return Err(configuration(format!(
                    "stream `{name}` differs: {}",
                    diff::list(&found)
                )));
            }
        };
        if !leave.is_empty() {
            tracing::warn!(
                "stream `{name}` differs and is left as it is: {} (`Topology::Apply` would change it)",
                diff::list(&leave)
            );
        }
        if apply.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            "stream `{name}` differs and is changed: {}",
            diff::list(&apply)
        );
        let mut settings = theirs;
        settings.extend(
            apply
                .into_iter()
                .map(|difference| (difference.field, difference.ours)),
        );
        api.update_stream(name, settings)
            .await
            .map_err(|error| error.while_doing(format_args!("change stream `{name}`")))
    }
}

/// The subjects in a stream's settings.
pub(crate) fn subjects(settings: &Settings) -> Vec<String> {
    let listed = settings.get("subjects").and_then(Value::as_array);
    listed
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Warns of settings by which a stream can lose events that nobody has handled.
pub(crate) fn warn_of_losses(name: &str, settings: &Settings) -> Result<(), BrokerError> {
    let text = |field: &str| {
        settings
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let number = |field: &str| {
        settings
            .get(field)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    if settings.get("no_ack").and_then(Value::as_bool) == Some(true) {
        return Err(configuration(format!(
            "stream `{name}` has `no_ack` set, so it never confirms what is published to it; switch that off"
        )));
    }
    let limited = ["max_msgs", "max_bytes", "max_msgs_per_subject"]
        .into_iter()
        .find(|field| number(field) > 0);
    if let (Some(limit), "old") = (limited, text("discard")) {
        tracing::warn!(
            "stream `{name}` drops its oldest messages, handled or not, when `{limit}` is reached; with `discard: new` \
             further events would wait in the outbox instead"
        );
    }
    if text("storage") == "memory" {
        tracing::warn!(
            "stream `{name}` is kept in memory: a restart of the server loses what was confirmed"
        );
    }
    if text("retention") == "interest" {
        tracing::warn!(
            "stream `{name}` keeps a message only for consumers that exist when it is published"
        );
    }
    Ok(())
}

pub(crate) fn nanos(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_nanos()).unwrap_or(i64::MAX as u64))
}

fn configuration(message: String) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Configuration, message)
}
