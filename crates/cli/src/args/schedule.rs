//! Arguments of the commands that set, show and change schedules.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::{RetryArgs, TaskArgs};
use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Create a schedule, or give it new rules.
    Add(Box<ScheduleAddArgs>),
    /// List all schedules, by name.
    List {
        /// Print at most this many.
        #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Continue an earlier list at the cursor that it printed.
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
    },
    /// Show a schedule: its rules, its history and its next runs.
    #[command(after_help = "Example:\n  taskyard schedule get nightly --json | jq -r .next_runs[]")]
    Get {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Pause schedules: occurrences pass without runs.
    #[command(
        after_help = "Example:\n  taskyard schedule pause nightly --note 'the warehouse moves'"
    )]
    Pause {
        /// Their names.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// The reason, for people who look at the schedule.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        note: String,
    },
    /// Resume paused schedules, from the next occurrence on.
    Resume {
        /// Their names.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// Start a run now, even beside other runs, and print its task's id.
    #[command(after_help = "Example:
  taskyard task result $(taskyard schedule trigger nightly) --wait")]
    Trigger {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Run all occurrences of a past range now, side by side.
    #[command(after_help = "Example:
  taskyard schedule backfill nightly --from 2031-05-01T00:00:00Z --to 2031-05-07T23:59:59Z

Both ends are included; up to 10,000 occurrences. A range that is backfilled twice runs twice:
after an error, which says how many were enqueued, backfill the rest alone.")]
    Backfill {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        /// The start of the range.
        #[arg(long, value_name = "TIME", value_parser = values::moment_since_1970, allow_hyphen_values = true)]
        from: u64,
        /// The end of the range, which must have passed.
        #[arg(long, value_name = "TIME", value_parser = values::moment_since_1970, allow_hyphen_values = true)]
        to: u64,
    },
    /// Remove schedules. Their tasks stay.
    Remove {
        /// Their names.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Do not ask for confirmation. Required where there is no terminal.
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("rhythm").args(["cron", "every"]).required(true),
    after_help = ADD_HELP
)]
pub(crate) struct ScheduleAddArgs {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The type of each run's task: the name of the function that runs it.
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// The payload of each run: JSON text, @FILE, or - for stdin [default: null]
    #[arg(value_name = "PAYLOAD", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// A cron expression: minute hour day month weekday, six fields with the second first, or a
    /// macro such as @daily.
    #[arg(long, short, value_name = "EXPRESSION", allow_hyphen_values = true)]
    pub(crate) cron: Option<String>,
    /// An interval instead: 30s, 5m, 1h30m; at least 1s. Counts from --start, or else from 1970.
    #[arg(long, short, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) every: Option<Duration>,
    /// The time zone of --cron: an IANA name such as Europe/Berlin [default: UTC]
    #[arg(long, short = 'z', value_name = "ZONE", conflicts_with = "every")]
    pub(crate) timezone: Option<String>,
    /// What happens at an occurrence while an earlier run has not ended [default: skip]
    #[arg(long, value_name = "POLICY")]
    pub(crate) overlap: Option<OverlapName>,
    /// Which occurrences fire that passed while the broker was down [default: last]
    #[arg(long, value_name = "POLICY")]
    pub(crate) catch_up: Option<CatchUpName>,
    /// How late an occurrence may still fire; one that is up to 10s late is always on time. Not
    /// with --catch-up none [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) catch_up_window: Option<Duration>,
    /// Start each run up to this long after its occurrence, to spread the load.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) jitter: Option<Duration>,
    /// No occurrence before this moment: 2031-05-01T09:30:00Z.
    #[arg(long, value_name = "TIME", value_parser = values::moment_since_1970, allow_hyphen_values = true)]
    pub(crate) start: Option<u64>,
    /// No occurrence after this moment.
    #[arg(long, value_name = "TIME", value_parser = values::moment_since_1970, allow_hyphen_values = true)]
    pub(crate) end: Option<u64>,
    /// How many occurrences fire before it ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) runs: Option<u64>,
    #[command(flatten, next_help_heading = "Task")]
    pub(crate) task: TaskArgs,
    // Last, because its heading applies to all options that follow.
    #[command(flatten)]
    pub(crate) retry: RetryArgs,
}

const ADD_HELP: &str = "\
Examples:
  taskyard schedule add nightly report '{\"full\": true}' --cron '0 3 * * *' --timezone Europe/Berlin
  taskyard schedule add ping probe '\"example.com\"' --every 30s --queue probes --overlap buffer-one
  taskyard schedule add payroll pay --cron '0 9 L * *' -z America/New_York --catch-up all --catch-up-window 7d
  taskyard schedule add trial remind --every 1d --runs 14 --jitter 10m

Setting a schedule again replaces its rules and keeps its counts. docs/schedules.md has all of it.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverlapName {
    /// Skip the occurrence.
    Skip,
    /// The newest occurrence waits for the end of the run.
    #[value(alias = "buffer_one")]
    BufferOne,
    /// Start the new run beside it.
    Allow,
    /// Cancel the run, and start the new one after its end.
    #[value(alias = "cancel_other")]
    CancelOther,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CatchUpName {
    /// No occurrence that is more than 10 s late.
    None,
    /// The last occurrence.
    Last,
    /// All occurrences.
    All,
}
