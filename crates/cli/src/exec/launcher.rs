//! `taskyard __child`: becomes the task's command, within its limits.
//!
//! Limits can only be set from inside the process they bind, so the supervisor starts this
//! binary again, which binds itself and then turns into the command. It never returns on success.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
    str::FromStr,
};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};

use super::{cgroup, wire::Limits};

/// The first argument that means this file.
pub const SUBCOMMAND: &str = "__child";
/// What a shell answers for a command that it can't find.
const NOT_FOUND: u8 = 127;
/// What a shell answers for a command that it can't run.
const NOT_RUN: u8 = 126;
/// When memory runs out the kernel should take a task before its worker.
const OOM_SCORE: i32 = 500;

/// In the place of a number or a path: there is none.
const NONE: &str = "-";

/// The arguments that make the launcher run `argv` within `limits`, in the cgroup of `cgroup`.
pub(super) fn arguments(argv: &[String], limits: &Limits, cgroup: Option<&Path>) -> Vec<OsString> {
    let number = |limit: Option<u64>| limit.map_or_else(|| NONE.to_owned(), |n| n.to_string());
    let numbers = [
        SUBCOMMAND.to_owned(),
        getpid().as_raw_pid().to_string(),
        number(limits.memory_bytes),
        number(limits.cpu_seconds),
        number(limits.user_threads_max),
    ];
    let cgroup = cgroup.map_or_else(|| NONE.into(), |folder| folder.as_os_str().to_owned());
    let own = numbers.into_iter().map(OsString::from).chain([cgroup]);
    own.chain(argv.iter().map(OsString::from)).collect()
}

/// The arguments that make it enter the cgroup of `folder` and end.
pub(super) fn trial_arguments(folder: &Path) -> Vec<OsString> {
    arguments(&[], &Limits::default(), Some(folder))
}

/// Runs with the arguments that follow [`SUBCOMMAND`].
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, memory, cpu, user_threads, cgroup, command @ ..] = arguments else {
        return refuse(NOT_RUN, "taskyard __child is started by taskyard work, not by hand");
    };
    let cgroup = Some(Path::new(cgroup)).filter(|&folder| folder != Path::new(NONE));
    let Some((program, rest)) = command.split_first() else {
        return match cgroup.map(cgroup::join) {
            Some(Err(error)) => refuse(NOT_RUN, &format!("cannot enter a cgroup: {error}")),
            Some(Ok(())) | None => ExitCode::SUCCESS,
        };
    };
    // Made before the limits bind: what is left to allocate after them is tiny.
    let mut command = Command::new(program);
    command.args(rest);
    let program = program.display();
    let limits = Limits {
        memory_bytes: number(memory),
        cpu_seconds: number(cpu),
        user_threads_max: number(user_threads),
        // Held by the cgroup and by the supervisor.
        processes_max: None,
    };
    if let Err(error) = bind(number(parent), &limits, cgroup) {
        return refuse(NOT_RUN, &format!("cannot set the limits of {program}: {error}"));
    }
    let error = command.exec();
    refuse(NOT_FOUND, &format!("cannot run {program}: {error}"))
}

fn number<T: FromStr>(text: &OsStr) -> Option<T> {
    text.to_str()?.parse().ok()
}

fn bind(parent: Option<i32>, limits: &Limits, cgroup: Option<&Path>) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != parent.and_then(Pid::from_raw) {
        return Err(std::io::Error::other("its supervisor is gone"));
    }
    raise_oom_score();
    // The command is not ours: give it back the pages that this binary asked to do without.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let joined = cgroup.is_some_and(|folder| cgroup::join(folder).is_ok());
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
    Ok(())
}

/// Sets both limits of `resource`, or leaves those of the worker where they are tighter.
fn limit(resource: Resource, soft: u64, hard: u64) -> std::io::Result<()> {
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
