//! `taskyard __supervise`: one task's own process, between the worker and the command.
//!
//! The supervisor is the subreaper of all processes that the command starts, so that none outlives
//! the task: when the command ends, is stopped, times out or has too many processes, the supervisor
//! kills all remaining ones before it writes the report. If it can, it puts the command into a
//! cgroup, in which the kernel enforces the limit of processes. Its stdin ends when the worker
//! stops the task and when the worker dies, so that both are one case. A command that kills or
//! starves its supervisor harms no other task.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, ExitCode},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::fchown,
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper,
        setpriority_process, wait,
    },
};

use super::{
    cgroup::Cgroup,
    explained,
    kept::{Keep, Reader},
    launcher::{self, Bounds},
    namespace::{self, Namespace},
    tree,
    wire::{Ending, Report, Request, STDERR_BYTES_MAX, STDOUT_BYTES_MAX},
};

/// The first argument that means this file.
pub const SUBCOMMAND: &str = "__supervise";
/// How often the supervisor counts a limited task's processes, and checks whether one was refused.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// The time between two walks of a tree that is being killed.
const KILL_EVERY: Duration = Duration::from_millis(20);
/// A process that SIGKILL does not end within this time is stuck in the kernel; the report does not
/// wait for it.
const KILL_FOR_MAX: Duration = Duration::from_secs(5);
/// Pipes end with the tree, unless a process outside of it has them.
const DRAIN_FOR_MAX: Duration = Duration::from_secs(1);

enum Event {
    /// The command itself ended.
    Ended(WaitStatus),
    /// No process of the task is left.
    NoneLeft,
    /// The worker stops the task, or is gone.
    StopAsked,
}

/// Reads a request from stdin, runs it, writes the report to stdout.
pub fn main() -> ExitCode {
    match supervise() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("a task's supervisor gave up: {error}");
            ExitCode::FAILURE
        }
    }
}

fn supervise() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    let mut control = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let (request, payload) = Request::read(&mut control)?;
    let report = run(&request, payload, control)
        .unwrap_or_else(|error| Report::silent(Ending::NotStarted(explained(error).to_string())));
    if let Some(folder) = &request.folder {
        // An error means that the worker has removed it already.
        let _ = fs::remove_dir_all(folder);
    }
    match report.write(&mut io::stdout().lock()) {
        // The worker is gone, so that no report is needed.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Runs the command until it and all its processes have ended. An error means that it never ran.
fn run(request: &Request, payload: Vec<u8>, control: BufReader<File>) -> io::Result<Report> {
    // All threads start before the command, so that a refused thread leaves nothing to kill.
    let (stdout, stdout_writer) = Reader::start(Keep::First, STDOUT_BYTES_MAX)?;
    let (stderr, stderr_writer) = Reader::start(Keep::Last, STDERR_BYTES_MAX)?;
    let (stdin, mut stdin_writer) = io::pipe()?;
    if let Some(user) = &request.user {
        // A command may open its streams by name, as /dev/stdout, which needs their owner's rights.
        for stream in [stdin.as_fd(), stdout_writer.as_fd(), stderr_writer.as_fd()] {
            fchown(stream, Some(user.uid()), Some(user.gid()))?;
        }
    }
    // A command may close its stdin unread, which is no error.
    thread::Builder::new().spawn(move || stdin_writer.write_all(&payload))?;
    let (sender, events) = mpsc::channel();
    watch_control(control, sender.clone())?;
    let started = reap(sender)?;

    // Without a cgroup, the count enforces the limit.
    let cgroups = request.cgroups.as_ref();
    let cgroup =
        cgroups.and_then(|cgroups| cgroups.make(getpid(), request.limits.processes_max).ok());
    let bounds = Bounds {
        limits: request.limits,
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.folder().to_owned()),
        user: request.user.clone(),
    };
    let namespace = if request.pid_namespace { Some(Namespace::enter()?) } else { None };
    let arguments = match &namespace {
        Some(namespace) => namespace.arguments(&request.argv, &bounds)?,
        None => launcher::arguments(&request.argv, &bounds)?,
    };
    let command = Command::new("/proc/self/exe")
        .arg0("taskyard")
        .args(arguments)
        .process_group(0)
        .stdin(stdin)
        .stdout(stdout_writer)
        .stderr(stderr_writer)
        .spawn()
        .map(|child| Pid::from_child(&child))?;
    let _ = started.send(command);

    let mut tree = Tree { command, cgroup, namespace, events, ended: None, none_left: false };
    let ending = tree.watch(request);
    match ending {
        Ending::Stopped | Ending::TimedOut => {
            tree.terminate(Duration::from_millis(request.grace_ms));
            tree.kill();
        }
        Ending::TooManyProcesses => with_priority(|| tree.kill()),
        _ => tree.kill(),
    }

    let drained_by = Instant::now() + DRAIN_FOR_MAX;
    while !(stdout.is_finished() && stderr.is_finished()) && Instant::now() < drained_by {
        thread::sleep(Duration::from_millis(1));
    }
    let (stdout, stdout_total) = stdout.take();
    Ok(Report { ending, stdout, stdout_total, stderr: stderr.take().0 })
}

/// The worker sends nothing after the payload, so that any event on stdin means its end, which ends
/// the task.
fn watch_control(mut control: BufReader<File>, events: Sender<Event>) -> io::Result<()> {
    thread::Builder::new().spawn(move || {
        let mut byte = [0];
        while let Ok(1) = control.read(&mut byte) {}
        let _ = events.send(Event::StopAsked);
    })?;
    Ok(())
}

/// Reaps every process below the supervisor: the command, and orphans that the supervisor inherits.
/// Begins when it receives the command's id.
fn reap(events: Sender<Event>) -> io::Result<Sender<Pid>> {
    let (started, command) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let Ok(command) = command.recv() else { return };
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == command => {
                    let _ = events.send(Event::Ended(status));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => {
                    let _ = events.send(Event::NoneLeft);
                    return;
                }
            }
        }
    })?;
    Ok(started)
}

struct Tree {
    /// The command, or process 1 of its namespace, which ends with the command.
    command: Pid,
    cgroup: Option<Cgroup>,
    namespace: Option<Namespace>,
    events: Receiver<Event>,
    ended: Option<WaitStatus>,
    none_left: bool,
}

impl Tree {
    /// Waits until the command has ended or must end.
    fn watch(&mut self, request: &Request) -> Ending {
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let until_watch = request.limits.processes_max.map(|_| WATCH_EVERY);
            match self.next([left, until_watch].into_iter().flatten().min()) {
                // A refusal counts even if the command went on, because the result must not depend
                // on when the supervisor sees it.
                Some(Event::Ended(_)) if self.was_refused() => return Ending::TooManyProcesses,
                Some(Event::Ended(status)) => return self.ending(status),
                Some(Event::StopAsked) => return Ending::Stopped,
                Some(Event::NoneLeft) => return Ending::Unsupervised,
                None => {}
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ending::TimedOut;
            }
            // The count is for a task without a cgroup, and for a task that has left its cgroup.
            let is_exceeded = |max| self.is_exceeded(max);
            if self.was_refused() || request.limits.processes_max.is_some_and(is_exceeded) {
                return Ending::TooManyProcesses;
            }
        }
    }

    fn ending(&self, status: WaitStatus) -> Ending {
        match &self.namespace {
            Some(namespace) => namespace.ending(status),
            None => Ending::of(status),
        }
    }

    /// Whether the task has more processes than `max`.
    fn is_exceeded(&self, max: u32) -> bool {
        let ours = self.namespace.as_ref().map_or(0, |_| namespace::PROCESSES_OF_OURS);
        let max = max.saturating_add(ours) as usize;
        tree::count_descendants(getpid(), max.saturating_add(1)) > max
    }

    fn was_refused(&self) -> bool {
        self.cgroup.as_ref().is_some_and(Cgroup::was_refused)
    }

    /// Sends SIGTERM, and gives the command `grace` to end.
    fn terminate(&mut self, grace: Duration) {
        tree::signal_descendants(getpid(), Signal::TERM);
        let deadline = Instant::now() + grace;
        while self.ended.is_none() && !self.none_left {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.next(Some(left));
        }
    }

    /// Kills until no process is left.
    fn kill(&mut self) {
        // The group first, because the kernel kills a whole group between two forks. An error means
        // that the group is gone.
        let _ = kill_process_group(self.command, Signal::KILL);
        let deadline = Instant::now() + KILL_FOR_MAX;
        while !self.none_left && Instant::now() < deadline {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            tree::kill_descendants(getpid());
            self.next(Some(KILL_EVERY));
        }
    }

    /// The next event, or `None` when `within` has passed.
    fn next(&mut self, within: Option<Duration>) -> Option<Event> {
        let event = match within {
            Some(within) => match self.events.recv_timeout(within) {
                Err(RecvTimeoutError::Timeout) => return None,
                received => received.ok(),
            },
            None => self.events.recv().ok(),
        };
        match event {
            Some(Event::Ended(status)) => self.ended = Some(status),
            // Both threads end only after they have sent their event.
            Some(Event::NoneLeft) | None => self.none_left = true,
            Some(Event::StopAsked) => {}
        }
        Some(event.unwrap_or(Event::NoneLeft))
    }
}

/// Runs `race` with a higher priority than the processes it must catch, if this process may. There
/// may be thousands, each with a full share of the CPU; a walk over them would get one share of
/// thousands and never end.
fn with_priority(race: impl FnOnce()) {
    const AUTOGROUP: &str = "/proc/self/autogroup";
    const FIRST: i32 = -20;
    let _ = setpriority_process(None, FIRST);
    // The worker's session shares this priority, so that it is restored.
    let before = fs::read_to_string(AUTOGROUP).ok();
    let _ = fs::write(AUTOGROUP, FIRST.to_string());
    race();
    if let Some((_, nice)) = before.as_deref().and_then(|text| text.trim().rsplit_once(' ')) {
        let _ = fs::write(AUTOGROUP, nice);
    }
}
