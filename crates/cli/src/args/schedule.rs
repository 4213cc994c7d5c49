//! What is typed to set schedules and to look at them.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::{RetryArgs, TaskArgs};
use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Set a schedule: make it, or give it new rules.
    Add(Box<ScheduleAddArgs>),
    /// All schedules, by name.
    List {
        /// At most this many.
        #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Go on where a list ended; it prints its cursor.
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
    },
    /// One schedule: its rules, what it did, and its next runs.
    #[command(after_help = "Example:\n  taskyard schedule get nightly --json | jq -r .next_runs[]")]
    Get {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Let occurrences pass without firing.
    #[command(
        after_help = "Example:\n  taskyard schedule pause nightly --note 'the warehouse moves'"
    )]
    Pause {
        /// Their names.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Why, for those who look at it.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        note: String,
    },
    /// Fire again, from the next occurrence on.
    Resume {
        /// Their names.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// Start a run now, whatever the others do. Prints its task's id.
    #[command(after_help = "Example:
  taskyard task result $(taskyard schedule trigger nightly) --wait")]
    Trigger {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Run every occurrence of a past range now, side by side.
    #[command(after_help = "Example:
  taskyard schedule backfill nightly --from 2031-05-01T00:00:00Z --to 2031-05-07T23:59:59Z

Both ends are included; up to 10,000 occurrences. A range that is backfilled twice runs twice:
after an error, which says how many were enqueued, backfill the rest alone.")]
    Backfill {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        /// From this moment on.
        #[arg(long, value_name = "TIME", value_parser = values::moment_since_1970, allow_hyphen_values = true)]
        from: u64,
        /// Up to this moment, which must have passed.
        #[arg(long, value_name = "TIME", value_parser = values::moment_since_1970, allow_hyphen_values = true)]
        to: u64,
    },
    /// Forget schedules; the tasks that they fired are left alone.
    Remove {
        /// Their names.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Do not ask. Without a terminal nobody can be asked: there it has to be given.
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
    /// What kind of task each run is: the name of the function that does it.
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// The input of each run: JSON text, @FILE, or - for stdin [default: null]
    #[arg(value_name = "PAYLOAD", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// When: minute hour day month weekday, six fields with the second first, or a macro such as
    /// @daily.
    #[arg(long, short, value_name = "EXPRESSION", allow_hyphen_values = true)]
    pub(crate) cron: Option<String>,
    /// Or how often: 30s, 5m, 1h30m; at least 1s. Counted from --start, or else from 1970.
    #[arg(long, short, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) every: Option<Duration>,
    /// The zone that --cron is in: an IANA name such as Europe/Berlin [default: UTC]
    #[arg(long, short = 'z', value_name = "ZONE", conflicts_with = "every")]
    pub(crate) timezone: Option<String>,
    /// While an earlier run has not ended [default: skip]
    #[arg(long, value_name = "POLICY")]
    pub(crate) overlap: Option<OverlapName>,
    /// What fires of the occurrences that passed while the broker was down [default: last]
    #[arg(long, value_name = "POLICY")]
    pub(crate) catch_up: Option<CatchUpName>,
    /// How old an occurrence may be and still be caught up with; up to 10s late is on time anyway.
    /// Not with --catch-up none
    /// [default: 1h]
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
    // Last, because its heading holds for all that follows.
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
    /// The newest one waits for the end of the run.
    #[value(alias = "buffer_one")]
    BufferOne,
    /// Run beside it.
    Allow,
    /// Cancel the run, and start when it has ended.
    #[value(alias = "cancel_other")]
    CancelOther,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CatchUpName {
    /// Nothing that is later than 10 s.
    None,
    /// The last one.
    Last,
    /// All of them.
    All,
}
