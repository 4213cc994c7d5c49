//! `cargo xtask`: the house tasks of this workspace.
//!
//! `check` is the whole gate and never writes to the tree; `fix` writes; `tidy` checks the house
//! rules that a linter cannot know; `faktory` runs the tests of a foreign client; `release` builds
//! the binary that is shipped.

mod check;
mod faktory;
#[path = "../../crates/cli/tests/yard/needs.rs"]
mod needs;
mod release;
mod scope;
mod step;
mod tidy;

use anyhow::{Result, bail};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [-p CRATE] [STEP...]  the whole gate, or only one crate or the named steps; never writes
                              to the tree
  fix                         format and apply what clippy can repair
  tidy                        the house rules alone
  faktory                     run the tests that the crate faktory ships against the broker
  release                     build the release binary; print its path, size and checksum

steps of check: ";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// `false` means that the task ran and found problems.
fn run(args: &[String]) -> Result<bool> {
    let root = workspace_root();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["check", args @ ..] => check::check(&root, args),
        ["fix"] => check::fix(&root),
        ["tidy"] => tidy::run(&root),
        ["faktory"] => faktory::faktory(&root),
        ["release"] => release::release(&root),
        [] | ["help" | "-h" | "--help"] => {
            println!("{USAGE}{}", check::step_names().join(" "));
            Ok(true)
        }
        other => bail!("unknown command {:?}; see cargo xtask help", other.join(" ")),
    }
}

/// The root of the workspace. Cargo names it at run time, so that a copied tree does not use the
/// old one.
fn workspace_root() -> PathBuf {
    let manifest_dir = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    Path::new(&manifest_dir).parent().unwrap_or(Path::new(".")).to_path_buf()
}
