//! How a connection proves who it is.

use std::{fmt, io, path::PathBuf};

use async_nats::ConnectOptions;

#[derive(Clone)]
pub(crate) enum Credentials {
    UserAndPassword {
        user: String,
        password: String,
    },
    Token(String),
    NKey(String),
    /// Read again for every connection, so that it may be replaced while the process runs.
    File(PathBuf),
    Text(String),
}

impl Credentials {
    pub(crate) async fn apply(&self, options: ConnectOptions) -> io::Result<ConnectOptions> {
        Ok(match self.clone() {
            Self::UserAndPassword { user, password } => options.user_and_password(user, password),
            Self::Token(token) => options.token(token),
            Self::NKey(seed) => options.nkey(seed),
            Self::File(path) => options.credentials_file(path).await?,
            Self::Text(text) => options.credentials(&text)?,
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserAndPassword { user, .. } => write!(f, "user {user:?}"),
            Self::Token(_) => f.write_str("token"),
            Self::NKey(_) => f.write_str("nkey"),
            Self::File(path) => write!(f, "credentials file {}", path.display()),
            Self::Text(_) => f.write_str("credentials"),
        }
    }
}
