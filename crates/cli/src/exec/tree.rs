//! The processes below one process, as the kernel lists them.
//!
//! A process group is not enough: a child leaves it with `setsid`. Below a subreaper every
//! descendant stays a descendant, whatever it does, so a walk from there finds all of them.

use std::{
    collections::BTreeSet,
    fs,
    ops::ControlFlow,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use rustix::process::{Pid, Signal, kill_process};

/// The number of processes below `root`, counted up to `count_max`. Zombies count, because they
/// have a process id.
pub(super) fn count_descendants(root: Pid, count_max: usize) -> usize {
    let mut count = 0;
    walk(root, |_| {
        count += 1;
        if count < count_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    count
}

/// Sends `signal` to every process below `root`.
pub(super) fn signal_descendants(root: Pid, signal: Signal) {
    walk(root, |pid| {
        send(pid, signal);
        ControlFlow::Continue(())
    });
}

/// Kills every present process below `root`. A process in the middle of a fork, or one whose parent
/// has just died, may remain. Call it again until there are none.
pub(super) fn kill_descendants(root: Pid) {
    let mut stopped = Vec::new();
    // Each process is stopped before its children are listed, so that it can't fork behind the
    // walk.
    walk(root, |pid| {
        send(pid, Signal::STOP);
        stopped.push(pid);
        ControlFlow::Continue(())
    });
    for pid in stopped {
        send(pid, Signal::KILL);
    }
}

/// Kills `root` and all processes below it, as [`kill_descendants`] does.
pub(super) fn kill_with_descendants(root: Pid) {
    send(root, Signal::STOP);
    kill_descendants(root);
    send(root, Signal::KILL);
}

/// The direct children of `parent`.
pub(super) fn children(parent: Pid) -> Vec<Pid> {
    static LISTED: LazyLock<bool> =
        LazyLock::new(|| Path::new("/proc/thread-self/children").exists());
    if *LISTED { listed_children(parent) } else { scanned_children(parent) }
}

fn walk(root: Pid, mut visit: impl FnMut(Pid) -> ControlFlow<()>) {
    let mut seen = BTreeSet::from([root.as_raw_pid()]);
    let mut frontier = vec![root];
    while let Some(parent) = frontier.pop() {
        for child in children(parent) {
            if seen.insert(child.as_raw_pid()) {
                if visit(child).is_break() {
                    return;
                }
                frontier.push(child);
            }
        }
    }
}

/// An error means that the process is gone or may no longer be signalled. The next walk shows
/// which.
fn send(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// The kernel lists the children of each thread.
fn listed_children(parent: Pid) -> Vec<Pid> {
    let threads = format!("/proc/{}/task", parent.as_raw_pid());
    let mut found = Vec::new();
    let mut add = |list: PathBuf| {
        let text = fs::read_to_string(list).unwrap_or_default();
        found.extend(text.split_ascii_whitespace().filter_map(parse_pid));
    };
    // Reading the folder of threads is the slowest part, and a walk must be fast. A process with
    // one thread (two links and one for the thread) needs no such read.
    if fs::metadata(&threads).is_ok_and(|folder| folder.nlink() == 3) {
        add(Path::new(&threads).join(parent.to_string()).join("children"));
    } else if let Ok(folder) = fs::read_dir(&threads) {
        folder.flatten().for_each(|thread| add(thread.path().join("children")));
    }
    found
}

/// For kernels without lists of children: checks every process of the machine.
fn scanned_children(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| parse_pid(entry.file_name().to_str()?))
        .filter(|&pid| parent_of(pid) == Some(parent))
        .collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name is in parentheses and may have any character, parentheses too.
    let (_, after_name) = stat.rsplit_once(')')?;
    parse_pid(after_name.split_ascii_whitespace().nth(1)?)
}

fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn both_ways_of_looking_find_a_child() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let own = rustix::process::getpid();
        assert!(listed_children(own).contains(&pid));
        assert!(scanned_children(own).contains(&pid));
        assert!(count_descendants(own, 100) >= 1);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!listed_children(own).contains(&pid));
    }
}
