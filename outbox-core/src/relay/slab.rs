//! A small slab: values with stable numbers, freed numbers used again.

/// The number of a row in the relay's hands.
pub(super) type Token = usize;

#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<Token>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Token {
        match self.free.pop() {
            Some(token) => {
                self.entries[token] = Some(value);
                token
            }
            None => {
                self.entries.push(Some(value));
                self.entries.len() - 1
            }
        }
    }

    pub(super) fn get(&self, token: Token) -> Option<&T> {
        self.entries.get(token)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        self.entries.get_mut(token)?.as_mut()
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<T> {
        let value = self.entries.get_mut(token)?.take()?;
        self.free.push(token);
        Some(value)
    }
}
