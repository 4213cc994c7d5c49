//! `taskyard __child`: becomes the task's command, within its limits.
//!
//! A process can only limit itself, so the supervisor starts this binary again, which sets its own
//! limits and then becomes the command. It never returns on success.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};
use serde::{Deserialize, Serialize};

use super::{cgroup, user::User, wire::Limits};

/// The first argument that means this file.
pub const SUBCOMMAND: &str = "__child";
/// The exit code of a shell for a command that it can't find.
const NOT_FOUND: u8 = 127;
/// The exit code of a shell for a command that it can't run.
const NOT_RUN: u8 = 126;
/// When memory runs out, the kernel should kill a task before its worker.
const OOM_SCORE: i32 = 500;

/// The bounds of a command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Bounds {
    pub(super) limits: Limits,
    /// The folder of the task's cgroup.
    pub(super) cgroup: Option<PathBuf>,
    /// The user of the command, if it is not the worker's own.
    pub(super) user: Option<User>,
}

#[derive(Serialize, Deserialize)]
struct Launch {
    /// The process that starts the launcher, by the id that the launcher sees.
    parent: i32,
    bounds: Bounds,
}

/// The arguments that make the launcher run `argv` within `bounds`. Without a program, the launcher
/// enters the cgroup and exits with 0.
pub(super) fn arguments(argv: &[impl AsRef<OsStr>], bounds: &Bounds) -> io::Result<Vec<OsString>> {
    let launch = Launch { parent: getpid().as_raw_pid(), bounds: bounds.clone() };
    let own = [SUBCOMMAND.into(), serde_json::to_string(&launch)?.into()];
    Ok(own.into_iter().chain(argv.iter().map(OsString::from)).collect())
}

/// Runs with the arguments that follow [`SUBCOMMAND`].
pub fn main(arguments: &[OsString]) -> ExitCode {
    let Some((Launch { parent, bounds }, command)) = read(arguments) else {
        return refuse(NOT_RUN, "taskyard __child is started by taskyard work, not by hand");
    };
    let Some((program, rest)) = command.split_first() else {
        return match bounds.cgroup.as_deref().map(cgroup::join) {
            Some(Err(error)) => refuse(NOT_RUN, &format!("cannot enter a cgroup: {error}")),
            Some(Ok(())) | None => ExitCode::SUCCESS,
        };
    };
    // Allocated before the limits apply, because little can be allocated under them.
    let mut command = Command::new(program);
    command.args(rest);
    if let Some(user) = &bounds.user {
        user.tell(&mut command);
    }
    let program = program.display();
    if let Err(error) = bind(parent, &bounds) {
        return refuse(NOT_RUN, &format!("cannot set the limits of {program}: {error}"));
    }
    let error = command.exec();
    refuse(NOT_FOUND, &format!("cannot run {program}: {error}"))
}

fn read(arguments: &[OsString]) -> Option<(Launch, &[OsString])> {
    let (launch, argv) = arguments.split_first()?;
    Some((serde_json::from_str(launch.to_str()?).ok()?, argv))
}

fn bind(parent: i32, bounds: &Bounds) -> io::Result<()> {
    let Bounds { limits, cgroup, user } = bounds;
    end_with(parent)?;
    raise_oom_score();
    // Huge pages, which this binary switched off for itself, are allowed again for the command.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let joined = cgroup.as_deref().is_some_and(|folder: &Path| cgroup::join(folder).is_ok());
    if let (false, Some(max)) = (joined, limits.user_threads_max) {
        limit(Resource::Nproc, max, max)?;
    }
    if let Some(seconds) = limits.cpu_seconds {
        // SIGXCPU at the limit, SIGKILL a second later if it was ignored.
        limit(Resource::Cpu, seconds, seconds.saturating_add(1))?;
    }
    if let Some(bytes) = limits.memory_bytes {
        limit(Resource::As, bytes, bytes)?;
    }
    if let Some(user) = user {
        user.become_it()?;
        // The kernel drops this setting when a process changes its user.
        end_with(parent)?;
    }
    Ok(())
}

/// From now on this process ends with the process that started it.
fn end_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid() == Pid::from_raw(parent) {
        true => Ok(()),
        false => Err(io::Error::other("its supervisor is gone")),
    }
}

/// Sets both limits of `resource`, unless the worker's own limits are tighter.
fn limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let before = getrlimit(resource);
    let tighter = |limit: u64, before: Option<u64>| Some(limit.min(before.unwrap_or(u64::MAX)));
    let current = tighter(soft, before.current.or(before.maximum));
    Ok(setrlimit(resource, Rlimit { current, maximum: tighter(hard, before.maximum) })?)
}

/// Best effort: a kernel without this file chooses by itself which process to kill.
fn raise_oom_score() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own = fs::read_to_string(FILE).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if own.is_some_and(|score| score < OOM_SCORE) {
        let _ = fs::write(FILE, OOM_SCORE.to_string());
    }
}

fn refuse(code: u8, why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}
