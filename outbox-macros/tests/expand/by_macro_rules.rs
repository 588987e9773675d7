//! Events and handlers whose tokens come from `macro_rules`, where types, expressions and
//! literals arrive in invisible groups, and names with other hygiene.

use outbox_core::{Envelope, HandlerError, IntegrationEvent};

use crate::handlers::{Tx, takes_transaction};

pub(crate) mod facade {
    pub(crate) use outbox_core::*;
}

macro_rules! event_with_handler {
    (
        $(#[$attr:meta])*
        $vis:vis $event:ident { $field:ident: $ty:ty }, $subject:expr, $version:literal;
        $handler:ident($arg:ty, &$tx:ty, $state:ty) -> $ret:ty, $consumer:expr, $attempts:expr, $delay:literal, $body:block
    ) => {
        $(#[$attr])*
        #[derive(serde::Serialize, serde::Deserialize, outbox_core::IntegrationEvent)]
        #[event(subject = $subject, version = $version, key = $field, crate = $crate::by_macro_rules::facade)]
        $vis struct $event {
            $field: $ty,
        }

        #[outbox_core::handler(
            consumer = $consumer,
            max_attempts = $attempts,
            timeout = $delay,
            backoff = exponential($delay, max = "1m"),
            state = $state,
            crate = $crate::by_macro_rules::facade,
        )]
        $vis async fn $handler(
            event: $arg,
            tx: &$tx,
            state: $crate::by_macro_rules::facade::State<$state>,
            cx: $crate::by_macro_rules::facade::Context,
        ) -> $ret {
            let _ = (event, tx, state, cx);
            $body
        }
    };
}

event_with_handler! {
    /// Documented.
    #[derive(Debug)]
    pub(crate) Placed { order_id: Option<String> }, "shop.orders.placed", 3;
    on_placed(Placed, &Tx, u8) -> Result<(), HandlerError>, "placed", 7, "20s", { Ok(()) }
}

event_with_handler! {
    Cancelled { order_id: u32 }, "shop.orders.cancelled", 1;
    on_cancelled(Envelope<Cancelled>, &crate::handlers::Tx, u8) -> Result<(), std::fmt::Error>,
    "cancelled", 1, "1s", { Err(std::fmt::Error) }
}

/// All names but the key are the macro's own.
macro_rules! inside {
    ($($key:tt)*) => {
        #[derive(serde::Serialize, serde::Deserialize, outbox_core::IntegrationEvent)]
        #[event(subject = "shop.inside", key = $($key)*)]
        pub(crate) struct Inside {
            pub(crate) id: u8,
        }

        impl Inside {
            #[allow(dead_code)]
            fn id(&self) -> u8 {
                self.id
            }
        }

        #[outbox_core::handler(consumer = "inside")]
        pub(crate) async fn on_inside(
            event: Inside,
            tx: &crate::handlers::Tx,
            _cx: outbox_core::Context,
        ) -> Result<(), outbox_core::HandlerError> {
            let _ = (event.id, tx);
            Ok(())
        }
    };
}

mod by_field {
    inside!(id);
}

mod by_method {
    inside!(self.id());
}

macro_rules! enum_event {
    ($name:ident, $key:ident, [$($variant:ident($ty:ty)),*]) => {
        #[derive(serde::Serialize, serde::Deserialize, IntegrationEvent)]
        #[event(subject = "shop.any", key = $key)]
        enum $name {
            $($variant { $key: $ty }),*
        }
    };
}

enum_event!(Any, id, [A(u8), B(String)]);

#[test]
fn events_have_what_the_macro_was_given() {
    assert_eq!(Placed::TYPE, "shop.orders.placed");
    assert_eq!(Placed::VERSION, 3);
    assert_eq!(
        Placed {
            order_id: Some("o-1".to_owned())
        }
        .key()
        .as_deref(),
        Some("o-1")
    );
    assert_eq!(Cancelled { order_id: 7 }.key().as_deref(), Some("7"));
    assert_eq!(by_field::Inside { id: 1 }.key().as_deref(), Some("1"));
    assert_eq!(by_method::Inside { id: 1 }.key().as_deref(), Some("1"));
    assert_eq!(Any::A { id: 1 }.key().as_deref(), Some("1"));
    assert_eq!(Any::B { id: "b".to_owned() }.key().as_deref(), Some("b"));
}

#[test]
fn handlers_are_handlers() {
    takes_transaction::<u8, _>(on_placed {});
    takes_transaction::<u8, _>(on_cancelled {});
    takes_transaction::<(), _>(by_field::on_inside {});
    takes_transaction::<(), _>(by_method::on_inside {});
}
