//! Server versions.

use std::fmt;

/// A version of nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl Version {
    /// The oldest server that the adapter works with.
    pub(crate) const OLDEST: Self = Self(2, 10, 25);

    /// Reads `2.11.3`, `v2.12.0-RC.1` and the like.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut numbers = text.splitn(3, '.').map(|part| {
            let digits = part
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(part.len());
            part.get(..digits)?.parse().ok()
        });
        Some(Self(numbers.next()??, numbers.next()??, numbers.next()??))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn old_servers_are_told_from_new_ones() {
        for old in ["2.9.10", "2.10.24", "1.4.1", "2.2.0-beta"] {
            assert!(Version::parse(old).unwrap() < Version::OLDEST, "{old}");
        }
        for new in ["2.10.25", "2.15.1", "2.15.0-dev", "v2.12.0-RC.1", "3.0.0"] {
            assert!(Version::parse(new).unwrap() >= Version::OLDEST, "{new}");
        }
        for nonsense in ["", "x", "2", "2.10", "2..1"] {
            assert_eq!(Version::parse(nonsense), None, "{nonsense}");
        }
    }
}
