//! `ops status`.

use std::fmt::Write as _;

use outbox_core::{
    broker::Broker,
    error::BoxError,
    store::{Backlog, HeldReason},
};
use serde_json::{Map, Value, json};

use crate::{
    Desk,
    consumers::{self, Standing},
    lease::{self, Lease},
    output::{line, rough},
};

pub(crate) async fn show(desk: &Desk) -> Result<(), BoxError> {
    let backlog = desk.bus.backlog().await?;
    let lease = lease::read(&desk.db, desk.bus.target_name()).await?;
    // What the database told is worth showing even if the broker is away.
    let broker = ask_broker(desk).await;
    let (standings, letters) = match &broker {
        Ok((standings, letters)) => (Some(standings.as_slice()), Some(*letters)),
        Err(_) => (None, None),
    };
    desk.out.write(
        || as_json(&backlog, lease.as_ref(), standings, letters),
        || as_text(&backlog, lease.as_ref(), standings, letters),
    )?;
    broker.map(drop)
}

async fn ask_broker(desk: &Desk) -> Result<(Vec<Standing>, u64), BoxError> {
    let letters = desk.broker().await?.dead_letter_count().await?;
    Ok((consumers::all(&desk.nats_url).await?, letters))
}

fn as_json(
    backlog: &Backlog,
    lease: Option<&Lease>,
    standings: Option<&[Standing]>,
    letters: Option<u64>,
) -> Value {
    let held: Map<String, Value> = backlog
        .held
        .iter()
        .map(|(reason, count)| (reason.to_string(), json!(count)))
        .collect();
    let consumers = standings.map(|standings| {
        let each = standings.iter().map(|standing| {
            json!({
                "stream": standing.stream,
                "consumer": standing.name,
                "waiting": standing.waiting,
                "unsettled": standing.unsettled,
                "redelivered": standing.redelivered,
            })
        });
        each.collect::<Vec<_>>()
    });
    json!({
        "outbox": {
            "waiting": backlog.waiting,
            "oldest_age_seconds": backlog.oldest_age.map(|age| age.as_secs_f64()),
            "held": held,
        },
        "relay": lease.map(|lease| json!({
            "epoch": lease.epoch,
            "active": lease.left.is_some(),
            "lease_left_seconds": lease.left.map(|left| left.as_secs_f64()),
        })),
        "consumers": consumers,
        "consumers_dead_letters": letters,
    })
}

fn as_text(
    backlog: &Backlog,
    lease: Option<&Lease>,
    standings: Option<&[Standing]>,
    letters: Option<u64>,
) -> String {
    let mut text = String::from("outbox\n");
    let mut put = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    put("waiting", backlog.waiting.to_string());
    put(
        "oldest",
        backlog.oldest_age.map_or_else(|| "-".to_owned(), rough),
    );
    let held: Vec<String> = backlog
        .held
        .iter()
        .filter(|(reason, count)| *count > 0 && *reason != HeldReason::Dead)
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    put(
        "held",
        if held.is_empty() {
            "-".to_owned()
        } else {
            held.join(", ")
        },
    );
    put(
        "relay",
        match lease {
            None => "none has ever run".to_owned(),
            Some(Lease { epoch, left: None }) => {
                format!("none is active (the last one had epoch {epoch})")
            }
            Some(Lease {
                epoch,
                left: Some(left),
            }) => {
                format!(
                    "one is active (epoch {epoch}, its lease runs another {})",
                    rough(*left)
                )
            }
        },
    );
    let dead = backlog
        .held
        .iter()
        .find(|(reason, _)| *reason == HeldReason::Dead);
    put(
        "dead letters",
        format!(
            "{} of the relay, {} of the consumers",
            dead.map_or(0, |(_, count)| *count),
            letters.map_or_else(|| "?".to_owned(), |letters| letters.to_string())
        ),
    );
    text.push_str("consumers\n");
    match standings {
        None => text.push_str("  ?"),
        Some([]) => text.push_str("  none"),
        Some(standings) => {
            let width = standings
                .iter()
                .map(|standing| standing.name.chars().count())
                .max()
                .unwrap_or(0);
            for standing in standings {
                let Standing {
                    waiting,
                    unsettled,
                    redelivered,
                    ..
                } = standing;
                let (name, stream) = (line(&standing.name), line(&standing.stream));
                let _ = writeln!(
                    text,
                    "  {name:<width$}  {waiting} waiting, {unsettled} unsettled ({redelivered} redelivered) in {stream}"
                );
            }
            text.pop();
        }
    }
    text
}
