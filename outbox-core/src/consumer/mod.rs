//! Consuming: from a delivery to a committed effect.
//!
//! * what users write against: `context`, `error`, `extract`, `handler`, `options`, `mount`;
//! * requests and responses of the layers: `delivery`, `transacted`, `failure`, `routes`;
//! * the runtime's side: `pump` (subscription to attempts), `attempt` (one delivery from arrival to
//!   settlement), `batch` (several in one transaction), `verdict` (outage, busy, or failure), `alone`, `outage`, `settings`,
//!   `signs` (of life), `slots`, `status`.

mod alone;
mod attempt;
mod batch;
mod context;
mod delivery;
mod error;
mod extract;
mod failure;
mod group;
mod handler;
mod mount;
mod options;
mod outage;
mod pump;
mod routes;
mod settings;
mod signs;
mod slots;
mod status;
mod transacted;
mod verdict;

pub use context::Context;
pub use delivery::{Delivery, DeliveryService, Outcome};
pub use error::{HandlerError, HandlerErrorKind, HandlerReturn};
pub use extract::{EventArgument, FromDelivery, FromRef, State};
pub use failure::{DeliveryError, DeliveryErrorKind};
pub(crate) use group::Group;
pub use handler::{Handler, HandlerCall, HandlerFuture, WithoutTransaction};
pub(crate) use mount::Built;
pub use mount::Consumer;
pub use options::HandlerOptions;
pub(crate) use outage::DatabaseWatch;
pub use settings::BuildError;
pub(crate) use status::SharedConsumerStatus;
pub use status::{ConsumerState, ConsumerStatus};
pub use transacted::{Finished, Transacted, TransactedService};
