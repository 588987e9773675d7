//! Data directories that are initialised once and then copied.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tokio::sync::Mutex;

use crate::WorkDir;
use crate::user::User;

/// The variable that names the directory of templates shared by several test processes.
pub const TEMPLATES: &str = "OUTBOX_TEST_TEMPLATES";

/// Serialises the making of templates within this process.
static MAKING: Mutex<()> = Mutex::const_new(());

/// The templates of this process, where no directory is shared.
static OWN: LazyLock<WorkDir> = LazyLock::new(|| WorkDir::new("templates"));

/// The directory of the templates that this process uses.
#[must_use]
pub fn templates() -> PathBuf {
    let shared = std::env::var_os(TEMPLATES).map(PathBuf::from);
    shared.unwrap_or_else(|| OWN.path().to_owned())
}

/// A data directory for `user` inside `dir`, with the content that `make` gives a fresh one.
pub(crate) async fn data_dir(
    name: &str,
    dir: &WorkDir,
    user: Option<User>,
    make: impl FnOnce(&Path) + Send + 'static,
) -> PathBuf {
    let template = template(name, user, make).await;
    let data = dir.path().join("data");
    let target = data.clone();
    blocking(move || copy(&template, &target)).await;
    data
}

async fn template(
    name: &str,
    user: Option<User>,
    make: impl FnOnce(&Path) + Send + 'static,
) -> PathBuf {
    let _making = MAKING.lock().await;
    let template = templates().join(name);
    if !template.exists() {
        let scratch = WorkDir::owned_by(name, user);
        let target = template.clone();
        blocking(move || {
            let made = scratch.path().join("data");
            make(&made);
            // Another process may have been faster; its template is as good.
            let _ = std::fs::rename(&made, &target);
        })
        .await;
    }
    assert!(template.exists(), "no template at {}", template.display());
    template
}

fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--reflink=auto"]).arg(from).arg(to);
    assert!(
        copy.status().expect("start cp").success(),
        "copy {}",
        from.display()
    );
}

/// Runs a command that makes a data directory.
///
/// # Panics
///
/// When it fails; the message holds what it printed.
pub(crate) fn run(mut command: Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("start {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

async fn blocking(work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(work)
        .await
        .expect("the data directory is made");
}
