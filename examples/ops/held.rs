//! `ops held`.

use outbox_core::{
    error::BoxError,
    store::{HeldReason, HeldRow},
};
use serde_json::{Value, json};

use crate::{
    Desk,
    output::{line, moment, rough},
};

const PAGE: u32 = 200;

pub(crate) async fn list(desk: &Desk, reason: Option<HeldReason>) -> Result<(), BoxError> {
    let mut after = 0;
    loop {
        let rows = desk.bus.held(reason.as_slice(), after, PAGE).await?;
        let Some(last) = rows.last() else {
            if after == 0 {
                eprintln!("no held events");
            }
            return Ok(());
        };
        after = last.id;
        for row in &rows {
            desk.out.write(|| as_json(row), || as_text(row))?;
        }
    }
}

fn as_json(held: &HeldRow) -> Value {
    json!({
        "id": held.id,
        "reason": held.reason.as_str(),
        "message_id": held.row.id,
        "event_type": held.row.event_type,
        "subject": held.row.subject,
        "key": held.row.key,
        "attempts": held.attempts,
        "due_in_seconds": held.due_in.as_secs_f64(),
        "first_error": held.first_error,
        "last_error": held.last_error,
        "held_at": moment(held.held_at),
        "size": held.row.payload.len(),
    })
}

fn as_text(held: &HeldRow) -> String {
    let what = line(&held.row.event_type);
    let key = held
        .row
        .key
        .as_deref()
        .map(|key| format!(", key {}", line(key)))
        .unwrap_or_default();
    let when = match held.reason {
        HeldReason::Failing | HeldReason::Scheduled => format!("due in {}", rough(held.due_in)),
        _ => format!("since {}", moment(held.held_at)),
    };
    let mut text = format!("outbox:{}  {}, {when}  {what}{key}", held.id, held.reason);
    if let Some(error) = &held.last_error {
        let times = match held.attempts {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        };
        text.push_str(&format!("\n    failed {times}: {}", line(error)));
    }
    text
}
