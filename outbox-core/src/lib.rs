#![doc = include_str!("../docs/crate.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// The macros expand to `::outbox_core::..`, also in this crate's own documentation and tests.
#[allow(unused_extern_crates, reason = "used by what the macros expand to")]
extern crate self as outbox_core;

pub mod broker;
pub mod error;
pub mod store;
pub mod wire;

/// No part of the public interface.
#[doc(hidden)]
pub mod failpoint;

mod bus;
mod consumer;
mod envelope;
mod event;
mod headers;
mod layer;
mod memory;
mod operate;
mod policy;
mod relay;
mod runtime;
mod subject;
mod telemetry;

pub use broker::Broker;
pub use bus::{Bus, BusBuilder, DEFAULT_ENVELOPE_LIMIT, DEFAULT_TARGET, Publish, Unit};
pub use consumer::{
    BuildError, Consumer, ConsumerState, ConsumerStatus, Context, Delivery, DeliveryError,
    DeliveryErrorKind, DeliveryService, Finished, FromDelivery, FromRef, Handler, HandlerCall,
    HandlerError, HandlerErrorKind, HandlerFuture, HandlerOptions, HandlerReturn, Outcome, State,
    Transacted, TransactedService, WithoutTransaction,
};
pub use envelope::{Envelope, TraceContext};
pub use error::BoxError;
pub use event::{IntegrationEvent, OrderingKey, decode};
pub use headers::Headers;
pub use layer::{Inbox, InboxLayer};
pub use memory::{MemoryBroker, MemoryHandle, MemoryPublisher, MemorySubscription};
pub use operate::{
    Audit, AuditRange, AuditReport, DeadLetterDetail, DeadLetterFilter, DeadLetterId,
    DeadLetterSummary, DeadLetters, InvalidDeadLetterId, MissingMessage, OperateError,
};
#[cfg(feature = "macros")]
#[cfg_attr(docsrs, doc(cfg(feature = "macros")))]
pub use outbox_macros::{IntegrationEvent, handler};
pub use policy::Backoff;
pub use relay::{
    DeadHead, DispatchError, Dispatched, Relay, RelayOptions, RelayState, RelayStatus, Retention,
};
pub use runtime::{Health, HealthReport, Runtime, RuntimeError, Stopped};
pub use store::{OpenTx, Store};
pub use subject::{MAX_SUBJECT, check_subject, subject_matches};

/// What the macros expand to. No part of the public interface.
#[doc(hidden)]
pub mod __private {
    pub use std::{
        borrow::Cow,
        boxed::Box,
        option::Option::{self, None, Some},
        primitive::{str, u8, u16},
        result::Result::{self, Err, Ok},
        time::Duration,
        vec::Vec,
    };

    pub use serde::{Serialize, de::DeserializeOwned};

    pub use crate::{
        consumer::{
            EventArgument, FromDelivery, FromRef, Handler, HandlerCall, HandlerError,
            HandlerFuture, HandlerOptions, HandlerReturn, WithoutTransaction,
        },
        envelope::Envelope,
        error::DecodeError,
        event::{IntegrationEvent, OrderingKey, decode},
        policy::Backoff,
        store::Store,
    };
}
