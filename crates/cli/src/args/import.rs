//! Arguments of `import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The servers that jobs can be imported from.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// Move waiting jobs out of a running Faktory server.
    Faktory(ImportFaktoryArgs),
}

#[derive(Debug, Args)]
#[command(after_help = IMPORT_FAKTORY_HELP)]
pub(crate) struct ImportFaktoryArgs {
    /// The old server: tcp://:PASSWORD@host:port. Put it into the variable, where other users of
    /// this machine don't see the password.
    // Parsed later, because the argument parser would show a refused value with its password.
    #[arg(value_name = "URL", env = "FAKTORY_URL", hide_env_values = true)]
    pub(crate) from: String,
    /// Taskyard's port for Faktory clients.
    #[arg(
        long,
        value_name = "URL",
        env = "TASKYARD_FAKTORY_URL",
        hide_env_values = true,
        default_value = "tcp://127.0.0.1:7419"
    )]
    pub(crate) into: String,
    /// Only these queues [default: all queues of the old server]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = queue)]
    pub(crate) queues: Vec<String>,
    /// Also wait for jobs of any queue that are scheduled or wait for a retry, and move them when
    /// they are due.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) follow: bool,
    /// Only show how many jobs would be moved.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Add jobs that Taskyard refuses to the end of this file, one per line.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) refused: Option<PathBuf>,
    /// Jobs that are moved at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: u16,
}

fn queue(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        true => Err("a queue's name is not empty and has no spaces".to_owned()),
        false => Ok(text.to_owned()),
    }
}

const IMPORT_FAKTORY_HELP: &str = "\
Each job is fetched from the old server, pushed into Taskyard byte for byte, and acknowledged there
only when Taskyard has it. It can be stopped or killed at any time and run again: a job that had
arrived already is not made twice, which Taskyard knows by its jid for 24 hours. Attempts are
counted anew.

Let open batches finish with the old server's workers. Then stop these and point producers to
Taskyard. The protocol hands out only jobs that may run now: what is scheduled or waits for a retry
is moved when it is due (--follow), dead jobs and open batches are not, and cron entries become
schedules (taskyard schedule add). The old server does not say which queue a scheduled job is of:
with --queues and --follow, those of other queues are waited for as well, and not moved.

A job that Taskyard refuses is told on stderr with its id and stays reserved in the old server, which
counts the end of that time as a failure of the job: a job without retries is gone then, so keep
refused ones with --refused. Killed with -9, up to --connections fetched jobs stay reserved the same
way, and those with retry 0 are dropped by the old server when that time ends.

The password goes into FAKTORY_URL: on the command line, others on this machine see it.

Examples:
  export FAKTORY_URL=tcp://:PASSWORD@old.example:7419
  taskyard import faktory --dry-run
  taskyard import faktory --follow --refused refused-jobs
Both on one machine, Taskyard beside the old server's port:
  taskyard serve --faktory 127.0.0.1:7429
  taskyard import faktory tcp://127.0.0.1:7419 --into tcp://127.0.0.1:7429 --queues mail,default";
