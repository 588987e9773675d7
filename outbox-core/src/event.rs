//! What a service tells others: the [`IntegrationEvent`] trait and its ordering key.

use std::borrow::Cow;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::DecodeError;

/// Something that happened, told to other services under a stable name.
///
/// Implement it with `#[derive(IntegrationEvent)]`; the associated constants are the contract
/// between services and must not change with a Rust name.
///
/// ```
/// use outbox_core::IntegrationEvent;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, IntegrationEvent)]
/// #[event(subject = "shop.orders.placed", version = 1, key = order_id)]
/// struct OrderPlaced {
///     order_id: String,
///     total_cents: i64,
/// }
///
/// assert_eq!(OrderPlaced::TYPE, "shop.orders.placed");
/// let event = OrderPlaced { order_id: "o-1".into(), total_cents: 990 };
/// assert_eq!(event.key().as_deref(), Some("o-1"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integration event",
    label = "this type cannot be published or handled",
    note = "add `#[derive(Serialize, Deserialize, IntegrationEvent)]` and `#[event(subject = \"..\")]` to `{Self}`"
)]
pub trait IntegrationEvent: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of the event on the wire (the CloudEvents `type`). Defaults to the subject.
    const TYPE: &'static str;
    /// The version of the payload's shape, from 1.
    const VERSION: u16;
    /// The NATS subject that the event is published on.
    const SUBJECT: &'static str;

    /// The ordering key: events with one key are published in the order of their rows.
    ///
    /// `None` lets the event go out independently of all others.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Reads a payload that was written as an older `version` of this event.
    ///
    /// The derive writes this method from `upcast_from = Older`, following the chain of `From`
    /// implementations. It is never called with [`Self::VERSION`](Self::VERSION).
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the kind `UnknownVersion` if this type knows no such version, or
    /// `Payload` if the bytes are not a payload of that version.
    fn upcast(version: u16, payload: &[u8]) -> Result<Self, DecodeError> {
        let _ = payload;
        Err(DecodeError::unknown_version(
            Self::TYPE,
            version,
            Self::VERSION,
        ))
    }
}

/// Reads `payload` as version `version` of the event `E`, upcasting where it is older.
///
/// # Errors
///
/// [`DecodeError`]: the payload does not decode, or the version is not known to `E`. A version
/// above [`IntegrationEvent::VERSION`] has the kind `NewerVersion`.
pub fn decode<E: IntegrationEvent>(version: u16, payload: &[u8]) -> Result<E, DecodeError> {
    use std::cmp::Ordering;
    match version.cmp(&E::VERSION) {
        Ordering::Equal => serde_json::from_slice(payload)
            .map_err(|error| DecodeError::payload(E::TYPE, version, &error)),
        Ordering::Less => E::upcast(version, payload),
        Ordering::Greater => Err(DecodeError::newer_version(E::TYPE, version, E::VERSION)),
    }
}

/// A value that can serve as an event's ordering key: strings, integers, UUIDs, and options of
/// these (`None` means no key).
///
/// Implement it for a newtype to use that in `#[event(key = field)]`:
///
/// ```
/// use std::borrow::Cow;
/// use outbox_core::OrderingKey;
///
/// struct OrderId(String);
///
/// impl OrderingKey for OrderId {
///     fn ordering_key(&self) -> Option<Cow<'_, str>> {
///         self.0.ordering_key()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an ordering key",
    label = "expected a string, an integer, a `Uuid`, or an `Option` of one",
    note = "implement `outbox_core::OrderingKey` for `{Self}`, or write `key = method()` with a method that returns a string"
)]
pub trait OrderingKey {
    /// The key as text; `None` if there is none.
    fn ordering_key(&self) -> Option<Cow<'_, str>>;
}

impl OrderingKey for str {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self))
    }
}

impl OrderingKey for String {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self))
    }
}

impl OrderingKey for Cow<'_, str> {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self))
    }
}

impl<K: OrderingKey + ?Sized> OrderingKey for &K {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        (**self).ordering_key()
    }
}

impl<K: OrderingKey + ?Sized> OrderingKey for Box<K> {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        (**self).ordering_key()
    }
}

impl<K: OrderingKey> OrderingKey for Option<K> {
    fn ordering_key(&self) -> Option<Cow<'_, str>> {
        self.as_ref().and_then(OrderingKey::ordering_key)
    }
}

macro_rules! key_by_display {
    ($($ty:ty),* $(,)?) => {$(
        impl OrderingKey for $ty {
            fn ordering_key(&self) -> Option<Cow<'_, str>> {
                Some(Cow::Owned(self.to_string()))
            }
        }
    )*};
}

key_by_display!(
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    uuid::Uuid
);
