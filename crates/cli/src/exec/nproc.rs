//! RLIMIT_NPROC, for tasks without a cgroup: a second bound far above the counted limit, for a fork
//! bomb that is faster than the count.
//!
//! The kernel compares it with all threads of the user, also those of other tasks, of the worker
//! and of other programs, so that it can't be the limit of one task. The number is the same for the
//! life of a worker: if each task's limit were based on the threads at its start, each fork bomb
//! would raise the limit of the next. It does not bind root.

use std::{fs, os::unix::fs::MetadataExt, thread};

use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

/// Threads that the user may have above those at the worker's start and the allowed processes of
/// the worker's tasks. They are for threads of tasks, for other programs of the user, and for
/// threads that this process can't see (the same user id in another container). If too small, a
/// busy neighbour makes harmless tasks fail: 4096 are sixteen programs of 256 threads. If too
/// large, the bound no longer protects the machine: 4096 shells are one or two GiB.
const SLACK: u64 = 4096;
const STACK_BYTES: usize = 64 << 10;

/// The limit if all tasks together may have `processes` at once. `None` where the limit does not
/// bind, or where the user has so many invisible threads that it would bind at once. Changes the
/// limit of this process for a moment, so call it at the start of a worker.
pub fn user_threads_max(processes: u64) -> Option<u64> {
    let before = getrlimit(Resource::Nproc);
    let allows_a_thread = |limit: u64| {
        let limit = limit.min(before.maximum.unwrap_or(u64::MAX));
        let set = Rlimit { current: Some(limit), maximum: before.maximum };
        setrlimit(Resource::Nproc, set).is_ok() && can_start_a_thread()
    };
    let there_now = threads_of_user();
    // The limit allows this process alone: where it binds, the kernel refuses a thread.
    let binds = !allows_a_thread(1);
    let covers = allows_a_thread(there_now.saturating_add(SLACK));
    let _ = setrlimit(Resource::Nproc, before);
    (binds && covers).then(|| there_now.saturating_add(SLACK).saturating_add(processes))
}

fn can_start_a_thread() -> bool {
    let started = thread::Builder::new().stack_size(STACK_BYTES).spawn(|| ());
    started.is_ok_and(|thread| thread.join().is_ok())
}

/// The threads of this process's user, as far as they can be seen.
fn threads_of_user() -> u64 {
    let user = getuid().as_raw();
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let threads = |process: fs::DirEntry| {
        let name = process.file_name();
        let is_process = name.to_str()?.bytes().all(|byte| byte.is_ascii_digit());
        let is_own = is_process && process.metadata().ok()?.uid() == user;
        // A folder has two links, and one for each folder in it.
        is_own.then(|| fs::metadata(process.path().join("task")).ok()?.nlink().checked_sub(2))?
    };
    processes.flatten().filter_map(threads).sum()
}
