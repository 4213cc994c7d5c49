//! docs/operations.md does what it says: the commands of each section are run as they stand, in one shell,
//! in an empty folder. Each section has addresses of its own in place of 127.0.0.1, so that the ports
//! of the document meet nobody's.

use crate::yard::subnet::Subnet;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const DOCUMENT: &str = include_str!("../../../docs/operations.md");
/// What comes after the three backticks of a block that is run, and of others.
const RUN: &str = "sh test";
const SHOWN: [&str; 2] = ["sh", "text"];

/// Longer than any section takes on a busy machine; shorter than what the runner of tests waits for one.
const DEADLINE: Duration = Duration::from_secs(270);
/// What was killed is gone within this, unless nobody asks for its exit code.
const GONE_WITHIN: Duration = Duration::from_secs(5);

macro_rules! sections {
    ($($name:ident: $title:literal,)*) => {
        $(
            #[test]
            fn $name() {
                run($title);
            }
        )*

        #[test]
        fn every_section_with_commands_is_run() {
            let found = blocks();
            assert_eq!(found.keys().copied().collect::<Vec<_>>(), [$($title),*]);
        }
    };
}

// In alphabetical order.
sections! {
    backup_and_disaster: "Backup and disaster",
    forming: "Forming",
    growing: "Growing",
    moving_leaders: "Moving leaders",
    replacing_a_node_that_is_lost: "Replacing a node that is lost",
    shrinking: "Shrinking",
    stopping_and_upgrading: "Stopping and upgrading",
}

/// The commands of each section that has some, by its heading.
fn blocks() -> BTreeMap<&'static str, String> {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    let mut section = "";
    let mut block = None;
    for line in DOCUMENT.lines() {
        match (block, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                assert!(kind == RUN || SHOWN.contains(&kind), "{section}: a block of {kind:?}");
                block = Some(kind);
            }
            (Some(_), Some(_)) => block = None,
            (Some(RUN), None) => *found.entry(section).or_default() += &format!("{line}\n"),
            (Some(_), None) => {}
            (None, None) => section = line.strip_prefix("## ").unwrap_or(section),
        }
    }
    found
}

/// Runs the commands of a section. Every one of them must succeed.
fn run(section: &str) {
    let subnet = Subnet::free();
    let here = subnet.host(1).to_string();
    let commands = blocks()[section].replace("127.0.0.1", &here);
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let work = folder.path().join("work");
    fs::create_dir(&work).unwrap();
    let mut command = Command::new("bash");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TASKYARD_") {
            command.env_remove(name);
        }
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_taskyard")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", binary.display())).env("NO_COLOR", "1");
    // Where the document relies on the default. The rest makes it faster, and possible on a small disk.
    command.env("TASKYARD_URL", format!("http://{here}:7400"));
    // As the document says before its first command.
    command.env("TASKYARD_FAKTORY", "none");
    command.env("TASKYARD_SHARDS", "8").env("TASKYARD_DISK_RESERVE", "1M");
    command.arg("-c").arg(format!("set -euxo pipefail\n{commands}")).current_dir(work);
    let output = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut shell = Shell(command.process_group(0).spawn().unwrap());
    let ended = shell.wait();
    let said = || fs::read_to_string(&log).unwrap();
    match ended {
        Some(status) => assert!(status.success(), "{section}: {status}, after\n{}", said()),
        None => panic!("{section} did not end within {DEADLINE:?}; it said\n{}", said()),
    }
}

/// A shell with all that it has started, which ends with this.
struct Shell(Child);

impl Shell {
    /// How it ended; `None` if it did not.
    fn wait(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < DEADLINE {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
        let started = Instant::now();
        while test_kill_process_group(group).is_ok() && started.elapsed() < GONE_WITHIN {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
