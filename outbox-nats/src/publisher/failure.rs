//! Which answer means what for a published message: the table of the crate's documentation.

use outbox_core::broker::{FailureKind, PublishFailure};

use crate::{
    api::{Refusal, code},
    link::{CallError, violated_subject},
};

/// Refusals that concern this one message although their code is that of a server's trouble.
const OF_THE_MESSAGE: [u32; 1] = [
    10_111, // rollup not permitted
];

/// Refusals that concern the stream or the account although their code is that of a bad request.
const OF_THE_STREAM: [u32; 3] = [
    10_002, // resource limits exceeded for account
    10_109, // invalid operation on sealed stream
    10_158, // duplicate message id is in process
];

pub(super) fn refused(subject: &str, refusal: &Refusal) -> PublishFailure {
    let kind = match refusal.err_code {
        // The stream is not full: this one subject is, in a stream that limits each.
        code::STORE_FAILED if refusal.description.contains("per subject") => FailureKind::Rejected,
        code if OF_THE_MESSAGE.contains(&code) => FailureKind::Rejected,
        code if OF_THE_STREAM.contains(&code) => FailureKind::Unavailable,
        // Full, no leader, no quorum, no space, not enabled, or a state that is new to us: the
        // server says that it cannot, not that the message is wrong.
        _ if refusal.code >= 500 || refusal.code == 429 => FailureKind::Unavailable,
        _ => FailureKind::Rejected,
    };
    PublishFailure::new(kind, format!("subject `{subject}`: {refusal}"))
}

pub(super) fn failed(subject: &str, error: &CallError) -> PublishFailure {
    let (kind, why) = match error {
        CallError::Disconnected => (FailureKind::Disconnected, "the connection to NATS is down"),
        CallError::TimedOut => (
            FailureKind::TimedOut,
            "no confirmation in time; it may have been stored",
        ),
        CallError::NoResponders => (
            FailureKind::NoStream,
            "no stream carries it, or its stream has no leader",
        ),
        CallError::Denied(text) if violated_subject(text) == Some(subject) => {
            (FailureKind::Rejected, text.as_ref())
        }
        // The inbox, without which nothing is ever confirmed: not this message's fault.
        CallError::Denied(text) => (FailureKind::Unavailable, text.as_ref()),
        CallError::Invalid(why) => (FailureKind::Rejected, why.as_str()),
    };
    PublishFailure::new(kind, format!("subject `{subject}`: {why}"))
}

pub(super) fn disconnected(subject: &str) -> PublishFailure {
    failed(subject, &CallError::Disconnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: u16, err_code: u32) -> FailureKind {
        refused(
            "s",
            &Refusal {
                code,
                err_code,
                description: String::new(),
            },
        )
        .kind()
    }

    #[test]
    fn a_message_is_blamed_only_for_what_is_its_own_fault() {
        for (code, err_code) in [
            (400, 10_054),
            (400, 10_097),
            (400, 10_060),
            (400, 10_166),
            (400, 10_071),
            (500, 10_111),
            (418, 1),
        ] {
            assert_eq!(kind(code, err_code), FailureKind::Rejected, "{err_code}");
        }
        for (code, err_code) in [
            (503, 10_077),
            (503, 10_023),
            (500, 10_047),
            (503, 10_008),
            (503, 10_009),
            (409, 10_158),
            (400, 10_002),
            (400, 10_109),
            (503, 99_999),
            (429, 10_167),
        ] {
            assert_eq!(kind(code, err_code), FailureKind::Unavailable, "{err_code}");
        }
    }

    #[test]
    fn a_refused_inbox_is_not_the_fault_of_the_message() {
        let text = |text: &str| CallError::Denied(text.into());
        let publish = r#"Permissions Violation for Publish to "a.b""#;
        assert_eq!(failed("a.b", &text(publish)).kind(), FailureKind::Rejected);
        let inbox = r#"Permissions Violation for Subscription to "_INBOX.a.b.*""#;
        assert_eq!(failed("a.b", &text(inbox)).kind(), FailureKind::Unavailable);
    }
}
