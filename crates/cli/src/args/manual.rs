//! Arguments of `completions` and `man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskyard completions bash > /etc/bash_completion.d/taskyard
  taskyard completions zsh > \"${fpath[1]}/_taskyard\"
  taskyard completions fish > ~/.config/fish/completions/taskyard.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskyard man | man -l -
  taskyard man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write one page per command to this folder; the folder is created if it does not exist.
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}
