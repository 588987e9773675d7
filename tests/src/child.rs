//! Child processes of this package, for tests that kill them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;

use crate::tree::{freeze, kill_tree, pid, signal};
use crate::{Recipe, WorkDir, eventually};

/// What a child has printed.
#[derive(Debug, Default)]
struct Output {
    lines: Vec<String>,
    closed: bool,
}

/// A running child process whose standard output is read line by line; killed on drop.
#[derive(Debug)]
pub struct Child {
    process: Mutex<std::process::Child>,
    stdin: Mutex<Option<ChildStdin>>,
    output: watch::Receiver<Output>,
    recipe: Recipe,
    _dir: WorkDir,
}

impl Child {
    /// Starts a program, which a test names with `env!("CARGO_BIN_EXE_name")`.
    ///
    /// # Panics
    ///
    /// When the program cannot be started.
    #[must_use]
    pub fn spawn(program: impl AsRef<Path>, args: &[&str], envs: &[(&str, &str)]) -> Self {
        let dir = WorkDir::new("child");
        let mut recipe = Recipe::new(program.as_ref(), dir.path()).args(args);
        recipe.envs = envs
            .iter()
            .map(|&(name, value)| (name.into(), value.into()))
            .collect();
        let mut process = recipe
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(recipe.open_log())
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", recipe.program.display()));
        let stdin = Mutex::new(process.stdin.take());
        let stdout = BufReader::new(process.stdout.take().expect("stdout is a pipe"));
        let (printed, output) = watch::channel(Output::default());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                printed.send_modify(|output| output.lines.push(line));
            }
            printed.send_modify(|output| output.closed = true);
        });
        Self {
            process: Mutex::new(process),
            stdin,
            output,
            recipe,
            _dir: dir,
        }
    }

    /// The first line that the child prints, or has printed, that contains `text`.
    ///
    /// # Panics
    ///
    /// When there is none within `deadline`, or the child closes its output before; the message
    /// holds what it printed.
    pub async fn line_with(&self, text: &str, deadline: Duration) -> String {
        let find = |output: &Output| {
            output
                .lines
                .iter()
                .find(|line| line.contains(text))
                .cloned()
        };
        let mut output = self.output.clone();
        let seen = output.wait_for(|output| output.closed || find(output).is_some());
        let line = match tokio::time::timeout(deadline, seen).await {
            Ok(Ok(output)) => find(&output),
            _ => None,
        };
        line.unwrap_or_else(|| panic!("no line with {text:?}; {}", self.printed()))
    }

    /// Every line that the child has printed so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.output.borrow().lines.clone()
    }

    /// Writes a line to the child's standard input.
    ///
    /// # Panics
    ///
    /// When the child does not take it.
    pub fn write_line(&self, line: &str) {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        let stdin = stdin.as_mut().expect("stdin is a pipe");
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .expect("write to the child");
    }

    /// Whether it has ended.
    ///
    /// # Panics
    ///
    /// When the system does not tell.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process
            .try_wait()
            .expect("ask for the child's state")
            .is_some()
    }

    /// Waits until the child has ended and all its output is read.
    ///
    /// # Panics
    ///
    /// When it does not end within `deadline`; the message holds what it printed.
    pub async fn exit(&self, deadline: Duration) -> ExitStatus {
        let what = format!("{} ends", self.recipe.program.display());
        eventually(&what, deadline, async || {
            let status = self.process().try_wait().expect("wait for the child");
            status
                .filter(|_| self.output.borrow().closed)
                .ok_or_else(|| self.printed())
        })
        .await
    }

    /// Kills the child with SIGKILL and reaps it; what it had printed can still be read.
    pub fn kill(&self) {
        kill_tree(&mut self.process());
    }

    /// Asks the child to stop with SIGTERM; [`exit`](Self::exit) waits for it.
    pub fn terminate(&self) {
        signal(pid(&self.process()), Signal::TERM);
    }

    /// Stops the child in its tracks with SIGSTOP.
    pub fn freeze(&self) {
        freeze(pid(&self.process()));
    }

    /// Lets a frozen child go on.
    pub fn thaw(&self) {
        signal(pid(&self.process()), Signal::CONT);
    }

    fn printed(&self) -> String {
        let log = std::fs::read(self.recipe.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        format!("stdout:\n{}\nstderr:\n{log}", self.lines().join("\n"))
    }

    fn process(&self) -> MutexGuard<'_, std::process::Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
