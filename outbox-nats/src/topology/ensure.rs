//! Streams that are created, compared and changed.

use outbox_core::broker::{BrokerError, BrokerErrorKind};
use serde_json::{Value, json};

use super::{
    Topology,
    diff::{self, Difference, differences},
    filter::{covers, union},
    stream::StreamSpec,
};
use crate::api::{Api, ApiError, Settings, code};

impl StreamSpec {
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

    /// Creates the stream if it does not exist, and leaves it alone if it does.
    pub(crate) async fn create_if_missing(&self, api: &Api) -> Result<(), BrokerError> {
        match api.stream(&self.name).await {
            Err(error) if error.is(code::STREAM_NOT_FOUND) => self.create(api).await,
            _ => Ok(()),
        }
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

fn configuration(message: String) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Configuration, message)
}
