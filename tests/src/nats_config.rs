//! How a NATS server is set up.

use std::fmt::Write;
use std::path::Path;

/// The configuration of a [`NatsServer`](crate::NatsServer); JetStream is on by default.
#[derive(Clone, Debug, Default)]
pub struct NatsConfig {
    pub(crate) oldest: bool,
    without_jetstream: bool,
    max_payload: Option<usize>,
    users: Vec<String>,
    extra: String,
}

impl NatsConfig {
    /// Takes the oldest version of the server that the framework works with.
    #[must_use]
    pub fn oldest(mut self) -> Self {
        self.oldest = true;
        self
    }

    /// Switches JetStream off.
    #[must_use]
    pub fn without_jetstream(mut self) -> Self {
        self.without_jetstream = true;
        self
    }

    /// Limits the size of a message in bytes, headers included.
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// Adds a user who may do everything; as soon as there are users, nobody else may connect.
    #[must_use]
    pub fn user(self, name: &str, password: &str) -> Self {
        self.user_with_permissions(name, password, r#"{ publish: ">", subscribe: ">" }"#)
    }

    /// Adds a user with permissions in the server's own syntax, such as
    /// `{ publish: ["orders.>"], subscribe: ["_INBOX.>"] }`.
    #[must_use]
    pub fn user_with_permissions(mut self, name: &str, password: &str, permissions: &str) -> Self {
        let user =
            format!("{{ user: {name:?}, password: {password:?}, permissions: {permissions} }}");
        self.users.push(user);
        self
    }

    /// Adds text to the server's configuration file.
    #[must_use]
    pub fn extra(mut self, text: &str) -> Self {
        self.extra.push_str(text);
        self.extra.push('\n');
        self
    }

    /// The configuration file.
    pub(crate) fn text(&self, port: u16, store: &Path) -> String {
        let mut text = format!("listen: \"127.0.0.1:{port}\"\n");
        if !self.without_jetstream {
            let _ = writeln!(text, "jetstream {{ store_dir: {store:?} }}");
        }
        if let Some(bytes) = self.max_payload {
            let _ = writeln!(text, "max_payload: {bytes}");
        }
        if !self.users.is_empty() {
            let _ = writeln!(
                text,
                "authorization {{ users: [ {} ] }}",
                self.users.join(", ")
            );
        }
        text + &self.extra
    }
}
