//! One child process with its descendants, and the signals that hurt it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::eventually;
use crate::tree::{descendants, freeze, kill_tree, pid, signal};
use crate::user::User;

/// How a process is started, each time anew.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables added to its environment.
    pub envs: Vec<(OsString, OsString)>,
    /// The directory in which it works and logs.
    pub dir: PathBuf,
    /// The signal that asks it to stop.
    pub stop: Signal,
    pub(crate) user: Option<User>,
}

impl Recipe {
    /// A program that works in `dir` and stops on SIGTERM.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, dir: &Path) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
            dir: dir.to_owned(),
            stop: Signal::TERM,
            user: None,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The file that receives what the process prints.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log.txt")
    }

    /// The command, in a process group of its own so that Ctrl-C reaches only the tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.envs.iter().cloned());
        command
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .process_group(0);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    /// The log, opened for appending.
    pub(crate) fn open_log(&self) -> File {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap_or_else(|error| panic!("open {}: {error}", self.log().display()))
    }
}

/// A running server that can be killed, frozen, and started again; killed on drop.
#[derive(Debug)]
pub struct ServerProcess {
    recipe: Recipe,
    child: Mutex<Child>,
}

impl ServerProcess {
    /// Starts the process.
    ///
    /// # Panics
    ///
    /// When the program cannot be started.
    #[must_use]
    pub fn spawn(recipe: Recipe) -> Self {
        let child = Mutex::new(start(&recipe));
        Self { recipe, child }
    }

    /// Starts the process again, killing it first if it still runs.
    ///
    /// # Panics
    ///
    /// When the program cannot be started.
    pub fn respawn(&self) {
        let mut child = self.child();
        kill_tree(&mut child);
        *child = start(&self.recipe);
    }

    /// Kills the process and its descendants with SIGKILL, as a power cut would.
    pub fn kill(&self) {
        kill_tree(&mut self.child());
    }

    /// Asks the process to stop, and waits until it has.
    ///
    /// # Panics
    ///
    /// When it does not stop within 30 seconds.
    pub async fn terminate(&self) -> ExitStatus {
        signal(pid(&self.child()), self.recipe.stop);
        let what = format!("{} stops", self.recipe.program.display());
        eventually(&what, Duration::from_secs(30), async || self.exit_status()).await
    }

    /// Stops the process and its descendants with SIGSTOP: connections stay open, nothing answers.
    pub fn freeze(&self) {
        freeze(pid(&self.child()));
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        let pid = pid(&self.child());
        for each in descendants(pid) {
            signal(each, Signal::CONT);
        }
        signal(pid, Signal::CONT);
    }

    /// How the process ended, `None` while it runs.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("wait for the process")
    }

    /// The last lines that the process printed.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.recipe.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start(recipe: &Recipe) -> Child {
    let log = recipe.open_log();
    let copy = log.try_clone().expect("duplicate the log's handle");
    recipe
        .command()
        .stdout(log)
        .stderr(copy)
        .spawn()
        .unwrap_or_else(|error| panic!("start {}: {error}", recipe.program.display()))
}
