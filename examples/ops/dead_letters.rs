//! `ops dlq`.

use std::fmt::Write as _;

use outbox_core::{
    DeadLetterDetail, DeadLetterFilter, DeadLetterId, DeadLetterSummary, DeadLetters,
    error::BoxError,
};
use outbox_nats::JetStream;
use outbox_seaorm::SeaOrm;
use serde_json::{Value, json};

use crate::{
    Desk,
    output::{body, line, moment},
};

const PAGE: u32 = 200;

async fn letters(desk: &Desk) -> Result<DeadLetters<SeaOrm, JetStream>, BoxError> {
    Ok(desk.bus.dead_letters(desk.broker().await?))
}

pub(crate) async fn list(desk: &Desk, consumer: Option<String>) -> Result<(), BoxError> {
    let letters = letters(desk).await?;
    let mut filter = DeadLetterFilter {
        consumer,
        limit: PAGE,
        ..Default::default()
    };
    let mut found = false;
    loop {
        let page = letters.list(&filter).await?;
        if page.is_empty() {
            // Not among the output, which has one line for each.
            match filter.consumer {
                _ if found => {}
                None => eprintln!("no dead letters"),
                Some(name) => eprintln!("no dead letters of a consumer {:?}", line(&name)),
            }
            return Ok(());
        }
        found = true;
        for letter in &page {
            match letter.id {
                DeadLetterId::Outbox(id) => filter.after_outbox = id,
                DeadLetterId::Consumer(number) => filter.after_consumer = number,
                _ => {}
            }
            desk.out.write(|| as_json(letter), || as_text(letter))?;
        }
    }
}

pub(crate) async fn show(desk: &Desk, id: DeadLetterId, payload: bool) -> Result<(), BoxError> {
    let letter = letters(desk)
        .await?
        .show(id)
        .await?
        .ok_or_else(|| gone(id))?;
    desk.out.write(
        || detail_as_json(&letter, payload),
        || detail_as_text(&letter, payload),
    )?;
    Ok(())
}

pub(crate) async fn replay(desk: &Desk, ids: &[DeadLetterId]) -> Result<(), BoxError> {
    let letters = letters(desk).await?;
    each(desk, ids, "replayed", async |id| {
        Ok(letters.replay(id).await?)
    })
    .await
}

pub(crate) async fn discard(desk: &Desk, ids: &[DeadLetterId]) -> Result<(), BoxError> {
    let letters = letters(desk).await?;
    each(desk, ids, "discarded", async |id| {
        Ok(letters.discard(id).await?)
    })
    .await
}

/// Does something to each letter; one that is not there does not keep the others from it.
async fn each(
    desk: &Desk,
    ids: &[DeadLetterId],
    done: &str,
    act: impl AsyncFn(DeadLetterId) -> Result<bool, BoxError>,
) -> Result<(), BoxError> {
    let mut missing = Vec::new();
    for id in ids {
        if act(*id).await? {
            desk.out.write(
                || json!({ "id": id.to_string(), "done": done }),
                || format!("{id} {done}"),
            )?;
        } else {
            missing.push(*id);
        }
    }
    match missing[..] {
        [] => Ok(()),
        [id] => Err(gone(id)),
        [..] => {
            let ids: Vec<String> = missing.iter().map(DeadLetterId::to_string).collect();
            Err(format!("there are no dead letters {} (any more)", ids.join(", ")).into())
        }
    }
}

fn gone(id: DeadLetterId) -> BoxError {
    format!("there is no dead letter {id} (any more)").into()
}

fn as_json(letter: &DeadLetterSummary) -> Value {
    json!({
        "id": letter.id.to_string(),
        "consumer": letter.consumer,
        "message_id": letter.message_id,
        "event_type": letter.event_type,
        "subject": letter.subject,
        "key": letter.key,
        "reason": letter.reason,
        "error": letter.error,
        "first_error": letter.first_error,
        "attempts": letter.attempts,
        "deliveries": letter.deliveries,
        "replays": letter.replays,
        "first_failed_at": letter.first_failed_at.map(moment),
        "dead_at": moment(letter.dead_at),
        "stream": letter.origin.as_ref().map(|origin| &origin.stream),
        "sequence": letter.origin.as_ref().map(|origin| origin.sequence),
        "size": letter.size,
    })
}

fn as_text(letter: &DeadLetterSummary) -> String {
    let what = letter.event_type.as_deref().unwrap_or("(unreadable)");
    let whose = line(letter.consumer.as_deref().unwrap_or("relay"));
    let id = letter
        .message_id
        .map_or_else(|| "(unreadable)".to_owned(), |id| id.to_string());
    let key = letter
        .key
        .as_deref()
        .map(|key| format!(", key {key}"))
        .unwrap_or_default();
    format!(
        "{}  {whose}, {}, {}  {what}\n    message {id}{key}\n    {}",
        letter.id,
        letter.reason,
        moment(letter.dead_at),
        letter.error
    )
}

fn detail_as_json(letter: &DeadLetterDetail, payload: bool) -> Value {
    let mut json = as_json(&letter.summary);
    json["headers"] = letter
        .headers
        .iter()
        .map(|(name, value)| json!([name, value]))
        .collect();
    if payload {
        json["payload"] = json!(String::from_utf8_lossy(&letter.payload));
    }
    json
}

fn detail_as_text(letter: &DeadLetterDetail, payload: bool) -> String {
    let DeadLetterDetail {
        summary, headers, ..
    } = letter;
    let mut text = String::new();
    let mut put = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    put("id", &summary.id.to_string());
    put(
        "of",
        &line(summary.consumer.as_deref().unwrap_or("the relay")),
    );
    put("reason", &summary.reason);
    put("error", &summary.error);
    if let Some(first) = summary
        .first_error
        .as_ref()
        .filter(|first| **first != summary.error)
    {
        put("first error", first);
    }
    put("attempts", &summary.attempts.to_string());
    if let Some(deliveries) = summary.deliveries {
        put("deliveries", &deliveries.to_string());
    }
    put("replays", &summary.replays.to_string());
    if let Some(first) = summary.first_failed_at {
        put("failed first", &moment(first));
    }
    put("dead since", &moment(summary.dead_at));
    if let Some(origin) = &summary.origin {
        let place = format!("{} {}", line(&origin.stream), origin.sequence);
        put("stored as", &place);
    }
    put("subject", &summary.subject);
    put("size", &format!("{} bytes", summary.size));
    for (name, value) in headers.iter() {
        put("header", &format!("{}: {}", line(name), line(value)));
    }
    if payload {
        let _ = write!(text, "\n{}", body(&letter.payload));
    } else {
        text.push_str("(--payload shows the body, which may hold personal data)");
    }
    text
}
