//! Directories of servers and children, and the guard that cleans up after the test process.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crate::user::User;

/// Reads until the test process is gone, kills what still works below `$1`, and removes it with the
/// shared memory of killed PostgreSQL servers (line 7 of the pid file: its key and id).
const GUARD: &str = r#"
cat >/dev/null
for signal in TERM KILL KILL; do
  for process in /proc/[0-9]*; do
    case "$(readlink "$process/cwd")" in "$1"/*) kill -$signal "${process#/proc/}" ;; esac
  done
  sleep 0.2
done
for file in "$1"/postgres-*/data/postmaster.pid; do
  ipcrm -m "$(sed -n '7s/.* //p' "$file")"
done
for round in 1 2 3 4 5; do rm -rf -- "$1" && exit; sleep 0.2; done
"#;

/// The variable that names the directory for the servers' throw-away data.
pub const DATA_DIR: &str = "OUTBOX_TEST_DATA_DIR";

/// The directory below which everything of this process lives.
struct Root {
    path: PathBuf,
    /// The kernel closes its standard input when this process ends, in whatever way.
    _guard: Child,
}

static ROOT: LazyLock<Root> = LazyLock::new(|| {
    let path = tempfile::Builder::new()
        .prefix("outbox-tests-")
        .tempdir_in(parent())
        .expect("create a temporary directory")
        .keep();
    // Servers run under other accounts and must get through.
    std::fs::set_permissions(&path, Permissions::from_mode(0o711)).expect("chmod");
    let guard = Command::new("sh")
        .args(["-c", GUARD, "guard"])
        .arg(&path)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for the tests; the guard has work left then.
        .process_group(0)
        .spawn()
        .expect("start the guard (sh)");
    Root {
        path,
        _guard: guard,
    }
});

/// Where the root is made: in memory where there is room, since PostgreSQL then creates a database
/// ten times faster.
fn parent() -> PathBuf {
    const ROOM: u64 = 4 << 30;
    if let Some(chosen) = std::env::var_os(DATA_DIR) {
        return chosen.into();
    }
    let memory = Path::new("/dev/shm");
    let has_room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= ROOM);
    if has_room {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// A directory of its own for one server or child, removed on drop.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    /// Creates an empty directory whose name begins with `name`.
    ///
    /// # Panics
    ///
    /// When the directory cannot be created.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(&ROOT.path)
            .expect("create a directory")
            .keep();
        Self { path }
    }

    /// Creates a directory that belongs to `user`.
    pub(crate) fn owned_by(name: &str, user: Option<User>) -> Self {
        let dir = Self::new(name);
        if let Some(user) = user {
            user.own(&dir.path);
        }
        dir
    }

    /// Where the directory is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Should a dying process still write here, the guard removes the rest.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
