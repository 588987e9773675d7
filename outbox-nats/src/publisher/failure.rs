//! Which answer means what for a published message: the table of the crate's documentation.

use outbox_core::broker::{FailureKind, PublishFailure};

use crate::{
    api::Refusal,
    link::{CallError, violated_subject},
};

/// Refusals that concern this one message, or its subject, and not the stream.
const OF_THE_MESSAGE: [u32; 11] = [
    10_049, // invalid message TTL
    10_054, // message size exceeds maximum allowed
    10_060, // expected stream does not match
    10_070, // wrong last message id
    10_071, // wrong last sequence
    10_097, // header size exceeds maximum allowed of 64k
    10_111, // rollup not permitted
    10_164, // wrong last sequence, constant
    10_165, // invalid per-message TTL
    10_166, // per-message TTL is disabled
    10_188, // message schedules are disabled
];

/// Another copy of the message is being stored just now.
const IN_PROCESS: u32 = 10_158;

pub(super) fn refused(subject: &str, refusal: &Refusal) -> PublishFailure {
    let kind = match refusal.err_code {
        IN_PROCESS => FailureKind::Unavailable,
        code if OF_THE_MESSAGE.contains(&code) => FailureKind::Rejected,
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
            (503, 10_071),
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
