//! A broker and workers as processes of the real binary, for the tests of the CLI.

pub(crate) mod needs;
pub(crate) mod packages;
pub(crate) mod pasted;
pub(crate) mod subnet;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any wait of these tests on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A process that is killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits for its end and returns its exit code.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.status().code()
    }

    /// Waits for its end and returns its status, which names the signal of a killed process.
    pub(crate) fn status(&mut self) -> ExitStatus {
        until("a process ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A broker on a data directory.
pub(crate) struct Yard {
    pub(crate) broker: Process,
    pub(crate) url: String,
    pub(crate) folder: TempDir,
}

impl Yard {
    pub(crate) fn start() -> Yard {
        Yard::start_in(tempfile::tempdir().unwrap())
    }

    pub(crate) fn start_in(folder: TempDir) -> Yard {
        let broker = serve(&folder.path().join("data"));
        Yard::start_as(folder, broker)
    }

    /// Starts `command` as the broker.
    pub(crate) fn start_as(folder: TempDir, command: Command) -> Yard {
        Yard::start_and_tell(folder, command).0
    }

    /// Starts `command` as the broker. Returns the first line of its output too.
    pub(crate) fn start_and_tell(folder: TempDir, mut command: Command) -> (Yard, Value) {
        let mut broker = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(broker.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).expect("the broker prints its address");
        let url = started["url"].as_str().unwrap().to_owned();
        (Yard { broker, url, folder }, started)
    }

    /// Kills the broker, if it still runs, and starts a new one on its directory.
    pub(crate) fn restart(self) -> Yard {
        let Yard { broker, folder, .. } = self;
        drop(broker);
        Yard::start_in(folder)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        command.args(arguments).env("TASKYARD_URL", &self.url).env("NO_COLOR", "1");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments), arguments)
    }

    /// Runs a command that must succeed, and returns its stdout without the last line end.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
        ran.stdout.trim_end().to_owned()
    }

    /// Runs a command that must succeed with `--json`, and returns its lines.
    pub(crate) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        self.ok(&arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn task(&self, id: &str) -> Value {
        self.json(&["task", "get", id]).remove(0)
    }

    pub(crate) fn until_state(&self, id: &str, state: &str) -> Value {
        until(&format!("task {id} is {state}"), || self.task(id)["state"] == state);
        self.task(id)
    }

    /// A worker that runs `exec` for each task of `queue`.
    pub(crate) fn work(&self, queue: &str, exec: &str, more: &[&str]) -> Process {
        let mut arguments = vec!["work", "--queue", queue, "--exec", exec, "--log", "warn"];
        arguments.extend(more);
        let folder = self.folder.path();
        Process(self.command(&arguments).env("FOLDER", folder).spawn().unwrap())
    }

    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

/// `taskyard serve` on `data`, on any free port.
pub(crate) fn serve(data: &Path) -> Command {
    serve_at(data, "127.0.0.1:0")
}

/// `taskyard serve` on `data`, at `address`.
pub(crate) fn serve_at(data: &Path, address: &str) -> Command {
    serve_on(data, address, "none")
}

/// `taskyard serve` on `data`, on free ports for its own clients and Faktory's.
pub(crate) fn serve_with_faktory(data: &Path) -> Command {
    serve_with_faktory_at(data, "127.0.0.1:0")
}

/// `taskyard serve` on `data`, with the address `faktory` for Faktory's clients.
pub(crate) fn serve_with_faktory_at(data: &Path, faktory: &str) -> Command {
    serve_on(data, "127.0.0.1:0", faktory)
}

fn serve_on(data: &Path, address: &str, faktory: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(["serve", "--json", "--listen", address, "--shards", "4", "--log", "warn"]);
    command.args(["--peer", "127.0.0.1:0", "--faktory", faktory]);
    command.args(["--disk-reserve", "1M", "--data"]).arg(data).stdin(Stdio::null());
    command
}

/// The exit code and output of a command.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(mut command: Command, arguments: &[&str]) -> Ran {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let code = status.code().unwrap_or_else(|| panic!("{arguments:?} ended by {status}"));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code, stdout: text(stdout), stderr: text(stderr) }
    }
}

/// Polls until a condition holds. For conditions without an event.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The live processes of a task, zombies aside.
pub(crate) fn processes_of(id: &str) -> usize {
    let marker = format!("TASKYARD_ID={id}");
    let carries = |path: &Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == marker.as_bytes())
    };
    fs::read_dir("/proc").unwrap().flatten().filter(|entry| carries(&entry.path())).count()
}

/// Runs the binary without a broker of its own.
pub(crate) fn taskyard(arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(arguments).stdin(Stdio::null()).env_remove("TASKYARD_URL");
    Ran::of(command, arguments)
}

/// Checks that a folder is empty and that no process names the folder in its arguments.
pub(crate) fn check_nothing_is_left(folder: &Path) {
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "the folder is not empty");
    let folder = folder.to_str().unwrap();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        assert!(!arguments.contains(folder), "still runs: {arguments}");
    }
}
