//! RLIMIT_NPROC, for tasks without a cgroup: a wall far behind the limit that is counted, for a
//! fork bomb that outruns the count.
//!
//! The kernel compares it with all threads of the user, those of other tasks, of the worker and of
//! strangers too, so it can't be the limit of one task. It is one number for the life of a worker:
//! if each task got its own on top of what there is when it starts, bombs would climb on each
//! other. It does not bind root.

use std::{fs, os::unix::fs::MetadataExt, thread};

use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

/// Threads that the user may have above those it had when the worker started and the processes that
/// the worker's tasks may have: for threads of the tasks, for what else the user starts meanwhile,
/// and for what it has where we can't look (the same user id in another container). Too small, and
/// a busy neighbour makes harmless tasks fail: 4096 are sixteen programs of 256 threads. Too large,
/// and the wall no longer spares the machine: 4096 shells are one or two GiB.
const SLACK: u64 = 4096;
const STACK_BYTES: usize = 64 << 10;

/// The limit for tasks that may have `processes` at once, all together. `None` where it does not
/// bind, or where the user has so much out of our sight that it would bind at once. Changes the
/// limit of this process for a moment, so it is for the start of a worker.
pub fn user_threads_max(processes: u64) -> Option<u64> {
    let before = getrlimit(Resource::Nproc);
    let allows_a_thread = |limit: u64| {
        let limit = limit.min(before.maximum.unwrap_or(u64::MAX));
        let set = Rlimit { current: Some(limit), maximum: before.maximum };
        setrlimit(Resource::Nproc, set).is_ok() && can_start_a_thread()
    };
    let there_now = threads_of_user();
    // One is this process itself: where the limit binds, a thread is refused.
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
