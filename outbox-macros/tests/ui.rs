//! What the compiler says to those who misuse the macros, and that it says nothing else.
//!
//! One case: `cargo test -p outbox-macros --test ui -- ui trybuild=event/fail/subject`. New output:
//! with `TRYBUILD=overwrite`.

#![allow(missing_docs)]

use std::process::Command;

/// The compiler's wording changes between releases; the files were written by this one.
const PINNED: &str = "rustc 1.95.";

#[test]
fn ui() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let pinned = version.is_ok_and(|output| output.stdout.starts_with(PINNED.as_bytes()));
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/*/pass/*.rs");
    if pinned {
        cases.compile_fail("tests/ui/*/fail/*.rs");
    }
}
