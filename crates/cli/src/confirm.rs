//! Asks before something is done to many tasks that can't be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;

use crate::remote::usage;

/// Whether there is somebody who can be asked.
fn is_attended() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks before a load that nobody starts by a slip. A script means what it says.
pub(crate) fn confirm(yes: bool, question: &str) -> Result<()> {
    if yes || !is_attended() { Ok(()) } else { ask(question) }
}

/// Asks before something is removed, which can't be undone: where nobody can be asked, only
/// `--yes` is a yes.
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
