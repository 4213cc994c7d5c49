//! A command of a task: shown before it starts, and again if it fails.

use anyhow::{Context, Result};
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// A program, its arguments and its variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Step {
    /// `line` is split at spaces, so that no argument may have one.
    pub(crate) fn new(line: &str) -> Step {
        let mut words = line.split_whitespace().map(str::to_string);
        Step { program: words.next().unwrap_or_default(), args: words.collect(), env: Vec::new() }
    }

    /// A program by its path, which may have spaces.
    pub(crate) fn at(program: &Path, args: &str) -> Step {
        let args = args.split_whitespace().map(str::to_string).collect();
        Step { program: program.display().to_string(), args, env: Vec::new() }
    }

    /// An option and its path, which may have spaces.
    pub(crate) fn arg(mut self, option: &str, path: &Path) -> Step {
        self.args.extend([option.to_string(), path.display().to_string()]);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Step {
        self.env.push((name.to_string(), value.to_string()));
        self
    }

    /// The command line that repeats the step.
    pub(crate) fn shown(&self) -> String {
        let env = self.env.iter().map(|(name, value)| format!("{name}='{value}'"));
        let command = std::iter::once(self.program.clone()).chain(self.args.iter().cloned());
        env.chain(command).collect::<Vec<_>>().join(" ")
    }

    /// Runs the step with its output on the terminal; returns whether it succeeded.
    pub(crate) fn run(&self, root: &Path) -> Result<bool> {
        let status = self.command(root).status();
        Ok(status.with_context(|| format!("can't start {}", self.shown()))?.success())
    }

    /// Whether the step can be started and succeeds; shows no output.
    pub(crate) fn succeeds_silently(&self, root: &Path) -> bool {
        let mut command = self.command(root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(root);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_shown_as_it_would_be_typed() {
        let step = Step::new("cargo doc --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(step.shown(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_program_that_does_not_exist_is_not_there() {
        assert!(!Step::new("no-such-program-here --version").succeeds_silently(Path::new(".")));
    }
}
