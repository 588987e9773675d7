#![doc = include_str!("../docs/crate.md")]
// Without a database the crate is empty.
#![cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(
        dead_code,
        unused_imports,
        reason = "some of it serves the databases that are not enabled"
    )
)]

mod builder;
mod clock;
mod code;
mod connections;
mod dialect;
mod error;
mod guard;
mod inbox;
mod ledger;
mod migrate;
mod outbox;
mod persistent;
mod retry;
mod rows;
mod schema;
mod sentinel;
mod store;
mod tables;
mod text;

pub use builder::SeaOrmBuilder;
pub use clock::{Clock, ManualClock};
pub use error::DatabaseError;
pub use schema::migration_sql;
pub use store::SeaOrm;
pub use tables::NameError;
