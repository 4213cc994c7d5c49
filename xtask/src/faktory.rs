//! `faktory`: runs the tests of the crate `faktory`, a foreign client, against our broker.
//!
//! The crate comes unchanged from the registry, in one version. Its tests pass without a server if
//! their variables are absent. So each run names the number of tests that must pass, and the number
//! of jobs that they push: a test that does not reach the broker pushes none.

mod broker;
mod sources;

use anyhow::{Context, Result, bail};
use broker::Broker;
use sources::Sources;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The name and version of the crate.
const CRATE: (&str, &str) = ("faktory", "0.13.1");
/// The user's password in the run that needs one.
const PASSWORD: &str = "sesame";

/// The crate's tests that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("consumer, producer", "they talk to a server that the test itself plays"),
    (
        "tls, native_tls",
        "needs the headers of OpenSSL; for us it is the same as rustls, which runs",
    ),
];

/// A run of some tests against their own broker.
struct Run {
    name: &'static str,
    /// The test binary and its arguments.
    test: &'static str,
    args: &'static [&'static str],
    /// How many tests must pass.
    tests: usize,
    /// The least number of jobs that they push.
    jobs: u64,
    server: Server,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Open,
    /// Clients must know the password.
    Locked,
    /// Clients speak TLS.
    Encrypted,
}

const RUNS: &[Run] = &[
    Run {
        name: "in parallel",
        test: "real",
        args: &["--skip", "mutation_"],
        tests: 24,
        jobs: 69,
        server: Server::Open,
    },
    // One of these tests requeues all retries, also those of other tests.
    Run {
        name: "one at a time",
        test: "real",
        args: &["mutation_", "--test-threads=1"],
        tests: 3,
        jobs: 4,
        server: Server::Open,
    },
    // It pauses and removes all queues. The crate ignores it unless asked.
    Run {
        name: "alone, with a password",
        test: "real",
        args: &["--ignored", "queue_control_actions_wildcard"],
        tests: 1,
        jobs: 8,
        server: Server::Locked,
    },
    Run { name: "over TLS", test: "tls", args: &[], tests: 1, jobs: 1, server: Server::Encrypted },
];

/// Builds, runs all, and reports the results; `false` if a test failed or pushed too few jobs.
pub(crate) fn faktory(root: &Path) -> Result<bool> {
    let (name, version) = CRATE;
    let program = build_broker(root)?;
    let folder = root.join("target/faktory-crate");
    println!("==> the sources of {name} {version}");
    let sources = Sources::fetch(&folder, name, version)?;
    let certificate = folder.join("faktory/docker/certs/faktory.local.crt");
    let key = folder.join("faktory.local.key");
    broker::make_certificate(&certificate, &key)?;
    println!("==> build its tests");
    if !sources.test(&["--no-run"]).status()?.success() {
        bail!("the tests of {name} {version} can't be built");
    }
    let mut total = Tally::default();
    let mut short = Vec::new();
    for run in RUNS {
        println!("==> {}, {}", run.test, run.name);
        let broker = match run.server {
            Server::Open => Broker::start(&program, &[], None)?,
            Server::Locked => Broker::start(&program, &[], Some(PASSWORD))?,
            Server::Encrypted => {
                let tls = ["--faktory-tls-cert".as_ref(), certificate.as_os_str()];
                let tls = [tls[0], tls[1], "--faktory-tls-key".as_ref(), key.as_os_str()];
                Broker::start(&program, &tls, None)?
            }
        };
        let tally = run.perform(&sources, &broker, &program)?;
        if tally.passed != run.tests {
            short.push(format!("{}: {} of {} passed", run.name, tally.passed, run.tests));
        }
        let pushed = broker.pushed(&program)?;
        println!("    {pushed} jobs pushed");
        if pushed < run.jobs {
            short.push(format!("{}: {pushed} of {} jobs pushed", run.name, run.jobs));
        }
        total.passed += tally.passed;
        total.failed += tally.failed;
    }
    for (tests, why) in NOT_RUN {
        println!("not run: {tests}: {why}");
    }
    for line in &short {
        println!("short of {line}");
    }
    println!("faktory: {} passed, {} failed", total.passed, total.failed);
    Ok(total.failed == 0 && short.is_empty())
}

/// With the workspace's features, so that nothing is built twice.
fn build_broker(root: &Path) -> Result<PathBuf> {
    let line = "cargo build --workspace --all-features --locked --bin taskyard";
    println!("==> {line}");
    if !crate::step::Step::new(line).run(root)? {
        bail!("the broker can't be built");
    }
    // This program and the broker are binaries of one workspace and one profile.
    Ok(std::env::current_exe()?.with_file_name("taskyard"))
}

impl Run {
    /// Shows the output of the tests while it counts.
    fn perform(&self, sources: &Sources, broker: &Broker, program: &Path) -> Result<Tally> {
        let mut command = sources.test(&["--test", self.test, "--"]);
        command.args(self.args).env("FAKTORY_ENT", "1");
        command.env("TESTCONTAINERS_ENABLED", "1").env("TASKYARD", program);
        command.env_remove("FAKTORY_PROVIDER");
        match self.server {
            Server::Encrypted => command.env("FAKTORY_URL_SECURE", broker.url(None)),
            Server::Locked => command.env("FAKTORY_URL", broker.url(Some(PASSWORD))),
            Server::Open => command.env("FAKTORY_URL", broker.url(None)),
        };
        let mut tests = command.stdout(Stdio::piped()).spawn().context("can't start cargo")?;
        let mut tally = Tally::default();
        for line in BufReader::new(tests.stdout.take().context("no stdout")?).lines() {
            let line = line?;
            println!("    {line}");
            tally = Tally::parse(&line).unwrap_or(tally);
        }
        let ended_well = tests.wait()?.success();
        if !ended_well && tally.failed == 0 {
            bail!("{}: the tests came to no end", self.name);
        }
        Ok(tally)
    }
}

/// The numbers of passed and failed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    /// Reads the last line of a test binary.
    fn parse(line: &str) -> Option<Tally> {
        let counts = line.strip_prefix("test result: ")?;
        let count = |word: &str| {
            let mut words = counts.split([' ', ';', '.']).rev();
            words.find(|found| *found == word)?;
            words.next()?.parse().ok()
        };
        Some(Tally { passed: count("passed")?, failed: count("failed")? })
    }
}

/// A cargo command, without the variables that the outer cargo has set for this program.
fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_MANIFEST_DIR").stdin(Stdio::null());
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_test_binary_says_how_many_passed() {
        let line = "test result: FAILED. 24 passed; 2 failed; 1 ignored; 0 measured; 3 filtered \
                    out; finished in 14.02s";
        assert_eq!(Tally::parse(line), Some(Tally { passed: 24, failed: 2 }));
        assert_eq!(Tally::parse("test community::fail ... ok"), None);
    }
}
