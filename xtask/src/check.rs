//! `check`, the whole gate, and `fix`, which lets tools repair what they can.
//!
//! Invariants: `check` never writes to the tree (`--locked` keeps Cargo.lock as it is), stops at
//! the first failure with the command that repeats it, and says what it skipped. Cheap steps come
//! first. Every cargo step of a run has the same selection and all features, so that dependencies
//! are built once for checking and once for running, never once per step.

use crate::{
    needs::{self, Need},
    scope::Scope,
    step::Step,
    tidy,
};
use anyhow::{Error, Result, bail};
use std::{num::NonZero, path::Path, time::Instant};

/// Seeds and steps of the bounded simulation: enough to notice a broken change, within seconds.
const SIM_ARGS: &str = "--seed 1 --seeds 20";

/// How one part of the gate ended.
enum Outcome {
    Passed,
    Failed { rerun: String },
    Skipped { why: &'static str },
}

type Part = (&'static str, fn(&Path, Scope) -> Result<Outcome>);

const PARTS: &[Part] = &[
    ("fmt", fmt),
    ("tidy", house_rules),
    ("deny", deny),
    ("clippy", clippy),
    ("docs", docs),
    ("test", test),
    ("doctest", doctest),
    ("sim", sim),
];

pub(crate) fn step_names() -> Vec<&'static str> {
    PARTS.iter().map(|(name, _)| *name).collect()
}

/// Runs the named parts of the gate, or all, over the workspace or one crate (`-p CRATE`); `false`
/// at the first part that fails.
pub(crate) fn check(root: &Path, args: &[&str]) -> Result<bool> {
    let (scope, names) = parse(args)?;
    if names.is_empty() || names.contains(&"test") {
        say_what_tests_find()?;
    }
    let (mut passed, mut skipped) = (0, Vec::new());
    for (name, part) in PARTS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        println!("==> {name}");
        let started = Instant::now();
        let outcome = part(root, scope)?;
        let seconds = started.elapsed().as_secs_f32();
        match outcome {
            Outcome::Passed => {
                println!("    {name} passed in {seconds:.1} s");
                passed += 1;
            }
            Outcome::Skipped { why } => {
                println!("    {name} skipped: {why}");
                skipped.push(*name);
            }
            Outcome::Failed { rerun } => {
                println!("    {name} FAILED after {seconds:.1} s; run it again with: {rerun}");
                println!("check: {passed} passed, 1 failed");
                return Ok(false);
            }
        }
    }
    match skipped.as_slice() {
        [] => println!("check: {passed} passed, 0 failed"),
        _ => println!("check: {passed} passed, 0 failed, skipped: {}", skipped.join(", ")),
    }
    Ok(true)
}

/// The requested crates and parts.
fn parse<'a>(args: &[&'a str]) -> Result<(Scope, Vec<&'a str>)> {
    let mut scope = Scope::Workspace;
    let mut names = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "-p" | "--package" => {
                let Some(name) = args.next() else { bail!("{arg} needs a crate, such as -p cli") };
                scope = Scope::of_crate(name)?;
            }
            name if step_names().contains(&name) => names.push(name),
            unknown => {
                bail!("check has no step {unknown:?}; its steps are {}", step_names().join(" "))
            }
        }
    }
    Ok((scope, names))
}

/// Formats, and lets clippy repair what it can.
pub(crate) fn fix(root: &Path) -> Result<bool> {
    let clippy =
        "cargo clippy --fix --allow-dirty --allow-staged --workspace --all-targets --all-features";
    for step in [Step::new(clippy), Step::new("cargo fmt --all")] {
        println!("==> {}", step.shown());
        if !step.run(root)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fmt(root: &Path, scope: Scope) -> Result<Outcome> {
    need(root, "cargo fmt --version", "rustup component add rustfmt")?;
    outcome_of(&Step::new(&format!("cargo fmt {} --check", scope.formatted())), root)
}

/// The rules compare files with each other, so that they always read the whole tree.
fn house_rules(root: &Path, _scope: Scope) -> Result<Outcome> {
    Ok(match tidy::run(root)? {
        true => Outcome::Passed,
        false => Outcome::Failed { rerun: "cargo xtask tidy".to_string() },
    })
}

fn deny(root: &Path, scope: Scope) -> Result<Outcome> {
    if scope != Scope::Workspace {
        return Ok(Outcome::Skipped { why: "dependencies are judged for the whole workspace" });
    }
    if !Step::new("cargo deny --version").succeeds_silently(root) {
        let why = "cargo-deny is not installed; cargo install cargo-deny --locked brings it";
        return Ok(Outcome::Skipped { why });
    }
    outcome_of(&Step::new("cargo deny --all-features --locked check bans licenses sources"), root)
}

fn clippy(root: &Path, scope: Scope) -> Result<Outcome> {
    need(root, "cargo clippy --version", "rustup component add clippy")?;
    let line = format!("cargo clippy {} --all-targets -- -D warnings", scope.selection());
    outcome_of(&Step::new(&line), root)
}

/// A broken link between documentation comments is an error, like a broken call.
fn docs(root: &Path, scope: Scope) -> Result<Outcome> {
    let line = format!("cargo doc {} --no-deps", scope.selection());
    outcome_of(&Step::new(&line).env("RUSTDOCFLAGS", "-D warnings"), root)
}

fn test(root: &Path, scope: Scope) -> Result<Outcome> {
    let nextest = Step::new("cargo nextest --version").succeeds_silently(root);
    let line = match (nextest, scope.has_library()) {
        (true, _) => {
            format!("cargo nextest run {} --test-threads {}", scope.selection(), threads())
        }
        (false, true) => {
            format!("cargo test {} --lib --bins --tests --examples", scope.selection())
        }
        (false, false) => format!("cargo test {} --bins --tests --examples", scope.selection()),
    };
    outcome_of(&Step::new(&line), root)
}

/// Twice as many tests as cores: most of them wait for processes, disks and clocks.
fn threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Says which tests will be skipped on this machine, and stops where they are required.
fn say_what_tests_find() -> Result<()> {
    let found = [
        (Need::Namespaces, needs::namespaces().map(drop)),
        (Need::Disks, needs::disks()),
        (Need::Python, needs::python()),
        (Need::Node, needs::node()),
    ];
    for (need, met) in found {
        let is_required = need.is_required().map_err(Error::msg)?;
        match met {
            Ok(()) => println!("tests with {need} can run here"),
            Err(why) if is_required => bail!("{} has {need}, but {why}", needs::REQUIRE),
            Err(why) => println!("tests with {need} will be skipped: {why}"),
        }
    }
    Ok(())
}

fn doctest(root: &Path, scope: Scope) -> Result<Outcome> {
    if !scope.has_library() {
        return Ok(Outcome::Skipped { why: "the crate has no library" });
    }
    outcome_of(&Step::new(&format!("cargo test {} --doc", scope.selection())), root)
}

/// Builds the simulator within the workspace's features, which the tests have built already, and
/// runs it. `cargo run -p` would build its dependencies a second time with fewer features.
fn sim(root: &Path, scope: Scope) -> Result<Outcome> {
    if !scope.is_simulated() {
        return Ok(Outcome::Skipped { why: "the simulation does not run this crate" });
    }
    let selection = match scope {
        Scope::Workspace => scope.selection(),
        Scope::Package(_) => Scope::of_crate("sim")?.selection(),
    };
    let build = Step::new(&format!("cargo build {selection} --bin taskyard-sim"));
    let built = outcome_of(&build, root)?;
    if !matches!(built, Outcome::Passed) {
        return Ok(built);
    }
    // This program and the simulator are binaries of one workspace and one profile, so that they
    // are in one folder.
    let simulator = std::env::current_exe()?.with_file_name("taskyard-sim");
    let rerun = format!("cargo run -p taskyard-sim -- {SIM_ARGS}");
    println!("    {rerun}");
    Ok(match Step::at(&simulator, SIM_ARGS).run(root)? {
        true => Outcome::Passed,
        false => Outcome::Failed { rerun },
    })
}

fn outcome_of(step: &Step, root: &Path) -> Result<Outcome> {
    println!("    {}", step.shown());
    Ok(match step.run(root)? {
        true => Outcome::Passed,
        false => Outcome::Failed { rerun: step.shown() },
    })
}

/// Stops the gate when a part of the Rust toolchain itself is missing, because nothing can replace
/// it.
fn need(root: &Path, probe: &str, install: &str) -> Result<()> {
    if !Step::new(probe).succeeds_silently(root) {
        bail!("{probe} does not run; install it with: {install}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_takes_a_crate_and_steps_in_any_order() {
        let cli = Scope::Package("taskyard-cli");
        for args in [["-p", "cli", "test"], ["test", "--package", "taskyard-cli"]] {
            assert_eq!(parse(&args).unwrap(), (cli, vec!["test"]));
        }
        assert_eq!(parse(&[]).unwrap(), (Scope::Workspace, Vec::new()));
        for (args, part) in [
            (&["-p"][..], "-p needs a crate"),
            (&["-p", "nobody"], "there is no crate \"nobody\""),
            (&["tests"], "check has no step \"tests\""),
        ] {
            let problem = parse(args).unwrap_err().to_string();
            assert!(problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn a_need_is_required_by_its_word_and_other_words_are_refused() {
        assert_eq!(Need::Disks.is_in(""), Ok(false));
        assert_eq!(Need::Disks.is_in("namespaces"), Ok(false));
        assert_eq!(Need::Disks.is_in("namespaces, disks"), Ok(true));
        let problem = Need::Disks.is_in("disks,nodes").unwrap_err();
        assert!(problem.contains("has \"nodes\"; the words that it knows are namespaces, disks"));
    }
}
