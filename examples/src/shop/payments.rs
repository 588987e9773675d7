//! A fake payment provider.
//!
//! It stands for another company's service: it outlives our process, knows nothing of our
//! transactions, and recognises a charge that is asked for again by its idempotency key. Each charge
//! is a file named after the key, with a line for each time it was asked for.

use std::{
    error::Error,
    fmt,
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    path::PathBuf,
    time::Duration,
};

use uuid::Uuid;

/// What a card may be charged with, unless the file `limit` says otherwise.
const LIMIT_CENTS: i64 = 100_000;

/// The provider's client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PaymentProvider {
    dir: PathBuf,
    loses_answers: bool,
}

/// Why a card was not charged.
#[derive(Debug)]
pub enum PaymentError {
    /// Never: the amount is over the card's limit.
    Declined {
        /// The limit.
        limit_cents: i64,
    },
    /// Nobody knows: the answer was lost on the way.
    NoAnswer,
    /// The provider cannot be reached.
    Unreachable(io::Error),
}

impl fmt::Display for PaymentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declined { limit_cents } => {
                write!(f, "declined: the card's limit is {limit_cents} cents")
            }
            Self::NoAnswer => f.write_str("the payment provider did not answer in time"),
            Self::Unreachable(_) => f.write_str("the payment provider cannot be reached"),
        }
    }
}

impl Error for PaymentError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(error) => Some(error),
            Self::Declined { .. } | Self::NoAnswer => None,
        }
    }
}

impl PaymentProvider {
    /// A provider that keeps its books in `dir`.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(dir.join("charges"))?;
        Ok(Self {
            dir,
            loses_answers: false,
        })
    }

    /// Lets one answer in sixteen be lost after the card was charged: the reason for the key.
    #[must_use]
    pub fn losing_answers(mut self) -> Self {
        self.loses_answers = true;
        self
    }

    /// Charges a card with `cents`, once for each `key`, however often it is asked to. Returns the
    /// charge's reference.
    ///
    /// # Errors
    ///
    /// [`PaymentError`].
    pub async fn charge(&self, key: &str, cents: i64) -> Result<String, PaymentError> {
        // The way there and back.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (provider, owned) = (self.clone(), key.to_owned());
        let first = tokio::task::spawn_blocking(move || provider.enter(&owned, cents))
            .await
            .unwrap_or_else(|error| Err(PaymentError::Unreachable(io::Error::other(error))))?;
        if first && self.loses_answers && key.ends_with('0') {
            return Err(PaymentError::NoAnswer);
        }
        let reference = Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes());
        Ok(format!("pay-{:.12}", reference.simple().to_string()))
    }

    /// Enters a charge in the books; whether it is the first of its key.
    fn enter(&self, key: &str, cents: i64) -> Result<bool, PaymentError> {
        let file = self.dir.join("charges").join(key.replace([':', '/'], "-"));
        let open = |first| {
            OpenOptions::new()
                .append(true)
                .create_new(first)
                .open(&file)
        };
        let again = file.try_exists().map_err(PaymentError::Unreachable)?;
        let limit_cents = self.limit_cents();
        if !again && cents > limit_cents {
            return Err(PaymentError::Declined { limit_cents });
        }
        let (first, opened) = match open(true) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => (false, open(false)),
            other => (true, other),
        };
        let line = if first {
            format!("charged {cents} cents\n")
        } else {
            "asked for again\n".to_owned()
        };
        opened
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(PaymentError::Unreachable)?;
        Ok(first)
    }

    fn limit_cents(&self) -> i64 {
        let written = fs::read_to_string(self.dir.join("limit")).ok();
        written
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(LIMIT_CENTS)
    }
}
