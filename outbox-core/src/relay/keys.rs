//! What the relay knows of an ordering key.

use std::{collections::HashMap, collections::VecDeque, sync::Arc};

use super::slab::Token;

/// A key of which rows are in the relay's hands or held.
#[derive(Debug, Default)]
pub(super) struct Key {
    /// One row of it is on its way to the broker, or next to go.
    pub(super) active: bool,
    /// Rows from the outbox that wait for it, in order.
    pub(super) queue: VecDeque<Token>,
    /// Set while rows of it are held, or may be.
    pub(super) held: Option<HeldKey>,
}

/// The held part of a key.
#[derive(Debug, Default)]
pub(super) struct HeldKey {
    /// Moves to the held table that are not settled.
    pub(super) moves: usize,
    /// Moves begun so far: a read that is older than one of them says nothing about its row.
    pub(super) begun: u64,
    /// Moves and changes of its head that are not settled: reading now could miss the head.
    pub(super) heads: usize,
    /// Held rows that are acknowledged and not yet deleted.
    pub(super) unsettled: Vec<i64>,
    /// How far its held rows have been taken up again.
    pub(super) drain: Drain,
}

/// Taking up the held rows of a key, in order, the next at the acknowledgement of the one before.
#[derive(Debug, Default)]
pub(super) enum Drain {
    /// Nothing to do until its head is due.
    #[default]
    Idle,
    /// To be read as soon as what is unsettled allows it.
    Wanted,
    /// Being read.
    Reading,
    /// These follow the active row.
    Sending(VecDeque<Token>),
}

impl Drain {
    /// The head has gone and the followers are being taken up.
    pub(super) const fn recovering(&self) -> bool {
        !matches!(self, Self::Idle)
    }
}

/// All keys in hand or held.
#[derive(Debug, Default)]
pub(super) struct Keys(HashMap<Arc<str>, Key>);

impl Keys {
    pub(super) fn get(&self, name: &str) -> Option<&Key> {
        self.0.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Key> {
        self.0.get_mut(name)
    }

    /// The shared form of a key's name.
    pub(super) fn shared(&self, name: &str) -> Arc<str> {
        self.0
            .get_key_value(name)
            .map_or_else(|| Arc::from(name), |(shared, _)| Arc::clone(shared))
    }

    /// The key of this name, made if need be.
    pub(super) fn entry(&mut self, name: &Arc<str>) -> &mut Key {
        self.0.entry(Arc::clone(name)).or_default()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The keys whose held rows are being taken up.
    pub(super) fn recovering(&self) -> impl Iterator<Item = &Arc<str>> {
        let recovering =
            |key: &Key| (key.held.as_ref()).is_some_and(|held| held.drain.recovering());
        self.0
            .iter()
            .filter(move |(_, key)| recovering(key))
            .map(|(name, _)| name)
    }

    pub(super) fn any_held(&self) -> bool {
        self.0.values().any(|key| key.held.is_some())
    }
}
