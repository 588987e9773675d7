//! The relay's side.

mod admin;
mod archive;
mod fence;
mod floor;
mod held;
mod hold;
mod insert;
mod lease;
mod read;

use std::time::Duration;

use outbox_core::{
    error::StoreError,
    store::{
        ArchivedIds, ArchivedRow, Backlog, FloorProbe, HeldChange, HeldFilter, HeldRow, HoldMove,
        Lease, OutboxRow, OutboxStore, ReadQuery, Settled, SettledHeld,
    },
};
use uuid::Uuid;

pub(crate) use insert::insert;

use crate::SeaOrm;

impl OutboxStore for SeaOrm {
    async fn acquire(
        &self,
        target: &str,
        owner: Uuid,
        length: Duration,
    ) -> Result<Option<i64>, StoreError> {
        lease::acquire(self, target, owner, length).await
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        lease::renew(self, lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        lease::release(self, lease).await
    }

    async fn read(&self, target: &str, query: &ReadQuery) -> Result<Vec<OutboxRow>, StoreError> {
        read::read(self, target, query).await
    }

    async fn settle(&self, target: &str, rows: &[Settled]) -> Result<u64, StoreError> {
        read::settle(self, target, rows).await
    }

    async fn hold(&self, lease: &Lease, moves: &[HoldMove]) -> Result<(), StoreError> {
        hold::hold(self, lease, moves).await
    }

    async fn held(&self, target: &str, filter: &HeldFilter) -> Result<Vec<HeldRow>, StoreError> {
        held::held(self, target, filter).await
    }

    async fn held_keys(&self, target: &str, dead_too: bool) -> Result<Vec<String>, StoreError> {
        held::keys(self, target, dead_too).await
    }

    async fn change_held(&self, lease: &Lease, changes: &[HeldChange]) -> Result<(), StoreError> {
        hold::change(self, lease, changes).await
    }

    async fn settle_held(&self, target: &str, rows: &[(i64, Uuid)]) -> Result<u64, StoreError> {
        hold::settle(self, target, rows).await
    }

    async fn archive(&self, target: &str, rows: &[Settled]) -> Result<u64, StoreError> {
        archive::archive(self, target, rows).await
    }

    async fn archive_held(&self, target: &str, rows: &[SettledHeld]) -> Result<u64, StoreError> {
        archive::archive_held(self, target, rows).await
    }

    async fn prune_archive(
        &self,
        target: &str,
        age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError> {
        archive::prune(self, target, age, limit).await
    }

    async fn archived_ids(
        &self,
        target: &str,
        oldest: Option<Duration>,
        newest: Option<Duration>,
    ) -> Result<Option<ArchivedIds>, StoreError> {
        archive::ids(self, target, oldest, newest).await
    }

    async fn archived(
        &self,
        target: &str,
        ids: ArchivedIds,
        limit: u32,
    ) -> Result<Vec<ArchivedRow>, StoreError> {
        archive::rows(self, target, ids, limit).await
    }

    async fn republish(&self, target: &str, rows: &[(i64, Uuid)]) -> Result<u64, StoreError> {
        archive::republish(self, target, rows).await
    }

    async fn release_due(&self, lease: &Lease, limit: u32) -> Result<u64, StoreError> {
        hold::release_due(self, lease, limit).await
    }

    async fn repair_heads(&self, lease: &Lease, dead_blocks: bool) -> Result<u64, StoreError> {
        hold::repair_heads(self, lease, dead_blocks).await
    }

    async fn next_due(&self, target: &str) -> Result<Option<Duration>, StoreError> {
        held::next_due(self, target).await
    }

    async fn probe_floor(
        &self,
        target: &str,
        last: Option<FloorProbe>,
    ) -> Result<Option<FloorProbe>, StoreError> {
        floor::probe(self, target, last).await
    }

    async fn backlog(&self, target: &str) -> Result<Backlog, StoreError> {
        admin::backlog(self, target).await
    }

    async fn held_row(&self, target: &str, id: i64) -> Result<Option<HeldRow>, StoreError> {
        held::row(self, target, id).await
    }

    async fn replay_dead(&self, target: &str, id: i64) -> Result<bool, StoreError> {
        admin::replay_dead(self, target, id).await
    }

    async fn discard_dead(&self, target: &str, id: i64) -> Result<bool, StoreError> {
        admin::discard_dead(self, target, id).await
    }
}
