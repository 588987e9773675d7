//! The held table: rows get there and back without being lost, doubled or changed.

use std::time::Duration;

use outbox_core::store::{HeldChange, HeldFilter, HeldReason, HeldRow, OutboxStore};
use outbox_tests::{TestDatabase, on_every_database};
use uuid::Uuid;

use crate::support::*;

fn change(row: &HeldRow, reason: HeldReason, attempts: u32, error: Option<&str>) -> HeldChange {
    HeldChange {
        id: row.id,
        message_id: row.row.id,
        reason,
        due_in: Duration::from_secs(5),
        attempts,
        error: error.map(str::to_owned),
    }
}

fn ids(rows: &[HeldRow]) -> Vec<Uuid> {
    rows.iter().map(|row| row.row.id).collect()
}

on_every_database! {
    async fn a_moved_row_keeps_all_it_had(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let mut first = record(Some("k 🦀 "));
        first.headers = "a: b 🦀\n".to_owned();
        first.payload = vec![0, 255, 7].into();
        first.version = 3;
        let rows = publish(&store, &[first, record(None)]).await;
        clock.advance(Duration::from_secs(3));
        let lease = lease(&store).await;
        let mut row = to_held(&rows[0], HeldReason::Failing);
        row.due_in = Duration::from_secs(7);
        row.attempts = 2;
        store.hold(&lease, &[row]).await.expect("hold");
        assert_eq!(read_ids(&store).await, [rows[1].id]);
        let moved = held(&store, all_held()).await;
        assert_eq!(moved.len(), 1);
        assert_eq!(moved[0].row, rows[0]);
        assert_eq!((moved[0].reason, moved[0].attempts, moved[0].due_in), (HeldReason::Failing, 2, Duration::from_secs(7)));
        assert_eq!((moved[0].first_error.as_deref(), moved[0].last_error.as_deref()), (Some("first"), Some("first")));
        assert_eq!((moved[0].held_at, moved[0].changed_at), (moved[0].row.occurred_at + Duration::from_secs(3), moved[0].held_at));
        assert_eq!(store.held_row(TARGET, moved[0].id).await.expect("read").as_ref(), Some(&moved[0]));
        assert_eq!(store.held_row("other", moved[0].id).await.expect("read"), None);
        assert_eq!(store.held_row(TARGET, 999).await.expect("read"), None);
    }

    async fn all_are_moved_or_none(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..600).map(|_| record(None)).collect::<Vec<_>>()).await;
        let lease = lease(&store).await;
        let mut moves: Vec<_> = rows.iter().map(|row| to_held(row, HeldReason::Waiting)).collect();
        moves[550].id = Uuid::now_v7();
        let error = store.hold(&lease, &moves).await.expect_err("one is not there");
        assert_eq!(error.operation(), "move rows to the held table");
        assert_eq!(read_ids(&store).await.len(), 600);
        assert!(held(&store, all_held()).await.is_empty());
        moves[550].id = rows[550].id;
        moves.push(moves[0].clone());
        store.hold(&lease, &moves).await.expect_err("one stands twice");
        assert_eq!((read_ids(&store).await.len(), held(&store, all_held()).await.len()), (600, 0));
        moves.pop();
        store.hold(&lease, &moves).await.expect("hold");
        assert!(read_ids(&store).await.is_empty());
        assert_eq!(ids(&held(&store, all_held()).await), rows.iter().map(|row| row.id).collect::<Vec<_>>(), "in order");
        store.hold(&lease, &[]).await.expect("nothing is fine too");
    }

    async fn the_first_error_stays(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let rows = publish(&store, &[record(None), record(None)]).await;
        let lease = lease(&store).await;
        store.hold(&lease, &[to_held(&rows[0], HeldReason::Failing), to_held(&rows[1], HeldReason::Waiting)]).await.expect("hold");
        let before = held(&store, all_held()).await;
        assert_eq!(before[1].first_error, None);
        clock.advance(Duration::from_secs(1));
        let long = "🦀".repeat(1000);
        store.change_held(&lease, &[
            change(&before[0], HeldReason::Dead, 7, Some("second")),
            change(&before[1], HeldReason::Failing, 1, Some(&long)),
        ]).await.expect("change");
        let after = held(&store, all_held()).await;
        assert_eq!((after[0].reason, after[0].attempts, after[0].due_in), (HeldReason::Dead, 7, Duration::from_secs(5)));
        assert_eq!((after[0].first_error.as_deref(), after[0].last_error.as_deref()), (Some("first"), Some("second")));
        assert_eq!(after[0].changed_at - after[0].held_at, Duration::from_secs(1));
        assert_eq!(after[1].first_error.as_deref(), Some(&long[..2000]));
        store.change_held(&lease, &[change(&before[0], HeldReason::Failing, 8, None)]).await.expect("change");
        let after = held(&store, all_held()).await;
        assert_eq!(after[0].last_error.as_deref(), Some("second"), "no error leaves the last one");
        let mut wrong = change(&before[0], HeldReason::Parked, 0, None);
        wrong.message_id = Uuid::now_v7();
        store.change_held(&lease, &[wrong]).await.expect("change");
        assert_eq!(held(&store, all_held()).await, after, "another message's row is left alone");
    }

    async fn filters_select(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let mut records: Vec<_> = (0..8).map(|number| record(["a", "b", "A", "a "].get(number % 4).copied())).collect();
        records[6].key = None;
        records[7].subject = "shop.other".to_owned();
        records[7].payload = vec![1; 100].into();
        let rows = publish(&store, &records).await;
        let lease = lease(&store).await;
        let reasons = [HeldReason::Failing, HeldReason::Parked, HeldReason::Waiting, HeldReason::Dead];
        let moves: Vec<_> = rows.iter().rev().enumerate().map(|(number, row)| {
            let mut row = to_held(row, reasons[number % 4]);
            row.due_in = Duration::from_secs(number as u64);
            row
        }).collect();
        store.hold(&lease, &moves).await.expect("hold");
        let select = async |filter: HeldFilter| -> Vec<usize> {
            let found = held(&store, filter).await;
            found.iter().map(|row| rows.iter().position(|other| other.id == row.row.id).expect("known")).collect()
        };
        assert_eq!(select(all_held()).await, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(select(HeldFilter { reasons: vec![HeldReason::Failing, HeldReason::Dead], ..all_held() }).await, [0, 3, 4, 7]);
        assert_eq!(select(HeldFilter { key: Some("a".to_owned()), ..all_held() }).await, [0, 4], "keys are compared by bytes");
        assert_eq!(select(HeldFilter { exclude_keys: vec!["a".to_owned(), "A".to_owned(), "x".to_owned()], ..all_held() }).await, [1, 3, 5, 6, 7]);
        assert_eq!(select(HeldFilter { exclude_subjects: vec!["shop.other".to_owned()], limit: 2, ..all_held() }).await, [0, 1]);
        clock.advance(Duration::from_secs(2));
        assert_eq!(select(HeldFilter { due: true, ..all_held() }).await, [5, 6, 7]);
        assert_eq!(select(HeldFilter { max_bytes: 5, ..all_held() }).await, [0, 1]);
        assert_eq!(select(HeldFilter { max_bytes: 0, ..all_held() }).await, [0]);
        assert!(select(HeldFilter { limit: 0, ..all_held() }).await.is_empty());

        let mut page = HeldFilter { after_id: Some(0), limit: 3, ..all_held() };
        let mut seen = Vec::new();
        loop {
            let rows = held(&store, page.clone()).await;
            assert!(rows.is_sorted_by_key(|row| row.id));
            let Some(last) = rows.last() else { break };
            page.after_id = Some(last.id);
            seen.extend(ids(&rows));
        }
        assert_eq!(seen.len(), 8);
        let exclude_ids = held(&store, all_held()).await[..6].iter().map(|row| row.id).collect();
        assert_eq!(select(HeldFilter { exclude_ids, ..all_held() }).await, [6, 7]);
    }

    async fn held_keys_are_those_that_hold_followers_back(db: TestDatabase) {
        let (store, _clock) = store_with_clock(&db).await;
        let mut scheduled = record(Some("scheduled"));
        scheduled.delay = Some(MINUTE);
        let rows = publish(&store, &[record(Some("x ")), record(Some("x")), record(Some("x")), record(Some("dead")), record(None), scheduled]).await;
        let lease = lease(&store).await;
        let reasons = [HeldReason::Failing, HeldReason::Failing, HeldReason::Parked, HeldReason::Dead, HeldReason::Waiting];
        let moves: Vec<_> = rows.iter().zip(reasons).map(|(row, reason)| to_held(row, reason)).collect();
        store.hold(&lease, &moves).await.expect("hold");
        let keys = async |dead| {
            let mut keys = store.held_keys(TARGET, dead).await.expect("keys");
            keys.sort_unstable();
            keys
        };
        assert_eq!(keys(false).await, ["x", "x "]);
        assert_eq!(keys(true).await, ["dead", "x", "x "]);
    }

    async fn keys_without_a_head_get_one(db: TestDatabase) {
        let (store, _clock) = store_with_clock(&db).await;
        let keys = ["parked", "parked", "headed", "headed", "dead", "dead", "waits", "waits"];
        let rows = publish(&store, &keys.map(|key| record(Some(key)))).await;
        let lease = lease(&store).await;
        let reasons = [
            HeldReason::Parked, HeldReason::Parked, HeldReason::Failing, HeldReason::Parked,
            HeldReason::Dead, HeldReason::Parked, HeldReason::Waiting, HeldReason::Parked,
        ];
        let moves = rows.iter().zip(reasons).map(|(row, reason)| {
            let mut row = to_held(row, reason);
            row.due_in = MINUTE;
            row
        });
        store.hold(&lease, &moves.collect::<Vec<_>>()).await.expect("hold");
        assert_eq!(store.repair_heads(&lease, true).await.expect("repair"), 1);
        assert_eq!(store.repair_heads(&lease, true).await.expect("repair"), 0);
        let after = held(&store, all_held()).await;
        let reasons: Vec<_> = after.iter().map(|row| row.reason).collect();
        assert_eq!(reasons[..2], [HeldReason::Failing, HeldReason::Parked], "the lowest is the head");
        assert_eq!(after[0].due_in, Duration::ZERO);
        assert_eq!(reasons[4..6], [HeldReason::Dead, HeldReason::Parked], "a dead row blocks");
        assert_eq!(store.repair_heads(&lease, false).await.expect("repair"), 1);
        assert_eq!(held(&store, all_held()).await[5].reason, HeldReason::Failing);
    }

    async fn settling_asks_for_id_and_message(db: TestDatabase) {
        let store = store(&db).await;
        let rows = publish(&store, &(0..3).map(|_| record(None)).collect::<Vec<_>>()).await;
        let lease = lease(&store).await;
        store.hold(&lease, &rows.iter().map(|row| to_held(row, HeldReason::Failing)).collect::<Vec<_>>()).await.expect("hold");
        let all = held(&store, all_held()).await;
        let pairs = [(all[0].id, all[0].row.id), (all[1].id, all[0].row.id)];
        assert_eq!(store.settle_held("other", &pairs).await.expect("settle"), 0);
        assert_eq!(store.settle_held(TARGET, &pairs).await.expect("settle"), 1);
        assert_eq!(ids(&held(&store, all_held()).await), [rows[1].id, rows[2].id]);
    }

    async fn only_dead_rows_are_replayed_and_discarded(db: TestDatabase) {
        let (store, clock) = store_with_clock(&db).await;
        let rows = publish(&store, &[record(None), record(None)]).await;
        let lease = lease(&store).await;
        let mut dead = to_held(&rows[0], HeldReason::Dead);
        dead.due_in = MINUTE;
        dead.attempts = 10;
        store.hold(&lease, &[dead, to_held(&rows[1], HeldReason::Parked)]).await.expect("hold");
        let all = held(&store, all_held()).await;
        assert!(!store.replay_dead(TARGET, all[1].id).await.expect("replay"));
        assert!(!store.discard_dead(TARGET, all[1].id).await.expect("discard"));
        assert!(!store.replay_dead("other", all[0].id).await.expect("replay"));
        clock.advance(MINUTE);
        assert!(store.replay_dead(TARGET, all[0].id).await.expect("replay"));
        let row = store.held_row(TARGET, all[0].id).await.expect("read").expect("still there");
        assert_eq!((row.reason, row.attempts, row.due_in), (HeldReason::Failing, 0, Duration::ZERO));
        assert!(!store.replay_dead(TARGET, all[0].id).await.expect("not dead any more"));
        assert!(!store.discard_dead(TARGET, all[0].id).await.expect("not dead any more"));
        store.change_held(&lease, &[change(&row, HeldReason::Dead, 1, None)]).await.expect("change");
        assert!(store.discard_dead(TARGET, row.id).await.expect("discard"));
        assert!(!store.discard_dead(TARGET, row.id).await.expect("gone"));
    }
}
