//! `taskyard __child`: becomes the task's command, within its limits.
//!
//! Limits can only be set from inside the process they bind, so the supervisor starts this
//! binary again, which binds itself and then turns into the command. It never returns on success.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    str::FromStr,
};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};

use super::wire::Limits;

/// The first argument that means this file.
pub const SUBCOMMAND: &str = "__child";
/// What a shell answers for a command that it can't find.
const NOT_FOUND: u8 = 127;
/// What a shell answers for a command that it can't run.
const NOT_RUN: u8 = 126;
/// When memory runs out the kernel should take a task before its worker.
const OOM_SCORE: i32 = 500;

/// The arguments that make the launcher run `argv` within `limits`.
pub(super) fn arguments(argv: &[String], limits: &Limits) -> Vec<String> {
    let number = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let own = [
        SUBCOMMAND.to_owned(),
        getpid().as_raw_pid().to_string(),
        number(limits.memory_bytes),
        number(limits.cpu_seconds),
    ];
    own.into_iter().chain(argv.iter().cloned()).collect()
}

/// Runs with the arguments that follow [`SUBCOMMAND`].
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, memory, cpu, program, rest @ ..] = arguments else {
        return refuse(NOT_RUN, "taskyard __child is started by taskyard work, not by hand");
    };
    // Made before the limits bind: what is left to allocate after them is tiny.
    let mut command = Command::new(program);
    command.args(rest);
    let program = program.display();
    if let Err(error) = bind(number(parent), number(memory), number(cpu)) {
        return refuse(NOT_RUN, &format!("cannot set the limits of {program}: {error}"));
    }
    let error = command.exec();
    refuse(NOT_FOUND, &format!("cannot run {program}: {error}"))
}

fn number<T: FromStr>(text: &OsStr) -> Option<T> {
    text.to_str()?.parse().ok()
}

fn bind(parent: Option<i32>, memory: Option<u64>, cpu: Option<u64>) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != parent.and_then(Pid::from_raw) {
        return Err(std::io::Error::other("its supervisor is gone"));
    }
    raise_oom_score();
    // The command is not ours: give it back the pages that this binary asked to do without.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    if let Some(seconds) = cpu {
        // SIGXCPU at the limit, SIGKILL a second later if it was ignored.
        limit(Resource::Cpu, seconds, seconds.saturating_add(1))?;
    }
    if let Some(bytes) = memory {
        limit(Resource::As, bytes, bytes)?;
    }
    Ok(())
}

/// Sets both limits of `resource`, or leaves those of the worker where they are tighter.
fn limit(resource: Resource, soft: u64, hard: u64) -> std::io::Result<()> {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let bound = |limit: u64| Some(limit.min(ceiling));
    Ok(setrlimit(resource, Rlimit { current: bound(soft), maximum: bound(hard) })?)
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
