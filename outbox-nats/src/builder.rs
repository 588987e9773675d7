//! How a [`JetStream`] is set up.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use async_nats::ConnectOptions;
use outbox_core::broker::{BrokerError, BrokerErrorKind};

use crate::{
    api::Api,
    broker::{Inner, JetStream},
    credentials::Credentials,
    dead_letter::DeadLetters,
    link::{ConnectSettings, Link},
    provision::Provision,
    servers::Servers,
    topology::{StreamSpec, Topology},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const PING_INTERVAL: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

type Factory = Arc<dyn Fn() -> ConnectOptions + Send + Sync>;

/// Sets up a [`JetStream`]: made by [`JetStream::builder`], ended by [`connect`](Self::connect).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_nats::{JetStream, StreamSpec};
///
/// let broker = JetStream::builder()
///     .credentials_file("/run/secrets/nats.creds")
///     .stream(StreamSpec::new("SHOP", ["shop.>"]).replicas(3))
///     .connect("nats://a.example:4222,nats://b.example:4222")
///     .await?;
/// # let _ = broker;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct JetStreamBuilder {
    credentials: Option<Credentials>,
    options: Option<Factory>,
    inbox_prefix: Option<String>,
    name: String,
    require_tls: bool,
    root_certificates: Vec<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
    connect_timeout: Duration,
    ping_interval: Duration,
    request_timeout: Duration,
    ack_timeout: Duration,
    wait: bool,
    domain: Option<String>,
    streams: Vec<StreamSpec>,
    topology: Topology,
    dead_letter_stream: String,
    dead_letter_prefix: String,
    dead_letter_replicas: Option<u8>,
}

impl Default for JetStreamBuilder {
    fn default() -> Self {
        Self {
            credentials: None,
            options: None,
            inbox_prefix: None,
            name: "outbox".to_owned(),
            require_tls: false,
            root_certificates: Vec::new(),
            client_certificate: None,
            connect_timeout: CONNECT_TIMEOUT,
            ping_interval: PING_INTERVAL,
            request_timeout: REQUEST_TIMEOUT,
            ack_timeout: ACK_TIMEOUT,
            wait: false,
            domain: None,
            streams: Vec::new(),
            topology: Topology::Ensure,
            dead_letter_stream: "OUTBOX_DLQ".to_owned(),
            dead_letter_prefix: "outbox.dlq".to_owned(),
            dead_letter_replicas: None,
        }
    }
}

impl JetStreamBuilder {
    /// A user and password, instead of those in the URL.
    pub fn user_and_password(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.credentials = Some(Credentials::UserAndPassword {
            user: user.into(),
            password: password.into(),
        });
        self
    }

    /// A token, instead of that in the URL.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.credentials = Some(Credentials::Token(token.into()));
        self
    }

    /// An NKey, by its seed.
    pub fn nkey(mut self, seed: impl Into<String>) -> Self {
        self.credentials = Some(Credentials::NKey(seed.into()));
        self
    }

    /// A credentials file. It is read again for every connection, so it may be replaced while the
    /// process runs.
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials = Some(Credentials::File(path.into()));
        self
    }

    /// The text of a credentials file.
    pub fn credentials(mut self, text: impl Into<String>) -> Self {
        self.credentials = Some(Credentials::Text(text.into()));
        self
    }

    /// Refuses connections without TLS.
    pub const fn require_tls(mut self) -> Self {
        self.require_tls = true;
        self
    }

    /// A file with certificates of authorities to trust.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates.push(path.into());
        self
    }

    /// The files with our own certificate and its key.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// What inboxes begin with, instead of `_INBOX`: so that a right to one's own inboxes can be
    /// given without that to everybody's.
    pub fn inbox_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.inbox_prefix = Some(prefix.into());
        self
    }

    /// The name of our connections in the server's monitoring. Default `outbox`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Anything else that async-nats can be told. `options` is called for every new connection, so
    /// it may return credentials that were renewed meanwhile.
    ///
    /// It replaces [`name`](Self::name), [`connect_timeout`](Self::connect_timeout) and
    /// [`ping_interval`](Self::ping_interval), each of which it should set. Its event callback and
    /// its settings for reconnecting have no effect: connections are supervised here.
    pub fn options(mut self, options: impl Fn() -> ConnectOptions + Send + Sync + 'static) -> Self {
        self.options = Some(Arc::new(options));
        self
    }

    /// How long one server may take to accept a connection. Default 5 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How often a silent connection is tried; it counts as lost when three such times have passed
    /// without an answer. Default 5 s.
    pub const fn ping_interval(mut self, interval: Duration) -> Self {
        self.ping_interval = interval;
        self
    }

    /// How long the answer to a request may take: acknowledgements of deliveries, and questions to
    /// the JetStream API. Default 5 s.
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long the confirmation of a published message may take. Default 5 s.
    pub const fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Lets [`connect`](Self::connect) succeed while no server can be reached, or none accepts us:
    /// connecting goes on in the background, and each failure is logged.
    pub const fn wait_for_server(mut self) -> Self {
        self.wait = true;
        self
    }

    /// The JetStream domain to work in, if not the server's own.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// A stream that the application needs. May be called repeatedly.
    ///
    /// Streams that others create need not be named here.
    pub fn stream(mut self, stream: StreamSpec) -> Self {
        self.streams.push(stream);
        self
    }

    /// What may be done about streams and durables that are missing or differ. Default
    /// [`Topology::Ensure`].
    pub const fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// The stream of dead letters and the prefix of its subjects. Default `OUTBOX_DLQ` and
    /// `outbox.dlq`.
    pub fn dead_letters(mut self, stream: impl Into<String>, prefix: impl Into<String>) -> Self {
        self.dead_letter_stream = stream.into();
        self.dead_letter_prefix = prefix.into();
        self
    }

    /// How many servers store the dead letters. Use 3 wherever the streams themselves have 3.
    pub const fn dead_letter_replicas(mut self, replicas: u8) -> Self {
        self.dead_letter_replicas = Some(replicas);
        self
    }

    /// Connects, and puts the configured streams in place.
    ///
    /// `url` is a NATS URL or several, separated by commas: `nats://host:4222`, `tls://host`,
    /// `nats://user:password@host`. Special characters in user and password must be
    /// percent-encoded.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: no server can be reached, it refuses us, is older than 2.10.25 or has no
    /// JetStream; or a stream cannot be put in place.
    pub async fn connect(self, url: impl Into<String>) -> Result<JetStream, BrokerError> {
        let settings = Arc::new(ConnectSettings {
            servers: Servers::parse(&[url.into()])?,
            credentials: self.credentials,
            options: self.options,
            inbox_prefix: self.inbox_prefix,
            name: self.name,
            require_tls: self.require_tls,
            root_certificates: self.root_certificates,
            client_certificate: self.client_certificate,
            connect_timeout: self.connect_timeout,
            ping_interval: self.ping_interval,
        });
        let link = Link::open(settings.clone());
        let connected = link.first_outcome().await;
        let api = Api::new(link, self.domain.as_deref(), self.request_timeout);
        let provision = Arc::new(Provision::new(api.clone(), self.streams, self.topology));
        let letters = DeadLetters::new(
            api.clone(),
            &self.dead_letter_stream,
            &self.dead_letter_prefix,
            self.dead_letter_replicas,
            self.topology,
        );
        let ready = match connected {
            Ok(_) => match check_jetstream(&api).await {
                Ok(()) => provision.ensure_once().await,
                Err(error) => Err(error),
            },
            Err(error) if self.wait => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                error.text.clone(),
            )),
            Err(error) => Err(BrokerError::from(&*error)),
        };
        match ready {
            Err(error) if self.wait && error.kind() == BrokerErrorKind::Unavailable => {
                tracing::warn!("{error}; connecting goes on in the background");
            }
            ready => ready?,
        }
        Ok(JetStream::new(Inner {
            settings,
            domain: self.domain,
            request_timeout: self.request_timeout,
            ack_timeout: self.ack_timeout,
            api,
            provision,
            letters,
        }))
    }
}

/// Asks whether there is JetStream at all, so that nothing else times out without a reason.
async fn check_jetstream(api: &Api) -> Result<(), BrokerError> {
    match api.account().await {
        Err(error) if error.is_denied() => Ok(()),
        Err(error) => Err(error.while_doing("use JetStream")),
        Ok(()) => Ok(()),
    }
}

impl fmt::Debug for JetStreamBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamBuilder")
            .field("credentials", &self.credentials)
            .field("streams", &self.streams)
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}
