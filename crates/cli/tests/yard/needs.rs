//! Needs: requirements of some tests beyond a compiler, and checks for them. A test whose need is
//! not met is skipped with a message; if `TASKYARD_TESTS_REQUIRE` names the need, it fails.
//!
//! `cargo xtask check` includes this file to report beforehand which needs are met. So this file
//! uses only the standard library.

#![allow(dead_code, reason = "the gate and the tests each use a part of this")]

use std::{
    fmt::{self, Display},
    path::Path,
    process::{Command, Stdio},
};

/// The variable with a list of required needs, separated by commas.
pub(crate) const REQUIRE: &str = "TASKYARD_TESTS_REQUIRE";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Private networks, by `unshare`, `nsenter` and `ip`.
    Namespaces,
    /// Small private disks, by `unshare` and `mount`.
    Disks,
    /// Cgroups below the test's own.
    Cgroups,
    /// The right to become a user without other processes.
    Users,
    /// `cc`.
    Compiler,
    /// `python3` with pip, and the registry of its packages.
    Python,
    /// `node` with npm, and the registry of its packages.
    Node,
}

impl Need {
    pub(crate) const ALL: [Need; 7] = [
        Need::Namespaces,
        Need::Disks,
        Need::Cgroups,
        Need::Users,
        Need::Compiler,
        Need::Python,
        Need::Node,
    ];

    fn word(self) -> &'static str {
        match self {
            Need::Namespaces => "namespaces",
            Need::Disks => "disks",
            Need::Cgroups => "cgroups",
            Need::Users => "users",
            Need::Compiler => "compiler",
            Need::Python => "python",
            Need::Node => "node",
        }
    }

    /// Whether a list names this need. An unknown word in the list is an error.
    pub(crate) fn is_in(self, list: &str) -> Result<bool, String> {
        let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        let is_known = |word: &str| Need::ALL.iter().any(|need| need.word() == word);
        match words.iter().find(|word| !is_known(word)) {
            None => Ok(words.contains(&self.word())),
            Some(unknown) => {
                let known = Need::ALL.map(Need::word).join(", ");
                Err(format!("{REQUIRE} has {unknown:?}; the words that it knows are {known}"))
            }
        }
    }

    /// Whether `TASKYARD_TESTS_REQUIRE` names this need.
    pub(crate) fn is_required(self) -> Result<bool, String> {
        self.is_in(&std::env::var(REQUIRE).unwrap_or_default())
    }

    /// Reports that a test is skipped, and why.
    ///
    /// # Panics
    /// If this need is required.
    pub(crate) fn skip(self, why: impl Display) {
        let is_required = self.is_required().unwrap_or_else(|problem| panic!("{problem}"));
        assert!(!is_required, "{REQUIRE} has {self}, but {why}");
        eprintln!("SKIPPED: {why}");
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// New namespaces for networks, mounts and processes. The last one makes sure that no process
/// outlives the test.
pub(crate) const NAMESPACES: [&str; 5] = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
/// The arguments for a user who may be root in a user namespace, and for root.
const RIGHTS: [&[&str]; 2] = [&["--user", "--map-root-user"], &[]];
/// Everything that a test does later in its namespaces.
const PROBE: &str = "mount -t tmpfs none /run && ip netns add probe && \
    ip link add probe-1 type veth peer name probe-2 netns probe && ip link add probe-3 type bridge && \
    ip -n probe link set probe-2 up && nsenter --net=/run/netns/probe true";

/// The arguments with which `unshare` can make networks here, or why it can't.
pub(crate) fn namespaces() -> Result<&'static [&'static str], String> {
    let mut problems = Vec::new();
    for rights in RIGHTS {
        let mut probe = Command::new("unshare");
        probe.args(rights).args(NAMESPACES).args(["sh", "-c", PROBE]);
        match tried(&mut probe) {
            Ok(()) => return Ok(rights),
            Err(problem) => problems.push(problem),
        }
    }
    Err(format!("no network namespaces can be made here: {}", problems.join("; ")))
}

/// Whether nodes can have their own disks here, or why not.
pub(crate) fn disks() -> Result<(), String> {
    let words = on_disk("1m", &std::env::temp_dir());
    let probed = tried(Command::new(&words[0]).args(&words[1..]).arg("true"));
    probed
        .map_err(|problem| format!("no disk of its own can be mounted for a node here: {problem}"))
}

/// Whether Python and pip are here.
pub(crate) fn python() -> Result<(), String> {
    tried(Command::new("python3").args(["-m", "pip", "--version"]))
}

/// Whether Node and npm are here.
pub(crate) fn node() -> Result<(), String> {
    tried(Command::new("node").arg("--version"))?;
    tried(Command::new("npm").arg("--version"))
}

/// The first words of a command that sees a small disk at `folder`.
pub(crate) fn on_disk(size: &str, folder: &Path) -> Vec<String> {
    let script = "mount -t tmpfs -o size=$0 none $1 && shift && exec \"$@\"";
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, size];
    let folder = folder.display().to_string();
    words.into_iter().map(str::to_owned).chain([folder]).collect()
}

/// Runs a command that must succeed.
fn tried(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
    }
}
