//! Finds the stream that carries a consumer's subjects.

use outbox_core::broker::{BrokerError, BrokerErrorKind};

use super::stream::StreamSpec;
use crate::api::Api;

/// The one stream that carries all of `subjects`.
///
/// The server is asked; where it may not be, the streams that the application configured decide.
pub(crate) async fn stream_of(
    api: &Api,
    specs: &[StreamSpec],
    subjects: &[String],
) -> Result<String, BrokerError> {
    let mut found: Option<(String, &String)> = None;
    for subject in subjects {
        let stream = match api.streams_of(subject).await {
            Ok(streams) => match <[String; 1]>::try_from(streams) {
                Ok([stream]) => stream,
                Err(streams) if streams.is_empty() => return Err(nobody(specs, subject)),
                Err(streams) => {
                    return Err(configuration(format!(
                        "subject `{subject}` is spread over streams {}; a consumer reads one stream",
                        list(&streams)
                    )));
                }
            },
            Err(error) if error.is_denied() => {
                match specs.iter().find(|spec| spec.carries(subject)) {
                    Some(spec) => spec.name.clone(),
                    None => {
                        return Err(configuration(format!(
                            "no configured stream carries subject `{subject}`, and the server may not be asked: {error}"
                        )));
                    }
                }
            }
            Err(error) => {
                return Err(
                    error.while_doing(format_args!("find the stream of subject `{subject}`"))
                );
            }
        };
        match &found {
            Some((other, first)) if *other != stream => {
                return Err(configuration(format!(
                    "subject `{first}` is carried by stream `{other}` and subject `{subject}` by stream `{stream}`; a \
                     consumer reads one stream, so give the handlers of the two different consumer names"
                )));
            }
            Some(_) => {}
            None => found = Some((stream, subject)),
        }
    }
    found
        .map(|(stream, _)| stream)
        .ok_or_else(|| configuration("the consumer has no subjects".to_owned()))
}

fn nobody(specs: &[StreamSpec], subject: &str) -> BrokerError {
    let known: Vec<String> = specs
        .iter()
        .map(|spec| format!("`{}` ({})", spec.name, spec.subjects.join(", ")))
        .collect();
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    configuration(format!(
        "no stream carries subject `{subject}`; create one, or add it with `JetStream::builder().stream(..)` \
         (configured streams: {known})"
    ))
}

fn list(streams: &[String]) -> String {
    streams
        .iter()
        .map(|stream| format!("`{stream}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn configuration(message: String) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Configuration, message)
}
