//! Needs: requirements of some tests beyond a compiler, and checks for them. A test whose need is
//! not met is skipped with a message; if `TASKYARD_TESTS_REQUIRE` names the need, it fails.
//!
//! `cargo xtask check` is built with this file too, to say beforehand what there is: standard
//! library only.

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
    /// Networks of the test's own, by `unshare`, `nsenter` and `ip`.
    Namespaces,
    /// Small disks of the test's own, by `unshare` and `mount`.
    Disks,
    /// Cgroups below the test's own.
    Cgroups,
    /// To become a user that has no other processes.
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

    /// Whether a list names it; why not, if the list has a word that means nothing.
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

    /// Whether `TASKYARD_TESTS_REQUIRE` names it.
    pub(crate) fn is_required(self) -> Result<bool, String> {
        self.is_in(&std::env::var(REQUIRE).unwrap_or_default())
    }

    /// Says that what needs this is skipped.
    ///
    /// # Panics
    /// If it is required.
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

/// New namespaces for networks, mounts and processes. With the last one nothing outlives the test.
pub(crate) const NAMESPACES: [&str; 5] = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
/// Where users may be root in a namespace of users, and where root may do it at once.
const RIGHTS: [&[&str]; 2] = [&["--user", "--map-root-user"], &[]];
/// Whatever a test needs later.
const PROBE: &str = "mount -t tmpfs none /run && ip netns add probe && \
    ip link add probe-1 type veth peer name probe-2 netns probe && ip link add probe-3 type bridge && \
    ip -n probe link set probe-2 up && nsenter --net=/run/netns/probe true";

/// What `unshare` is to be told to make networks here; or why they can't be made.
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

/// Whether nodes can have disks of their own here, or why not.
pub(crate) fn disks() -> Result<(), String> {
    let words = on_disk("1m", &std::env::temp_dir());
    let probed = tried(Command::new(&words[0]).args(&words[1..]).arg("true"));
    probed
        .map_err(|problem| format!("no disk of its own can be mounted for a node here: {problem}"))
}

/// Whether Python and what installs its packages are here.
pub(crate) fn python() -> Result<(), String> {
    tried(Command::new("python3").args(["-m", "pip", "--version"]))
}

/// Whether Node and what installs its packages are here.
pub(crate) fn node() -> Result<(), String> {
    tried(Command::new("node").arg("--version"))?;
    tried(Command::new("npm").arg("--version"))
}

/// What a command begins with for which `folder` is a small disk.
pub(crate) fn on_disk(size: &str, folder: &Path) -> Vec<String> {
    let script = "mount -t tmpfs -o size=$0 none $1 && shift && exec \"$@\"";
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, size];
    let folder = folder.display().to_string();
    words.into_iter().map(str::to_owned).chain([folder]).collect()
}

/// Runs a command to its end, which must be a good one.
fn tried(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
    }
}
