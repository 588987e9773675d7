//! The lease: one owner at a time, handed over when it ran out or a clock was set back.

use std::time::Duration;

use outbox_core::{
    error::StoreErrorKind,
    store::{HeldReason, Lease, OutboxStore},
};
use outbox_tests::{TestDatabase, on_every_database};
use uuid::Uuid;

use crate::support::*;

const LENGTH: Duration = Duration::from_secs(10);

on_every_database! {
    async fn one_of_many_gets_it(db: TestDatabase) {
        let store = store(&db).await;
        for round in 1..=3 {
            let tries: Vec<_> = (0..8).map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    let owner = Uuid::new_v4();
                    store.acquire(TARGET, owner, LENGTH).await.expect("acquire").map(|epoch| (owner, epoch))
                })
            }).collect();
            let mut taken = Vec::new();
            for task in tries {
                taken.extend(task.await.expect("a task"));
            }
            assert_eq!(taken.len(), 1, "round {round}");
            let (owner, epoch) = taken[0];
            assert_eq!(epoch, round);
            store.release(&Lease { target: TARGET.to_owned(), owner, epoch, length: LENGTH }).await.expect("release");
        }
    }

    async fn it_is_taken_over_when_it_ran_out(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let old = lease(&store).await;
        clock.advance(LENGTH - Duration::from_millis(1));
        assert_eq!(store.acquire(TARGET, Uuid::new_v4(), LENGTH).await.expect("acquire"), None);
        store.renew(&old).await.expect("renew");
        clock.advance(LENGTH - Duration::from_millis(1));
        assert_eq!(store.acquire(TARGET, Uuid::new_v4(), LENGTH).await.expect("acquire"), None, "it was renewed");
        clock.advance(Duration::from_millis(1));
        store.renew(&old).await.expect("it ran out, but nobody has taken it");
        clock.advance(LENGTH);
        let new = lease(&store).await;
        assert_eq!(new.epoch, old.epoch + 1);
        assert_eq!(store.renew(&old).await.expect_err("lost").kind(), StoreErrorKind::Fenced);
        store.release(&old).await.expect("losing it before is no error");
        store.renew(&new).await.expect("and did not take it from its owner");
    }

    async fn it_is_taken_over_when_a_clock_was_set_back(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let start = clock.now();
        clock.set(start + Duration::from_secs(86_400));
        lease(&store).await;
        clock.set(start);
        lease(&store).await;
        clock.set(start - LENGTH + Duration::from_millis(1));
        assert_eq!(store.acquire(TARGET, Uuid::new_v4(), LENGTH).await.expect("acquire"), None, "less than twice its length ahead");
    }

    async fn a_released_lease_is_free_at_once(db: TestDatabase) {
        let (store, _clock) = store_with_clock(&db).await;
        let old = lease(&store).await;
        store.release(&old).await.expect("release");
        assert_eq!(store.renew(&old).await.expect_err("given up").kind(), StoreErrorKind::Fenced);
        lease(&store).await;
    }

    async fn targets_have_leases_of_their_own(db: TestDatabase) {
        let store = outbox_seaorm::SeaOrm::builder(db.connection.clone()).target("other").build().expect("a store");
        let store = migrated(store).await;
        lease(&store).await;
        assert_eq!(store.acquire("other", Uuid::new_v4(), LENGTH).await.expect("acquire"), Some(1));
        let error = store.acquire("third", Uuid::new_v4(), LENGTH).await.expect_err("unknown");
        assert_eq!(error.kind(), StoreErrorKind::Schema);
    }

    /// Whoever lost the lease changes nothing.
    async fn fenced_calls_change_nothing(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let mut scheduled = record(None);
        scheduled.delay = Some(Duration::ZERO);
        let rows = publish(&store, &[record(Some("k")), record(Some("k")), record(Some("k")), scheduled]).await;
        let old = lease(&store).await;
        store.hold(&old, &[to_held(&rows[1], HeldReason::Parked)]).await.expect("hold");
        clock.advance(2 * LENGTH);
        let new = lease(&store).await;
        let before = held(&store, all_held()).await;

        let change = outbox_core::store::HeldChange {
            id: before[0].id,
            message_id: before[0].row.id,
            reason: HeldReason::Dead,
            due_in: Duration::ZERO,
            attempts: 9,
            error: None,
        };
        for error in [
            store.hold(&old, &[to_held(&rows[0], HeldReason::Failing)]).await.expect_err("hold"),
            store.change_held(&old, std::slice::from_ref(&change)).await.expect_err("change"),
            store.release_due(&old, 10).await.expect_err("release due"),
            store.repair_heads(&old, false).await.expect_err("repair"),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Fenced);
        }
        assert_eq!(held(&store, all_held()).await, before);
        assert_eq!(read_ids(&store).await, [rows[0].id, rows[2].id]);
        store.change_held(&new, &[change]).await.expect("the owner may");
    }

    /// A fenced call renews the lease.
    async fn fenced_calls_renew(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let mine = lease(&store).await;
        clock.advance(LENGTH - Duration::from_millis(1));
        store.change_held(&mine, &[]).await.expect("change");
        clock.advance(LENGTH - Duration::from_millis(1));
        assert_eq!(store.acquire(TARGET, Uuid::new_v4(), LENGTH).await.expect("acquire"), None);
    }
}
