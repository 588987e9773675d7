//! Runnable programs that show outbox at work.
