//! Every failure, driven on purpose.

mod clocks;
mod histories;
mod matrix;
mod pooler;
mod walk;
