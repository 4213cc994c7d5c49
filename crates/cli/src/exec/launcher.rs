//! `taskyard __child`: becomes the task's command, within its limits.
//!
//! Limits can only be set from inside the process they bind, so the supervisor starts this
//! binary again, which binds itself and then turns into the command. It never returns on success.

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
/// What a shell answers for a command that it can't find.
const NOT_FOUND: u8 = 127;
/// What a shell answers for a command that it can't run.
const NOT_RUN: u8 = 126;
/// When memory runs out the kernel should take a task before its worker.
const OOM_SCORE: i32 = 500;

/// Within what a command runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Bounds {
    pub(super) limits: Limits,
    /// The folder of the task's cgroup.
    pub(super) cgroup: Option<PathBuf>,
    /// As whom, if not as the worker's own user.
    pub(super) user: Option<User>,
}

#[derive(Serialize, Deserialize)]
struct Launch {
    /// Who starts the launcher, as the launcher sees it.
    parent: i32,
    bounds: Bounds,
}

/// The arguments that make the launcher run `argv` within `bounds`. Without a program it enters the
/// cgroup and ends well.
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
    // Made before the limits bind: what is left to allocate after them is tiny.
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
    // The command is not ours: give it back the pages that this binary asked to do without.
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
        // The kernel forgets it when a process changes its user.
        end_with(parent)?;
    }
    Ok(())
}

/// The end of the process that started this one is from now on the end of this one too.
fn end_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid() == Pid::from_raw(parent) {
        true => Ok(()),
        false => Err(io::Error::other("its supervisor is gone")),
    }
}

/// Sets both limits of `resource`, or leaves those of the worker where they are tighter.
fn limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let before = getrlimit(resource);
    let tighter = |limit: u64, before: Option<u64>| Some(limit.min(before.unwrap_or(u64::MAX)));
    let current = tighter(soft, before.current.or(before.maximum));
    Ok(setrlimit(resource, Rlimit { current, maximum: tighter(hard, before.maximum) })?)
}

/// Best effort: a kernel without the file kills whom it likes.
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
