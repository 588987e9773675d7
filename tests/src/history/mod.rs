//! Histories: a shop with every way to publish and every way for a handler to fail, and what must be
//! true of it when all is quiet, whatever broke meanwhile.
//!
//! | file | what |
//! |---|---|
//! | `plan` | what a seed says about each order: how it is placed, and what its handler does |
//! | `shop` | the events, the handlers and the tables; placing an order |
//! | `node` | a process that places, relays, ships and operates, and can be told where to die |
//! | `check` | what must be true at the end |
//! | `world` | servers and processes of one history |
//! | `faults` | breaking them at random |

mod check;
mod faults;
mod node;
mod plan;
mod shop;
mod world;

pub use self::check::{Findings, check};
pub use self::faults::{Fault, Restart, Storm};
pub use self::node::{KEEP, KILL_AT, LISTING, ORDERS, PACE, PLACED, SEED, STOP_AT, run_node};
pub use self::plan::{Handling, Plan, Planned, Publishing, SLOT};
pub use self::world::{Settings, World};
