//! The subjects of the dead-letter stream.

use std::fmt;

use outbox_core::broker::Origin;
use time::OffsetDateTime;

/// What identifies a dead letter: who gave up which stored message. The time is part of it because
/// sequences are used again after a server lost the end of a stream, or a stream was made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) consumer: String,
    pub(super) stream: String,
    pub(super) sequence: u64,
    pub(super) stored_at: OffsetDateTime,
}

impl Place {
    pub(super) fn new(consumer: &str, origin: &Origin) -> Self {
        Self {
            consumer: consumer.to_owned(),
            stream: origin.stream.clone(),
            sequence: origin.sequence,
            stored_at: origin.stored_at,
        }
    }

    pub(super) fn origin(&self) -> Origin {
        Origin {
            stream: self.stream.clone(),
            sequence: self.sequence,
            stored_at: self.stored_at,
        }
    }

    /// Reads the four tokens after the prefix.
    pub(super) fn parse(tokens: &str) -> Option<Self> {
        let mut tokens = tokens.split('.');
        let place = Self {
            consumer: tokens.next()?.to_owned(),
            stream: tokens.next()?.to_owned(),
            sequence: tokens.next()?.parse().ok()?,
            stored_at: OffsetDateTime::from_unix_timestamp_nanos(tokens.next()?.parse().ok()?)
                .ok()?,
        };
        tokens.next().is_none().then_some(place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.stored_at.unix_timestamp_nanos();
        write!(
            f,
            "{}.{}.{}.{nanos}",
            self.consumer, self.stream, self.sequence
        )
    }
}

/// The subjects of one dead-letter stream.
#[derive(Debug, Clone)]
pub(super) struct Subjects(pub(super) String);

impl Subjects {
    pub(super) fn all(&self) -> String {
        format!("{}.>", self.0)
    }

    pub(super) fn letter(&self, place: &Place) -> String {
        format!("{}.letter.{place}", self.0)
    }

    /// Where the body of a letter is that is too large for one message.
    pub(super) fn body(&self, place: &Place) -> String {
        format!("{}.letter.{place}.body", self.0)
    }

    /// The copy of letter `number` that goes to its consumer again.
    pub(super) fn replay(&self, place: &Place, number: u64) -> String {
        format!("{}.replay.{place}.{number}", self.0)
    }

    /// All letters, or those of one consumer.
    pub(super) fn letters(&self, consumer: Option<&str>) -> String {
        format!("{}.letter.{}.*.*.*", self.0, consumer.unwrap_or("*"))
    }

    /// All replays for a consumer.
    pub(super) fn replays(&self, consumer: &str) -> String {
        format!("{}.replay.{consumer}.>", self.0)
    }

    /// The letter that a subject belongs to.
    pub(super) fn letter_of(&self, subject: &str) -> Option<Place> {
        Place::parse(subject.strip_prefix(&self.0)?.strip_prefix(".letter.")?)
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::subject_matches;

    use super::*;

    #[test]
    fn a_letter_is_found_by_its_subject() {
        let subjects = Subjects("outbox.dlq".to_owned());
        let stored_at =
            OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_789).unwrap();
        let place = Place {
            consumer: "c".into(),
            stream: "S".into(),
            sequence: 7,
            stored_at,
        };
        let letter = subjects.letter(&place);
        assert_eq!(letter, "outbox.dlq.letter.c.S.7.1700000000123456789");
        assert_eq!(subjects.letter_of(&letter), Some(place.clone()));
        assert_eq!(subjects.letter_of(&subjects.body(&place)), None);
        assert_eq!(subjects.letter_of(&subjects.replay(&place, 3)), None);
        assert!(subject_matches(&subjects.letters(Some("c")), &letter));
        assert!(!subject_matches(&subjects.letters(Some("d")), &letter));
        assert!(!subject_matches(
            &subjects.letters(None),
            &subjects.body(&place)
        ));
        assert!(subject_matches(
            &subjects.replays("c"),
            &subjects.replay(&place, 3)
        ));
        assert!(subject_matches(&subjects.all(), &letter));
    }
}
