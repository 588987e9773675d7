//! How many messages are handled at once, and when more of them are asked for.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// As many slots as messages, or batches, are handled at once.
///
/// A slot has two halves. Its *room* is free when the handler has succeeded: then the next message is asked
/// for, and is on its way while this one's transaction commits. Its *turn* is free after the commit: only
/// then may the next one begin.
#[derive(Debug)]
pub(super) struct Slots {
    rooms: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    freed: Arc<Notify>,
}

impl Slots {
    pub(super) fn new(size: usize) -> Self {
        Self {
            rooms: Arc::new(Semaphore::new(size)),
            turns: Arc::new(Semaphore::new(size)),
            freed: Arc::default(),
        }
    }

    /// How many messages may be asked for.
    pub(super) fn free(&self) -> usize {
        self.rooms.available_permits()
    }

    /// Waits until there may be more room than before.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Waits for room. `None` once they are closed.
    pub(super) async fn take(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.rooms).acquire_owned().await.ok()?;
        let room = RoomPermit {
            permit: Some(permit),
            freed: Arc::clone(&self.freed),
        };
        Some(Slot {
            room: Room(Arc::new(Mutex::new(Some(room)))),
            turns: Arc::clone(&self.turns),
        })
    }

    /// Nothing begins any more: whoever waits for its turn is told that there will be none.
    pub(super) fn close(&self) {
        self.rooms.close();
        self.turns.close();
    }
}

/// A place for one message.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) room: Room,
    turns: Arc<Semaphore>,
}

impl Slot {
    /// Waits for the turn of its message. `None` if it has none any more.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let permit = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        Some(Turn { _permit: permit })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.room.leave();
    }
}

/// The right to handle a message.
#[derive(Debug)]
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// The room of a message. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room(Arc<Mutex<Option<RoomPermit>>>);

impl Room {
    /// Makes it free for another message, once.
    pub(crate) fn leave(&self) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(left);
    }
}

#[derive(Debug)]
struct RoomPermit {
    /// `None` only while it is dropped.
    permit: Option<OwnedSemaphorePermit>,
    freed: Arc<Notify>,
}

impl Drop for RoomPermit {
    fn drop(&mut self) {
        // In this order: whoever is woken finds it free.
        drop(self.permit.take());
        self.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_next_is_asked_for_before_its_turn_comes() {
        let slots = Slots::new(1);
        let first = slots.take().await.unwrap();
        let turn = first.turn().await.unwrap();
        assert_eq!(slots.free(), 0);
        first.room.clone().leave();
        first.room.leave();
        assert_eq!(slots.free(), 1, "once, however often it is left");
        slots.freed().now_or_never().expect("it is told");
        let second = slots.take().await.unwrap();
        assert!(
            second.turn().now_or_never().is_none(),
            "the first one commits"
        );
        drop((first, turn));
        assert_eq!(slots.free(), 0);
        assert!(second.turn().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_waits_for_its_turn_is_told_of_the_end() {
        let slots = Slots::new(1);
        let first = slots.take().await.unwrap();
        let _turn = first.turn().await.unwrap();
        first.room.leave();
        let second = slots.take().await.unwrap();
        let waiting = second.turn();
        slots.close();
        assert!(waiting.await.is_none());
        assert!(slots.take().await.is_none());
    }
}
