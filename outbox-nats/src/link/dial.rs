//! Opens connections.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, Subscriber,
};
use outbox_core::broker::{BrokerError, BrokerErrorKind};
use tokio::sync::mpsc;

use super::life::Life;
use crate::{credentials::Credentials, servers::Servers, version::Version};

/// Nothing listens there: see [`Dialer::dial`].
const NOWHERE: &str = "nats://127.0.0.1:0";

type Factory = Arc<dyn Fn() -> ConnectOptions + Send + Sync>;

/// How to connect.
#[derive(Clone)]
pub(crate) struct ConnectSettings {
    pub(crate) servers: Servers,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) options: Option<Factory>,
    pub(crate) inbox_prefix: Option<String>,
    pub(crate) name: String,
    pub(crate) require_tls: bool,
    pub(crate) root_certificates: Vec<PathBuf>,
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) connect_timeout: Duration,
    pub(crate) ping_interval: Duration,
}

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) struct DialError {
    pub(crate) kind: BrokerErrorKind,
    pub(crate) text: String,
}

impl From<&DialError> for BrokerError {
    fn from(error: &DialError) -> Self {
        Self::new(error.kind, error.text.clone())
    }
}

/// A connection that has just been made.
pub(super) struct Connected {
    pub(super) life: Life,
    pub(super) replies: Subscriber,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
}

#[derive(Clone)]
pub(crate) struct Dialer {
    settings: Arc<ConnectSettings>,
    /// Other servers of the cluster, as the last connection was told.
    discovered: Vec<ServerAddr>,
}

impl Dialer {
    pub(crate) fn new(settings: Arc<ConnectSettings>) -> Self {
        Self {
            settings,
            discovered: Vec::new(),
        }
    }

    pub(super) fn shown(&self) -> String {
        self.settings.servers.shown()
    }

    /// Makes a connection that lives once.
    ///
    /// async-nats would reconnect by itself, keep what was queued and send it later, and go on
    /// trying for ever after all its handles are gone. So once connected, its list of servers is
    /// replaced by a place where nothing listens: when the connection breaks, it ends together
    /// with its queue, and we make the next one.
    pub(super) async fn dial(&mut self) -> Result<Connected, DialError> {
        let mut addresses = self.settings.servers.addresses.clone();
        addresses.extend(self.discovered.iter().cloned());
        let patience = self
            .settings
            .connect_timeout
            .saturating_mul(u32::try_from(addresses.len()).unwrap_or(u32::MAX));
        match tokio::time::timeout(
            patience + Duration::from_millis(500),
            self.connect(addresses),
        )
        .await
        {
            Ok(connected) => connected,
            Err(_) => Err(self.error(
                BrokerErrorKind::Unavailable,
                "no answer within the connect time-out",
            )),
        }
    }

    async fn connect(&mut self, addresses: Vec<ServerAddr>) -> Result<Connected, DialError> {
        let (sender, events) = mpsc::unbounded_channel();
        let options = self
            .options()
            .await?
            .max_reconnects(addresses.len())
            .reconnect_delay_callback(|_| Duration::ZERO)
            .event_callback(move |event| {
                let _ = sender.send(event);
                std::future::ready(())
            });
        let client = options
            .connect(addresses)
            .await
            .map_err(|error| self.refused(&error))?;
        let version = client.server_info().version;
        if Version::parse(&version).is_none_or(|version| version < Version::OLDEST) {
            return Err(self.error(
                BrokerErrorKind::Configuration,
                &format!(
                    "its nats-server is version {version}, but {} or newer is needed",
                    Version::OLDEST
                ),
            ));
        }
        self.discover(&client).await;
        let lost = |_| {
            self.error(
                BrokerErrorKind::Unavailable,
                "the connection was lost at once",
            )
        };
        client.set_server_pool(NOWHERE).await.map_err(lost)?;
        let inbox = format!("{}.", client.new_inbox());
        let lost = |_| {
            self.error(
                BrokerErrorKind::Unavailable,
                "the connection was lost at once",
            )
        };
        let replies = client.subscribe(format!("{inbox}*")).await.map_err(lost)?;
        Ok(Connected {
            life: Life::new(client, inbox),
            replies,
            events,
        })
    }

    async fn options(&self) -> Result<ConnectOptions, DialError> {
        let settings = &*self.settings;
        let mut options = match &settings.options {
            Some(factory) => factory(),
            None => ConnectOptions::new()
                .name(&settings.name)
                .connection_timeout(settings.connect_timeout)
                .ping_interval(settings.ping_interval),
        };
        if settings.require_tls {
            options = options.require_tls(true);
        }
        for path in &settings.root_certificates {
            options = options.add_root_certificates(path.clone());
        }
        if let Some((certificate, key)) = &settings.client_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        if let Some(prefix) = &settings.inbox_prefix {
            options = options.custom_inbox_prefix(prefix);
        }
        match settings
            .credentials
            .as_ref()
            .or(settings.servers.credentials.as_ref())
        {
            None => Ok(options),
            Some(credentials) => credentials.apply(options).await.map_err(|error| {
                self.error(
                    BrokerErrorKind::Configuration,
                    &format!("the {credentials:?} cannot be read: {error}"),
                )
            }),
        }
    }

    async fn discover(&mut self, client: &Client) {
        if let Ok(pool) = client.server_pool().await {
            self.discovered = pool
                .into_iter()
                .filter(|server| {
                    server.is_discovered && !self.settings.servers.addresses.contains(&server.addr)
                })
                .map(|server| server.addr)
                .collect();
        }
    }

    fn refused(&self, error: &ConnectError) -> DialError {
        let kind = match error.kind() {
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::Tls => BrokerErrorKind::Configuration,
            ConnectErrorKind::Dns
            | ConnectErrorKind::TimedOut
            | ConnectErrorKind::Io
            | ConnectErrorKind::MaxReconnects => BrokerErrorKind::Unavailable,
        };
        // Its text ends with that of its source.
        self.error(kind, &error.to_string())
    }

    fn error(&self, kind: BrokerErrorKind, why: &str) -> DialError {
        let Servers { addresses, .. } = &self.settings.servers;
        let tls = self.settings.require_tls || addresses.iter().any(ServerAddr::tls_required);
        let with = if tls { " with TLS" } else { "" };
        DialError {
            kind,
            text: format!("could not connect to NATS at {}{with}: {why}", self.shown()),
        }
    }
}
