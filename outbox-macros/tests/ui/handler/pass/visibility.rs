//! The struct is as visible as the function, whatever its arguments are.

#[path = "../../support.rs"]
mod support;

mod handlers {
    use outbox_core::{FromRef, HandlerError, State, handler};

    use crate::support::{OrderPlaced, Tx};

    #[derive(Clone)]
    struct Private;

    impl FromRef<u8> for Private {
        fn from_ref(_: &u8) -> Self {
            Self
        }
    }

    #[allow(private_interfaces)]
    #[handler(consumer = "a")]
    pub async fn public(_: OrderPlaced, _: &Tx, _: State<Private>) -> Result<(), HandlerError> {
        Ok(())
    }

    #[handler(consumer = "a")]
    pub(super) async fn of_the_crate(_: OrderPlaced) -> Result<(), HandlerError> {
        Ok(())
    }
}

use handlers::{of_the_crate, public};
use support::mount;

#[allow(dead_code)]
fn mounts<S: outbox_core::Store<Tx = support::Tx>>() {
    mount::<S, u8, _>(public {});
    mount::<S, u8, _>(of_the_crate {});
}

fn main() {}
