//! What a stream is to be.

use std::time::Duration;

use serde_json::{Value, json};

use super::filter::covers;
use crate::api::Settings;

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
    pub(super) settings: Settings,
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

    /// Its limit of age, if that is set here.
    pub(crate) fn age(&self) -> Option<Duration> {
        let age = self.settings.get("max_age").and_then(Value::as_u64);
        age.filter(|age| *age > 0).map(Duration::from_nanos)
    }

    /// Whether it carries every subject that `filter` matches.
    pub(crate) fn carries(&self, filter: &str) -> bool {
        self.subjects.iter().any(|subject| covers(subject, filter))
    }

    pub(super) fn for_creation(&self) -> Settings {
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
}

pub(crate) fn nanos(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_nanos()).unwrap_or(i64::MAX as u64))
}
