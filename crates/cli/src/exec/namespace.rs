//! A pid namespace for each task: its processes see and signal only each other, whatever their user
//! is.
//!
//! ```text
//! taskyard __supervise ── taskyard __init ── taskyard __child, which becomes the command
//!                          (process 1 there)
//! ```
//! Process 1 ends with the command, and the kernel then kills all other processes of the namespace.
//! Process 1 also ends with its supervisor, however the supervisor ends. It mounts the namespace's
//! /proc in a mount namespace of its own.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpid, set_parent_process_death_signal, wait,
    },
    thread::UnshareFlags,
};
use serde::{Deserialize, Serialize};

use super::{
    explained,
    launcher::{self, Bounds},
    supervisor,
    wire::{Ending, Limits, Report, Request},
};

/// The first argument that means this file.
pub const SUBCOMMAND: &str = "__init";
/// The longest message of process 1: an ending with an error of the system.
const ENDING_BYTES_MAX: u64 = 64 << 10;
/// Processes of the namespace that the task did not start: process 1.
pub(super) const PROCESSES_OF_OURS: u32 = 1;

/// Tests a pid namespace as each task would use it; `program` must implement `__supervise`. The
/// error says why tasks can't have a pid namespace here.
pub fn try_pid_namespace(program: &Path) -> io::Result<()> {
    let request = Request {
        // No program: the launcher then exits with 0.
        argv: Vec::new(),
        timeout_ms: None,
        grace_ms: 0,
        limits: Limits::default(),
        cgroups: None,
        pid_namespace: true,
        user: None,
        folder: None,
        payload_bytes: 0,
    };
    let mut tried = Command::new(program)
        .arg0("taskyard")
        .arg(supervisor::SUBCOMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // Open until the end, because its end would be an order to stop.
    let stdin = tried.stdin.take();
    let mut report = Vec::new();
    if let (Some(mut stdin), Some(mut stdout)) = (stdin, tried.stdout.take()) {
        stdin.write_all(&request.encode(&[])?)?;
        stdout.read_to_end(&mut report)?;
    }
    tried.wait()?;
    let report = Report::decode(&report)?;
    match report.ending {
        Ending::Exited(0) => Ok(()),
        Ending::NotStarted(why) => Err(io::Error::other(why)),
        other => {
            let said = String::from_utf8_lossy(&report.stderr).trim().to_owned();
            Err(io::Error::other(format!("{other:?} {said}")))
        }
    }
}

/// The supervisor's side of a namespace.
pub(super) struct Namespace {
    /// How the command ended, as process 1 saw it.
    ending: PipeReader,
    /// Process 1 opens this pipe by its path; no process inherits it.
    writer: PipeWriter,
}

impl Namespace {
    /// Makes the next process that this thread starts process 1 of a new namespace. Start all
    /// threads before, because the kernel refuses new threads from then on.
    pub(super) fn enter() -> io::Result<Namespace> {
        let (ending, writer) = io::pipe()?;
        fcntl_setfl(&ending, fcntl_getfl(&ending)? | OFlags::NONBLOCK)?;
        unshare(UnshareFlags::NEWPID).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot make a pid namespace: {error}"))
        })?;
        Ok(Namespace { ending, writer })
    }

    /// The arguments that make process 1 run `argv` within `bounds`.
    pub(super) fn arguments(&self, argv: &[String], bounds: &Bounds) -> io::Result<Vec<OsString>> {
        let init = Init {
            supervisor: getpid().as_raw_pid(),
            ending: self.writer.as_raw_fd(),
            bounds: bounds.clone(),
        };
        let own = [SUBCOMMAND.into(), serde_json::to_string(&init)?.into()];
        Ok(own.into_iter().chain(argv.iter().map(OsString::from)).collect())
    }

    /// How the command ended, now that process 1 has ended with `status`.
    pub(super) fn ending(&self, status: WaitStatus) -> Ending {
        let mut said = Vec::new();
        // A read to the end would block, because this process still has the pipe open for writing.
        let _ = (&self.ending).take(ENDING_BYTES_MAX).read_to_end(&mut said);
        serde_json::from_slice(&said).unwrap_or_else(|_| Ending::of(status))
    }
}

/// The arguments of process 1.
#[derive(Serialize, Deserialize)]
struct Init {
    /// The supervisor's process id outside of the namespace, and its pipe for the ending.
    supervisor: i32,
    ending: RawFd,
    bounds: Bounds,
}

/// Runs with the arguments that follow [`SUBCOMMAND`].
pub fn main(arguments: &[OsString]) -> ExitCode {
    let Some((init, argv)) = read(arguments) else {
        eprintln!("taskyard __init is started by taskyard work, not by hand");
        return ExitCode::FAILURE;
    };
    // The path of the pipe exists as long as the supervisor, so that a process that has opened it
    // has not missed the supervisor's end.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let way = format!("/proc/{}/fd/{}", init.supervisor, init.ending);
    let Ok(mut way) = File::options().write(true).open(&way) else {
        eprintln!("cannot open {way}: is /proc mounted?");
        return ExitCode::FAILURE;
    };
    let ending = run(argv, &init.bounds)
        .unwrap_or_else(|error| Ending::NotStarted(explained(error).to_string()));
    let said = serde_json::to_vec(&ending).unwrap_or_default();
    match way.write_all(&said) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn read(arguments: &[OsString]) -> Option<(Init, &[OsString])> {
    let (init, argv) = arguments.split_first()?;
    Some((serde_json::from_str(init.to_str()?).ok()?, argv))
}

/// Starts the command, and reaps all processes until the command has ended.
fn run(argv: &[OsString], bounds: &Bounds) -> io::Result<Ending> {
    mount_proc()?;
    let command = Command::new("/proc/self/exe")
        .arg0("taskyard")
        .args(launcher::arguments(argv, bounds)?)
        // In a group of its own, so that a command that signals its group reaches neither process 1
        // nor the supervisor.
        .process_group(0)
        .spawn()
        .map(|child| Pid::from_child(&child))?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => return Ok(Ending::of(status)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Shows only the processes of this namespace in /proc. Later mounts outside are still seen here,
/// but not the other way round.
fn mount_proc() -> io::Result<()> {
    let explained = |error: Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("cannot mount /proc in a pid namespace: {error}"))
    };
    unshare(UnshareFlags::NEWNS).map_err(explained)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(explained)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", OsStr::new("/proc"), "proc", flags, None).map_err(explained)
}

/// The call is unsafe only for flags that concern memory or files, and neither of these flags does.
#[expect(deprecated, reason = "its successor can't be called where unsafe code is forbidden")]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}
