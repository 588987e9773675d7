//! What is logged, for tests that read it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::{filter::LevelFilter, fmt::format::FmtSpan, util::SubscriberInitExt};

/// The log of one thread: of a whole test, if it runs in a runtime of one thread.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects what this thread logs at `level` and above until the guard is dropped, ends of spans
    /// included.
    #[must_use]
    pub fn of_this_thread(level: LevelFilter) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(move || writer.clone())
            .finish();
        (log, subscriber.set_default())
    }

    /// The lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8(log.clone()).expect("a log in UTF-8");
        // Not `lines()`, which takes a carriage return for a part of the line's end.
        text.trim_end().split('\n').map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
