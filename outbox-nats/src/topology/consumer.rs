//! Durables: what they are to be, and whether they are.

use std::time::Duration;

use outbox_core::broker::{BrokerError, BrokerErrorKind, StartAt};
use serde_json::{Value, json};

use super::{
    Topology,
    diff::{self, Difference, differences},
    filter::{covers, union},
    stream::nanos,
};
use crate::api::{Api, ApiError, ConsumerInfo, Settings, code};

/// The durable that a subscription reads.
#[derive(Debug, Clone)]
pub(crate) struct Durable {
    pub(crate) stream: String,
    pub(crate) name: String,
    pub(crate) filters: Vec<String>,
    pub(crate) ack_wait: Duration,
    pub(crate) start: StartAt,
}

impl Durable {
    /// Without these a durable loses or strands messages, or does not work at all.
    fn vital() -> Settings {
        let mut settings = Settings::new();
        settings.insert("ack_policy".to_owned(), json!("explicit"));
        settings.insert("max_deliver".to_owned(), json!(-1));
        settings.insert("backoff".to_owned(), json!([]));
        settings.insert("inactive_threshold".to_owned(), json!(0));
        settings.insert("headers_only".to_owned(), json!(false));
        settings.insert("priority_policy".to_owned(), Value::Null);
        settings
    }

    fn for_creation(&self) -> Settings {
        let mut settings = Settings::new();
        let start = if self.start == StartAt::Now {
            "new"
        } else {
            "all"
        };
        settings.insert("name".to_owned(), json!(self.name));
        settings.insert("durable_name".to_owned(), json!(self.name));
        settings.insert("deliver_policy".to_owned(), json!(start));
        settings.insert("ack_policy".to_owned(), json!("explicit"));
        settings.insert("ack_wait".to_owned(), nanos(self.ack_wait));
        settings.insert("max_deliver".to_owned(), json!(-1));
        // Delayed retries count as pending: a limit would let them stop everybody else.
        settings.insert("max_ack_pending".to_owned(), json!(-1));
        settings.insert("replay_policy".to_owned(), json!("instant"));
        settings.insert(
            "filter_subjects".to_owned(),
            json!(union(self.filters.iter().map(String::as_str))),
        );
        settings.insert("metadata".to_owned(), json!({ "outbox": "1" }));
        settings
    }

    /// Creates, compares or changes the durable.
    pub(crate) async fn ensure(
        &self,
        api: &Api,
        topology: Topology,
    ) -> Result<ConsumerInfo, BrokerError> {
        let Self { stream, name, .. } = self;
        // A second round if another process creates it in between.
        for _ in 0..2 {
            match api.consumer(stream, name).await {
                Ok(info) => return self.compare(api, topology, info).await,
                Err(error) if error.is(code::CONSUMER_NOT_FOUND) => {}
                Err(error) => {
                    return Err(error.while_doing(format_args!(
                        "read the settings of consumer `{name}` of stream `{stream}`"
                    )));
                }
            }
            if topology == Topology::Verify {
                return Err(configuration(format!(
                    "consumer `{name}` of stream `{stream}` does not exist; create it, or let the application do so \
                     with `Topology::Ensure`"
                )));
            }
            match api
                .put_consumer(stream, name, &self.for_creation(), "create")
                .await
            {
                Ok(info) => {
                    tracing::info!(
                        "created consumer `{name}` of stream `{stream}` for {}",
                        self.filters.join(", ")
                    );
                    return Ok(info);
                }
                Err(error)
                    if error.is(code::CONSUMER_EXISTS) || error.is(code::CONSUMER_NAME_EXISTS) => {}
                Err(error) => return Err(self.refused(&error, "create")),
            }
        }
        Err(BrokerError::new(
            BrokerErrorKind::Unavailable,
            format!(
                "consumer `{name}` of stream `{stream}` is created and deleted by others at the same time"
            ),
        ))
    }

    async fn compare(
        &self,
        api: &Api,
        topology: Topology,
        info: ConsumerInfo,
    ) -> Result<ConsumerInfo, BrokerError> {
        let Self { stream, name, .. } = self;
        let mut theirs = info.config.clone();
        self.check_kind(&theirs)?;
        // One filter and several are different fields.
        let filters = filters(&theirs);
        theirs.insert("filter_subjects".to_owned(), json!(filters));
        let mut ours = Self::vital();
        ours.insert("ack_wait".to_owned(), nanos(self.ack_wait));
        ours.insert(
            "filter_subjects".to_owned(),
            json!(self.wanted_filters(topology, &filters)),
        );
        let found = differences(&theirs, &ours);
        let limit = theirs
            .get("max_ack_pending")
            .and_then(Value::as_i64)
            .unwrap_or(-1);
        if limit > 0 {
            tracing::warn!(
                "consumer `{name}` of stream `{stream}` has `max_ack_pending` {limit}: messages that wait for a retry \
                 count against it and may stop the others"
            );
        }
        if found.is_empty() {
            return Ok(info);
        }
        if topology == Topology::Verify {
            return Err(configuration(format!(
                "consumer `{name}` of stream `{stream}` differs: {}",
                diff::list(&found)
            )));
        }
        tracing::warn!(
            "consumer `{name}` of stream `{stream}` differs and is changed: {}",
            diff::list(&found)
        );
        let mut settings = theirs;
        settings.remove("filter_subject");
        for Difference { field, ours, .. } in found {
            if field == "priority_policy" {
                settings.remove("priority_groups");
                settings.remove("priority_timeout");
            }
            settings.insert(field, ours);
        }
        api.put_consumer(stream, name, &settings, "update")
            .await
            .map_err(|error| self.refused(&error, "change"))
    }

    /// The filters that it is to have: existing ones are only removed when that is asked for, since
    /// messages that no filter matches are skipped for good.
    fn wanted_filters(&self, topology: Topology, theirs: &[String]) -> Vec<String> {
        let ours = union(self.filters.iter().map(String::as_str));
        if topology != Topology::Ensure {
            return ours;
        }
        let extra: Vec<&String> = theirs
            .iter()
            .filter(|filter| !ours.iter().any(|own| covers(own, filter)))
            .collect();
        if !extra.is_empty() {
            tracing::warn!(
                "consumer `{}` of stream `{}` also receives {}, for which this build has no handler; \
                 `Topology::Apply` would stop that",
                self.name,
                self.stream,
                extra
                    .iter()
                    .map(|filter| format!("`{filter}`"))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
        }
        union(ours.iter().chain(theirs).map(String::as_str))
    }

    /// What cannot be changed.
    fn check_kind(&self, theirs: &Settings) -> Result<(), BrokerError> {
        let Self { stream, name, .. } = self;
        let text = |field| {
            theirs
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let refuse = |why: String| {
            Err(configuration(format!(
                "consumer `{name}` of stream `{stream}` {why}; that cannot be changed: delete it (its position is lost) or \
                 choose another consumer name"
            )))
        };
        if !text("deliver_subject").is_empty() {
            return refuse("is a push consumer, but a pull consumer is needed".to_owned());
        }
        if text("ack_policy") != "explicit" {
            return refuse(format!(
                "has `ack_policy` {}, but explicit is needed",
                text("ack_policy")
            ));
        }
        match (text("deliver_policy"), self.start) {
            ("all", StartAt::Now) => refuse(
                "was created to start at the beginning, but the code says `StartAt::Now`"
                    .to_owned(),
            ),
            ("new", StartAt::Beginning) => refuse(
                "was created with `StartAt::Now`, but the code says `StartAt::Beginning`"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    fn refused(&self, error: &ApiError, what: &str) -> BrokerError {
        let Self { stream, name, .. } = self;
        let hint = match error {
            ApiError::Refused(refusal) => match refusal.err_code {
                10_099..=10_101 => {
                    ": it is a work-queue stream, in which each message goes to one consumer only, so two consumers \
                     cannot share a subject and each must start at the beginning; use a stream with limits retention to \
                     let several consumers handle one event"
                }
                _ => "",
            },
            _ => "",
        };
        let error = error.while_doing(format_args!(
            "{what} consumer `{name}` of stream `{stream}`"
        ));
        BrokerError::new(error.kind(), format!("{error}{hint}"))
    }
}

/// The filters in a consumer's settings; none means everything.
fn filters(settings: &Settings) -> Vec<String> {
    let several = settings
        .get("filter_subjects")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let one = settings.get("filter_subject");
    let filters: Vec<String> = several
        .chain(one)
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if filters.is_empty() {
        vec![">".to_owned()]
    } else {
        filters
    }
}

fn configuration(message: String) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Configuration, message)
}
