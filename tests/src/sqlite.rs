//! SQLite databases in temporary files.

use crate::WorkDir;

/// A SQLite database file, removed on drop.
#[derive(Debug)]
pub struct SqliteFile {
    dir: WorkDir,
}

impl SqliteFile {
    /// A database that does not exist yet: the first connection creates it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            dir: WorkDir::new("sqlite"),
        }
    }

    /// The URL of the database.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "sqlite://{}?mode=rwc",
            self.dir.path().join("test.db").display()
        )
    }
}

impl Default for SqliteFile {
    fn default() -> Self {
        Self::new()
    }
}
