//! What the reply subject of a delivered message tells about it.

use time::OffsetDateTime;

/// Where a delivery comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) stream: String,
    pub(crate) sequence: u64,
    pub(crate) deliveries: u64,
    pub(crate) stored_at: OffsetDateTime,
}

impl Delivery {
    /// Reads `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<time>.<pending>`,
    /// or the newer form with `<domain>.<account hash>` before the stream.
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let tokens: Vec<&str> = rest.split('.').collect();
        let tokens = match tokens.len() {
            7 => tokens.as_slice(),
            9.. => tokens.get(2..)?,
            _ => return None,
        };
        let [stream, _consumer, deliveries, sequence, _, nanos, ..] = tokens else {
            return None;
        };
        Some(Self {
            stream: (*stream).to_owned(),
            sequence: sequence.parse().ok()?,
            deliveries: deliveries.parse().ok()?,
            stored_at: OffsetDateTime::from_unix_timestamp_nanos(nanos.parse().ok()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Delivery;

    #[test]
    fn reads_both_forms() {
        let old = Delivery::parse("$JS.ACK.S.c.2.17.23.1700000000000000001.5").unwrap();
        let new = Delivery::parse("$JS.ACK._.hash.S.c.2.17.23.1700000000000000001.5").unwrap();
        let newest =
            Delivery::parse("$JS.ACK.d.hash.S.c.2.17.23.1700000000000000001.5.token").unwrap();
        assert_eq!(
            (old.stream.as_str(), old.sequence, old.deliveries),
            ("S", 17, 2)
        );
        assert_eq!(
            old.stored_at.unix_timestamp_nanos(),
            1_700_000_000_000_000_001
        );
        assert_eq!(old, new);
        assert_eq!(old, newest);
        for other in [
            "",
            "$JS.ACK.S",
            "$JS.ACK.S.c.x.1.1.1.1",
            "_INBOX.a.b",
            "$JS.ACK.S.c.2.17.23.1.5.6",
        ] {
            assert_eq!(Delivery::parse(other), None, "{other}");
        }
    }
}
