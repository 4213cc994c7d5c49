//! Asks before something is done to many tasks that can't be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;

/// Returns when the answer is yes. A script has nobody to ask: it means what it says.
pub(crate) fn confirm(yes: bool, question: &str) -> Result<()> {
    if yes || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => anyhow::bail!("nothing was changed"),
    }
}
