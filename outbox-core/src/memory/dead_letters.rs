//! Dead letters of the in-process broker.

use std::sync::Arc;

use super::{State, cursor::Entry};
use crate::broker::DeadLetter;

impl State {
    /// Adds a letter unless the same copy is there already.
    pub(super) fn add_letter(&mut self, letter: &DeadLetter) {
        let same =
            |other: &DeadLetter| other.consumer == letter.consumer && other.origin == letter.origin;
        if self.letters.values().any(same) {
            return;
        }
        self.last_letter += 1;
        self.letters.insert(self.last_letter, letter.clone());
    }

    /// A page is limited by number alone: the bodies are in memory, and are shared.
    pub(super) fn list_letters(
        &self,
        consumer: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Vec<(u64, DeadLetter)> {
        self.letters
            .range(after.saturating_add(1)..)
            .filter(|(_, letter)| consumer.is_none_or(|consumer| letter.consumer == consumer))
            .take(limit)
            .map(|(number, letter)| (*number, letter.clone()))
            .collect()
    }

    /// Sends a letter back to its consumer alone.
    pub(super) fn replay_letter(&mut self, number: u64) -> bool {
        let Some(letter) = self.letters.remove(&number) else {
            return false;
        };
        let entry = Entry {
            message: letter.message,
            origin: letter.origin,
            replay: Some(letter.replays.saturating_add(1)),
        };
        self.replays
            .entry(letter.consumer)
            .or_default()
            .push(Arc::new(entry));
        true
    }
}
