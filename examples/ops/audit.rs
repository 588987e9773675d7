//! `ops audit`.

use std::{fmt::Write as _, time::Duration};

use outbox_core::{AuditRange, AuditReport, MissingMessage, error::BoxError};
use serde_json::{Value, json};

use crate::{
    Desk,
    output::{line, moment},
};

pub(crate) async fn run(desk: &Desk, hours: Option<u32>, republish: bool) -> Result<(), BoxError> {
    let audit = desk.bus.audit(desk.broker().await?);
    let range = AuditRange {
        oldest: hours.map(|hours| Duration::from_secs(u64::from(hours) * 3600)),
        ..Default::default()
    };
    let report = if republish {
        audit.republish(&range).await?
    } else {
        audit.check(&range).await?
    };
    for missing in &report.examples {
        desk.out
            .write(|| missing_as_json(missing), || missing_as_text(missing))?;
    }
    desk.out
        .write(|| as_json(&report), || as_text(&report, republish))?;
    Ok(())
}

fn as_json(report: &AuditReport) -> Value {
    json!({
        "checked": report.checked,
        "present": report.present,
        "expired": report.expired,
        "missing": report.missing,
        "republished": report.republished,
    })
}

fn as_text(report: &AuditReport, republish: bool) -> String {
    let AuditReport {
        checked,
        present,
        expired,
        missing,
        ..
    } = report;
    let mut text = format!(
        "{checked} published events: {present} present, {expired} expired, {missing} missing"
    );
    // Writing to a string cannot fail.
    let _ = match (checked, missing) {
        (0, _) => write!(text, " (does the relay keep them?)"),
        (_, 0) => Ok(()),
        _ if republish => write!(
            text,
            "; {} are on their way again: audit once more when they are out",
            report.republished
        ),
        _ => write!(text, "; `--republish` publishes them again"),
    };
    text
}

fn missing_as_json(missing: &MissingMessage) -> Value {
    json!({
        "message_id": missing.message_id,
        "event_type": missing.event_type,
        "subject": missing.subject,
        "key": missing.key,
        "stream": missing.stream,
        "sequence": missing.sequence,
        "published_at": moment(missing.published_at),
    })
}

fn missing_as_text(missing: &MissingMessage) -> String {
    format!(
        "missing {} {} on {}, was {} of {} at {}",
        missing.message_id,
        line(&missing.event_type),
        line(&missing.subject),
        missing.sequence,
        line(&missing.stream),
        moment(missing.published_at)
    )
}
