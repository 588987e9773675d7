//! A store that only has a transaction type.

use std::{error::Error, marker::PhantomData};

use outbox_core::{
    Store,
    error::{StoreError, StoreErrorKind},
    store::{OutboxRecord, Pool},
};

/// Never called: the tests look at constants and at which traits are implemented.
pub(crate) struct FakeStore<T>(PhantomData<fn() -> T>);

impl<T> Clone for FakeStore<T> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<T: Send + Sync + 'static> Store for FakeStore<T> {
    type Tx = T;

    async fn insert(&self, _: &T, _: &str, _: &[OutboxRecord]) -> Result<(), StoreError> {
        unreachable!()
    }

    async fn begin(&self, _: Pool) -> Result<T, StoreError> {
        unreachable!()
    }

    async fn commit(&self, _: T) -> Result<(), StoreError> {
        unreachable!()
    }

    async fn commit_with(&self, _: T, _: &str, _: Vec<OutboxRecord>) -> Result<(), StoreError> {
        unreachable!()
    }

    async fn rollback(&self, _: T) -> Result<(), StoreError> {
        unreachable!()
    }

    async fn ping(&self) -> Result<u64, StoreError> {
        unreachable!()
    }

    fn classify(&self, _: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
        unreachable!()
    }

    async fn check_schema(&self) -> Result<(), StoreError> {
        unreachable!()
    }
}
