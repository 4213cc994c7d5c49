//! Confirmation: asks before a command changes many tasks, or removes something for good.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;

use crate::remote::usage;

/// Whether a person can be asked.
fn is_attended() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a person before a large load starts. A script is not asked, because nobody could answer.
pub(crate) fn confirm(yes: bool, question: &str) -> Result<()> {
    if yes || !is_attended() { Ok(()) } else { ask(question) }
}

/// Asks before something is removed for good. Where nobody can be asked, `--yes` is required.
pub(crate) fn confirm_removal(yes: bool, question: &str) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !is_attended() {
        return Err(usage(format!("{question} This can't be undone: say --yes if you mean it")));
    }
    ask(question)
}

/// Returns when the answer is yes.
fn ask(question: &str) -> Result<()> {
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => anyhow::bail!("nothing was changed"),
    }
}
