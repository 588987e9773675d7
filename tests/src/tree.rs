//! Signals for a process and everything that it has started.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Kills a child with its descendants and reaps it.
///
/// Everything is frozen first, so that nothing is left to notice the death of another.
pub(crate) fn kill_tree(child: &mut Child) {
    if child.try_wait().is_ok_and(|status| status.is_some()) {
        return;
    }
    let pid = pid(child);
    for each in freeze_tree(pid) {
        signal(each, Signal::KILL);
    }
    signal(pid, Signal::KILL);
    let _ = child.wait();
}

/// How long it may take until a process has stopped.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Freezes a process and its descendants, none of which runs any more afterwards.
pub(crate) fn freeze(pid: Pid) {
    let descendants = freeze_tree(pid);
    let running = descendants
        .into_iter()
        .chain([pid])
        .find(|each| runs(*each));
    assert_eq!(
        running, None,
        "it still runs, {STOPS_WITHIN:?} after SIGSTOP"
    );
}

/// Freezes a process and then its descendants, and returns the latter.
fn freeze_tree(pid: Pid) -> Vec<Pid> {
    stop(pid);
    let mut frozen = Vec::new();
    loop {
        let found = descendants(pid);
        let fresh: Vec<_> = found
            .into_iter()
            .filter(|each| !frozen.contains(each))
            .collect();
        if fresh.is_empty() {
            return frozen;
        }
        for each in fresh {
            stop(each);
            frozen.push(each);
        }
    }
}

/// Sends SIGSTOP and waits until it has stopped all threads. It takes effect when the thread that it was
/// given to runs next, and until then all others go on.
fn stop(pid: Pid) {
    signal(pid, Signal::STOP);
    let end = Instant::now() + STOPS_WITHIN;
    while runs(pid) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a thread of the process is neither stopped nor dead.
fn runs(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let state = stat(&task.path()).and_then(|stat| stat.into_iter().next());
        state.is_some_and(|state| !matches!(state.as_str(), "T" | "t" | "Z" | "X"))
    })
}

/// The id of a child.
pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Sends a signal; a process that is already gone is no error.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// Every process whose chain of parents leads to `ancestor`.
///
/// The process group does not tell: database servers put each of their children into its own.
pub(crate) fn descendants(ancestor: Pid) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = std::fs::read_dir("/proc")
        .expect("read /proc")
        .flatten()
        .filter_map(|entry| parent_of(&entry.path()))
        .collect();
    let mut family = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    family.split_off(1)
}

/// The process behind a directory of `/proc`, and its parent.
fn parent_of(process: &Path) -> Option<(Pid, Pid)> {
    let pid: i32 = process.file_name()?.to_str()?.parse().ok()?;
    let parent: i32 = stat(process)?.get(1)?.parse().ok()?;
    Some((Pid::from_raw(pid)?, Pid::from_raw(parent)?))
}

/// What is known of a process or thread: its state, its parent, and more.
fn stat(directory: &Path) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
    // "pid (name) state parent ..", where the name may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(ToOwned::to_owned).collect())
}
