//! Server URLs: parsed once, their credentials taken out so that no log can show them.

use async_nats::ServerAddr;
use outbox_core::broker::{BrokerError, BrokerErrorKind};

use crate::credentials::Credentials;

/// The servers that were configured.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    pub(crate) addresses: Vec<ServerAddr>,
    /// Of the first URL that has any.
    pub(crate) credentials: Option<Credentials>,
}

impl Servers {
    /// Reads URLs; each may be a comma-separated list.
    pub(crate) fn parse(urls: &[String]) -> Result<Self, BrokerError> {
        let mut servers = Self {
            addresses: Vec::new(),
            credentials: None,
        };
        for url in urls.iter().flat_map(|urls| urls.split(',')).map(str::trim) {
            servers.add(url)?;
        }
        if servers.addresses.is_empty() {
            return Err(configuration("no NATS server is configured"));
        }
        Ok(servers)
    }

    fn add(&mut self, url: &str) -> Result<(), BrokerError> {
        if url.is_empty() {
            return Err(configuration("the NATS server URL is empty"));
        }
        // The error's text names what is wrong, never the URL itself.
        let address: ServerAddr = url.parse().map_err(|error| {
            configuration(format!(
                "{error} (a user or password with special characters must be percent-encoded in a URL)"
            ))
        })?;
        if address.host().is_empty() {
            return Err(configuration("the NATS server URL has no host"));
        }
        if self.credentials.is_none() {
            self.credentials = credentials(&address);
        }
        let mut url = address.into_inner();
        // Both fail only for URLs that cannot have a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        self.addresses
            .push(ServerAddr::from_url(url).map_err(|error| configuration(error.to_string()))?);
        Ok(())
    }

    /// Hosts and ports, for messages.
    pub(crate) fn shown(&self) -> String {
        self.addresses
            .iter()
            .map(shown)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

pub(crate) fn shown(address: &ServerAddr) -> String {
    let host = address.host();
    if host.contains(':') {
        format!("[{host}]:{}", address.port())
    } else {
        format!("{host}:{}", address.port())
    }
}

fn credentials(address: &ServerAddr) -> Option<Credentials> {
    let user = decode(address.username()?);
    Some(match address.password() {
        Some(password) => Credentials::UserAndPassword {
            user,
            password: decode(password),
        },
        None => Credentials::Token(user),
    })
}

/// Undoes percent-encoding; what is no valid escape stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn configuration(message: impl Into<String>) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Configuration, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(urls: &str) -> Result<Servers, BrokerError> {
        Servers::parse(&[urls.to_owned()])
    }

    #[test]
    fn credentials_leave_the_address_and_never_show() {
        let servers = parse("nats://us%40er:p%23%2Fs@127.0.0.1:4222,nats://[::1]:4223").unwrap();
        let Some(Credentials::UserAndPassword { user, password }) = &servers.credentials else {
            panic!("no user")
        };
        assert_eq!((user.as_str(), password.as_str()), ("us@er", "p#/s"));
        assert_eq!(servers.shown(), "127.0.0.1:4222, [::1]:4223");
        let debug = format!("{servers:?}");
        assert!(
            !debug.contains("p#/s") && !debug.contains("p%23"),
            "{debug}"
        );
    }

    #[test]
    fn a_user_without_password_is_a_token() {
        let servers = parse("nats://s3cr3t@localhost").unwrap();
        assert!(
            matches!(servers.credentials, Some(Credentials::Token(token)) if token == "s3cr3t")
        );
    }

    #[test]
    fn bad_urls_are_named_without_their_secrets() {
        for url in [
            "",
            "nats://",
            "http://host",
            "nats://user:hunter#2@host",
            "a,,b",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), BrokerErrorKind::Configuration, "{url}");
            assert!(!error.to_string().contains("hunter"), "{error}");
        }
    }
}
