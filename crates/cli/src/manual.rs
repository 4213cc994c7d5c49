//! `taskyard completions` and `taskyard man`: shell completions and man pages, made from the
//! definitions that parse the command line, so that they cannot differ.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use clap::CommandFactory;
use serde::Serialize;

use crate::{
    args::{Cli, CompletionsArgs, ManArgs},
    output::Output,
    values,
};

const NAME: &str = "taskyard";

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs, output: Output) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    output.line(&String::from_utf8(script).context("the completions are not UTF-8")?)?;
    Ok(())
}

#[derive(Serialize)]
struct Written<'a> {
    folder: &'a Path,
    pages: u64,
}

/// Prints the page of `taskyard`, or writes the pages of all commands to a folder.
pub(crate) fn man(args: &ManArgs, output: Output) -> Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        output.line(&String::from_utf8(page).context("the page is not UTF-8")?)?;
        return Ok(());
    };
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("cannot create {shown}"))?;
    let pages = pages(&command);
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write man pages to {shown}"))?;
    output.done(
        &Written { folder, pages },
        format!("wrote {} to {shown}", values::count(pages, "man page")),
    )?;
    Ok(())
}

/// A page for a command and for each command below it.
fn pages(command: &clap::Command) -> u64 {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    1 + below.map(pages).sum::<u64>()
}
