//! A cgroup for each task: the kernel refuses a task more processes than its limit, and lists all
//! processes of the task, whatever it did.
//!
//! The folder of a task is `taskyard-<worker's pid>-<supervisor's pid>`. Its supervisor creates the
//! folder, locks it, and removes it after the task's last process. An unlocked folder whose worker
//! is gone is a leftover: the next worker in the same place kills its processes and removes it. The
//! files have the same names in both versions of cgroups.

mod place;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, getpid, kill_process},
};
use serde::{Deserialize, Serialize};

use super::launcher::{self, Bounds};

const PREFIX: &str = "taskyard";
/// The folder in which a worker tests cgroups has this in place of a supervisor's pid.
const TRIAL: i32 = 0;
/// Leftovers delay the start of a worker by no more than this.
const CLEAR_FOR_MAX: Duration = Duration::from_secs(5);
/// The time between two checks of a leftover whose processes were killed.
const CLEAR_EVERY: Duration = Duration::from_millis(5);

/// The place in which a worker creates the cgroups of its tasks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cgroups {
    base: PathBuf,
    worker: i32,
}

impl Cgroups {
    /// Finds the place for this process and tests it; `program` must implement `__child`. Clears
    /// the leftovers of killed workers. The error says why this process may not create cgroups.
    pub fn find(program: &Path) -> io::Result<Cgroups> {
        let base = place::find()?;
        let cgroups = Cgroups { base, worker: getpid().as_raw_pid() };
        cgroups.clear_leftovers();
        cgroups.try_out(program)?;
        Ok(cgroups)
    }

    /// The folder of the tasks' cgroups.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Creates the cgroup of the task of this supervisor.
    pub(super) fn make(&self, supervisor: Pid, processes_max: Option<u32>) -> io::Result<Cgroup> {
        self.make_for(supervisor.as_raw_pid(), processes_max)
    }

    /// The cgroup that a killed supervisor may have left.
    pub(super) fn left_by(&self, supervisor: i32) -> Cgroup {
        Cgroup { folder: self.folder(supervisor), processes_max: None, _lock: None }
    }

    fn make_for(&self, supervisor: i32, processes_max: Option<u32>) -> io::Result<Cgroup> {
        let folder = self.folder(supervisor);
        // If the folder exists, it is the leftover of an earlier process with the same id.
        let _ = fs::remove_dir(&folder);
        fs::create_dir(&folder)?;
        let mut cgroup = Cgroup { folder, processes_max, _lock: None };
        cgroup._lock = Some(lock(&cgroup.folder)?);
        let max = processes_max.map_or_else(|| "max".to_owned(), |max| max.to_string());
        put(&cgroup.folder, "pids.max", &max)?;
        Ok(cgroup)
    }

    fn folder(&self, supervisor: i32) -> PathBuf {
        self.base.join(format!("{PREFIX}-{}-{supervisor}", self.worker))
    }

    /// Starts a process in a cgroup, as for every task, because a cgroup that may be created may
    /// still refuse processes.
    fn try_out(&self, program: &Path) -> io::Result<()> {
        let cgroup = self.make_for(TRIAL, Some(1))?;
        let bounds = Bounds { cgroup: Some(cgroup.folder.clone()), ..Bounds::default() };
        let tried = Command::new(program)
            .arg0("taskyard")
            .args(launcher::arguments(&[""; 0], &bounds)?)
            .stdin(Stdio::null())
            .output()?;
        match tried.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&tried.stderr).trim())),
        }
    }

    fn clear_leftovers(&self) {
        let deadline = Instant::now() + CLEAR_FOR_MAX;
        let folders = fs::read_dir(&self.base).into_iter().flatten().flatten();
        for folder in folders.map(|entry| entry.path()).filter(|folder| is_leftover(folder)) {
            // A supervisor that is about to create the folder has no lock yet, but its worker
            // lives. A locked folder is in use.
            let Ok(lock) = lock(&folder) else { continue };
            let cgroup = Cgroup { folder, processes_max: None, _lock: Some(lock) };
            cgroup.kill();
            while fs::remove_dir(&cgroup.folder).is_err() && Instant::now() < deadline {
                thread::sleep(CLEAR_EVERY);
            }
        }
    }
}

/// Whether the worker in the name of `folder` is gone. If another process has its id now, the
/// folder is only kept longer.
fn is_leftover(folder: &Path) -> bool {
    let worker = || {
        let name = folder.file_name()?.to_str()?;
        let (worker, supervisor) = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
        supervisor.parse::<i32>().ok()?;
        worker.parse::<i32>().ok()
    };
    worker().is_some_and(|worker| !Path::new("/proc").join(worker.to_string()).exists())
}

/// The cgroup of one task. Its folder is removed with this value; a folder that still has processes
/// stays until a later worker clears it.
pub(super) struct Cgroup {
    folder: PathBuf,
    processes_max: Option<u32>,
    /// The lock that shows that the folder has an owner. The kernel releases it, however the owner
    /// ends.
    _lock: Option<File>,
}

impl Cgroup {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the kernel refused this task a process because of its limit.
    pub(super) fn was_refused(&self) -> bool {
        let Some(max) = self.processes_max else { return false };
        let events = self.text("pids.events").unwrap_or_default();
        let refusals = events.lines().find_map(|line| line.strip_prefix("max "));
        if refusals.is_none_or(|count| count.trim() == "0") {
            return false;
        }
        // Version 1 also counts refusals by limits further up, which other tasks may cause. The
        // peak tells the two apart; kernels before 6.1 have no peak.
        let peak = self.text("pids.peak").and_then(|text| text.trim().parse::<u32>().ok());
        peak.is_none_or(|peak| peak >= max)
    }

    /// Kills all processes of the cgroup, and prevents new ones.
    pub(super) fn kill(&self) {
        // Forks are forbidden first, so that the list after it is complete.
        let _ = put(&self.folder, "pids.max", "0");
        if put(&self.folder, "cgroup.kill", "1").is_ok() {
            return;
        }
        let processes = self.text("cgroup.procs").unwrap_or_default();
        for pid in processes.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)) {
            // An error means that the process is gone.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Moves this process into the cgroup of `folder`, with all processes that it starts later.
pub(super) fn join(folder: &Path) -> io::Result<()> {
    put(folder, "cgroup.procs", "0")
}

/// Writes to a file of the kernel. Unlike `fs::write`, this never creates a file.
fn put(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(folder.join(file))?.write_all(text.as_bytes())
}

fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_folders_of_workers_that_are_gone() {
        let own = getpid().as_raw_pid();
        // No process ever has an id above 2^22.
        for (name, leftover) in [
            ("taskyard-4194305-7".to_owned(), true),
            (format!("taskyard-{own}-7"), false),
            ("taskyard-1-7".to_owned(), false),
            ("taskyard-4194305".to_owned(), false),
            ("taskyard-4194305-x".to_owned(), false),
            ("taskyard-4194305-7-8".to_owned(), false),
            ("taskyard.service".to_owned(), false),
            ("other-4194305-7".to_owned(), false),
        ] {
            assert_eq!(is_leftover(&Path::new("/base").join(&name)), leftover, "{name}");
        }
    }

    #[test]
    fn only_a_refusal_by_the_limit_of_the_task_counts() {
        let folder = tempfile::tempdir().unwrap();
        // Not empty, so that the folder stays when a cgroup in it is dropped.
        fs::write(folder.path().join("pids.max"), "8").unwrap();
        let cgroup =
            |processes_max| Cgroup { folder: folder.path().to_owned(), processes_max, _lock: None };
        assert!(!cgroup(Some(8)).was_refused(), "no file to read");
        for (events, peak, refused) in [
            ("max 0\n", Some("8\n"), false),
            ("max 3\n", Some("8\n"), true),
            ("max 3\n", Some("5\n"), false),
            ("max 3\n", None, true),
        ] {
            fs::write(folder.path().join("pids.events"), events).unwrap();
            let _ = fs::remove_file(folder.path().join("pids.peak"));
            if let Some(peak) = peak {
                fs::write(folder.path().join("pids.peak"), peak).unwrap();
            }
            assert_eq!(cgroup(Some(8)).was_refused(), refused, "{events:?} {peak:?}");
            assert!(!cgroup(None).was_refused(), "without a limit");
        }
    }
}
