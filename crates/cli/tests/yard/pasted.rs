//! Blocks of a document, pasted into a shell as a reader would do. The real binary is in `PATH`. An
//! address of a subnet replaces 127.0.0.1, so that the ports in the document are free.

use super::subnet::Subnet;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longer than any pasted block takes on a busy machine, and shorter than the test runner waits.
const DEADLINE: Duration = Duration::from_secs(270);
/// The processes of a killed shell end within this time.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// A fenced block of a Markdown document.
pub(crate) struct Block<'a> {
    /// The last heading of the second level before the block.
    pub(crate) section: &'a str,
    /// The words after the three backticks.
    pub(crate) kind: &'a str,
    pub(crate) text: String,
}

/// All fenced blocks of a document, in order.
pub(crate) fn blocks(document: &str) -> Vec<Block<'_>> {
    let mut found: Vec<Block<'_>> = Vec::new();
    let mut section = "";
    let mut is_inside = false;
    for line in document.lines() {
        match (is_inside, line.strip_prefix("```")) {
            (false, Some(kind)) => {
                found.push(Block { section, kind, text: String::new() });
                is_inside = true;
            }
            (true, Some(_)) => is_inside = false,
            (true, None) => {
                let block = found.last_mut().expect("a line inside of a block has a block");
                block.text += &format!("{line}\n");
            }
            (false, None) => section = line.strip_prefix("## ").unwrap_or(section),
        }
    }
    found
}

/// A folder and an address for pasted blocks.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    subnet: Subnet,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap(), subnet: Subnet::free() }
    }

    /// The address that replaces 127.0.0.1.
    pub(crate) fn host(&self) -> String {
        self.subnet.host(1).to_string()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a shell that runs `commands` in an empty folder and writes what they print to the
    /// file `name`. Every command must succeed.
    pub(crate) fn paste(&self, name: &str, commands: &str) -> Shell {
        let host = self.host();
        let commands = commands.replace("127.0.0.1", &host);
        let work = self.file("work");
        fs::create_dir_all(&work).unwrap();
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TASKYARD_") {
                command.env_remove(name);
            }
        }
        let binary = Path::new(env!("CARGO_BIN_EXE_taskyard")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", binary.display())).env("NO_COLOR", "1");
        // Instead of the defaults that a document relies on. The last two save time and disk space.
        command.env("TASKYARD_URL", format!("http://{host}:7400"));
        command.env("TASKYARD_FAKTORY", "none");
        command.env("TASKYARD_SHARDS", "8").env("TASKYARD_DISK_RESERVE", "1M");
        command.arg("-c").arg(format!("set -euxo pipefail\n{commands}")).current_dir(work);
        let log = self.file(name);
        let output = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Shell { process: command.process_group(0).spawn().unwrap(), log }
    }
}

/// A shell and the processes that it started; dropping it kills all of them.
pub(crate) struct Shell {
    process: Child,
    log: PathBuf,
}

impl Shell {
    /// The output of the commands so far.
    pub(crate) fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The exit status, unless the shell still runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&self) {
        kill_process_group(Pid::from_child(&self.process), Signal::INT).unwrap();
    }

    /// Waits until the last command has succeeded; returns the output of all commands.
    pub(crate) fn succeed(&mut self, what: &str) -> String {
        let started = Instant::now();
        while started.elapsed() < DEADLINE {
            if let Some(status) = self.ended() {
                assert!(status.success(), "{what}: {status}, after\n{}", self.printed());
                return self.printed();
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{what} did not end within {DEADLINE:?}; it printed\n{}", self.printed())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.process);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.process.wait();
        let started = Instant::now();
        while test_kill_process_group(group).is_ok() && started.elapsed() < GONE_WITHIN {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
