//! Arguments of the commands that show and change tasks, queues, dead letters and workers.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::RetryArgs;
use crate::values;

/// A filter of tasks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only tasks of this queue.
    #[arg(long, short, value_name = "NAME", value_parser = values::word)]
    pub(crate) queue: Option<String>,
    /// Only tasks of this type.
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = values::word)]
    pub(crate) kind: Option<String>,
    /// Only tasks whose last error contains this text.
    #[arg(long, short, value_name = "TEXT", value_parser = values::word)]
    pub(crate) error: Option<String>,
    /// Only tasks with this tag.
    #[arg(long, value_name = "TAG", value_parser = values::word)]
    pub(crate) tag: Option<String>,
    /// Only tasks of this flow.
    #[arg(long, value_name = "ID", value_parser = values::word)]
    pub(crate) flow: Option<String>,
}

/// The part of a list to print.
#[derive(Clone, Debug, Args)]
pub(crate) struct PageArgs {
    /// Print at most this many.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = values::at_least_one)]
    pub(crate) limit: usize,
    /// Continue an earlier list at the cursor that it printed.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    /// Only tasks enqueued since then, or dead letters that died since then: 10m for ten minutes
    /// ago, or a moment like 2031-05-01T09:30:00Z.
    #[arg(long, value_name = "AGO|TIME", value_parser = values::since, allow_hyphen_values = true)]
    pub(crate) since: Option<values::Since>,
    /// Show payloads too.
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Show everything about a task.
    #[command(
        after_help = "Example:\n  taskyard task get 6hrp7d20020010000000000001 --json | jq .attempts"
    )]
    Get {
        /// Its id, as enqueue printed it.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// List tasks that match, the newest first.
    #[command(after_help = "Examples:
  taskyard task list --queue mail --state scheduled
  taskyard task list --since 10m --payload
  taskyard task list --state dead --error 'connection refused' --json")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// Only tasks in this state: scheduled, ready, claimed, succeeded, failed, dead, cancelled,
        /// expired.
        #[arg(long, short, value_name = "STATE")]
        state: Option<taskyard::TaskState>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show why a task waits, the first obstacle first.
    #[command(after_help = "Example:\n  taskyard task why 6hrp7d20020010000000000001")]
    Why {
        /// Its id, as enqueue printed it.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Cancel tasks: waiting tasks end at once, running tasks when their workers yield.
    Cancel {
        /// Their ids, as enqueue printed them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Run a dead task again, or a scheduled task now.
    #[command(after_help = "Examples:
  taskyard task retry 6hrp7d20020010000000000001
  taskyard task retry 6hrp7d20020010000000000001 --payload '{\"to\": \"ada@example.org\"}'")]
    Retry {
        /// Their ids, as enqueue and dead list print them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        /// A new payload: JSON text, @FILE, or - for stdin.
        #[arg(long, value_name = "PAYLOAD", allow_hyphen_values = true)]
        payload: Option<String>,
    },
    /// Print the result of a task. Exits with 1 if it did not succeed.
    #[command(after_help = "Examples:
  taskyard task result 6hrp7d20020010000000000001
  taskyard task result 6hrp7d20020010000000000001 --wait --wait-for 5m")]
    Result {
        /// Its id, as enqueue printed it.
        #[arg(value_name = "ID")]
        id: String,
        /// Wait for the end of the task.
        #[arg(long)]
        wait: bool,
        /// With --wait: give up after this long.
        #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, requires = "wait")]
        wait_for: Option<Duration>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List all queues with their counts, by name.
    List {
        /// The most queues to list; all by default.
        #[arg(long, short = 'n', value_name = "N", value_parser = values::at_least_one)]
        limit: Option<usize>,
        /// Go on where a list ended; it prints its cursor.
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
    },
    /// Show a queue: its counts and its settings.
    Get {
        /// Its name.
        #[arg(value_name = "QUEUE", value_parser = values::word)]
        queue: String,
    },
    /// Pause queues: they hand out no more tasks, and still accept enqueues.
    Pause {
        /// Their names.
        #[arg(value_name = "QUEUE", value_parser = values::word, required = true)]
        queues: Vec<String>,
    },
    /// Resume paused queues.
    Resume {
        /// Their names.
        #[arg(value_name = "QUEUE", value_parser = values::word, required = true)]
        queues: Vec<String>,
    },
    /// Remove all waiting tasks of a queue. Tasks that are enqueued meanwhile stay.
    Purge {
        /// Its name.
        #[arg(value_name = "QUEUE", value_parser = values::word)]
        queue: String,
        /// Do not ask for confirmation. Required where there is no terminal.
        #[arg(long, short)]
        yes: bool,
    },
    /// Change settings of a queue. Settings that are not given stay.
    Set(Box<QueueSetArgs>),
    /// Delete a queue, such as one with a mistyped name, and its settings. The queue must have no
    /// waiting or running tasks and no dead letters, and be on one shard. Finished tasks stay
    /// readable by id.
    #[command(after_help = "Examples:
  taskyard queue delete mial
  taskyard queue purge mial --yes && taskyard queue delete mial")]
    Delete {
        /// Its name.
        #[arg(value_name = "QUEUE", value_parser = values::word)]
        queue: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskyard queue set mail --max-length 100000 --retention 7d
  taskyard queue set mail --retry fixed --retry-delay 1m --max-attempts 5
  taskyard queue set calls --rate 100/s --burst 200 --key-concurrency 5 --key-rate 10/m
  taskyard queue set calls --weight acme=3 --weight acme-trial=1 --ageing 10m
  taskyard queue set clicks --spread 8
  taskyard queue set mail --unset max-length --unset retry")]
pub(crate) struct QueueSetArgs {
    /// Its name.
    #[arg(value_name = "QUEUE", value_parser = values::word)]
    pub(crate) queue: String,
    /// Most waiting tasks.
    #[arg(long, value_name = "N")]
    pub(crate) max_length: Option<u64>,
    /// How long a request id is remembered.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) dedup_window: Option<Duration>,
    /// How long finished tasks are kept at most.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) retention: Option<Duration>,
    /// How many finished tasks are kept at most.
    #[arg(long, value_name = "N")]
    pub(crate) retention_count: Option<u32>,
    /// How long dead letters are kept.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) dead_retention: Option<Duration>,
    /// How many dead letters are kept at most; 0 keeps none.
    #[arg(long, value_name = "N")]
    pub(crate) dead_retention_count: Option<u32>,
    /// The longest one attempt may run, for tasks without a timeout.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Most tasks that run at once.
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u32>,
    /// How often a task may start: 10/s, 90/m, 1000/h, 0.5/s.
    #[arg(long, value_name = "RATE", value_parser = values::rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<f64>,
    /// How many tasks may start at once after a pause [default: one second's worth of --rate]
    #[arg(long, value_name = "N")]
    pub(crate) burst: Option<u32>,
    /// Most tasks of one fairness key that run at once.
    #[arg(long, value_name = "N")]
    pub(crate) key_concurrency: Option<u32>,
    /// How often a task of one fairness key may start.
    #[arg(long, value_name = "RATE", value_parser = values::rate, allow_hyphen_values = true)]
    pub(crate) key_rate: Option<f64>,
    /// How many tasks of one fairness key may start at once after a pause.
    #[arg(long, value_name = "N")]
    pub(crate) key_burst: Option<u32>,
    /// How many tasks of a fairness key are handed out per turn; may be given several times.
    /// Without a KEY, as in =3, for the tasks without a key.
    #[arg(long, value_name = "KEY=N", value_parser = values::weight)]
    pub(crate) weight: Vec<(String, u32)>,
    /// Raise a waiting task's priority by one after each such time.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) ageing: Option<Duration>,
    /// Spread the queue over this many shards, because it is too hot for one. Excludes
    /// --max-length, --concurrency, --rate and the limits of keys. Tasks are in order on each shard
    /// only.
    #[arg(long, value_name = "N")]
    pub(crate) spread: Option<u32>,
    /// Return a setting to its default; may be given several times.
    #[arg(long, value_name = "SETTING")]
    pub(crate) unset: Vec<SettingName>,
    // Last, because its heading applies to all options that follow.
    #[command(flatten)]
    pub(crate) retry: RetryArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SettingName {
    MaxLength,
    DedupWindow,
    Retention,
    RetentionCount,
    DeadRetention,
    DeadRetentionCount,
    Timeout,
    Concurrency,
    Rate,
    KeyConcurrency,
    KeyRate,
    Weights,
    Ageing,
    Spread,
    Retry,
}

/// Which dead letters: ids, a filter, or all. One of these is required.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeadSelection {
    /// The ids of dead letters.
    #[arg(value_name = "ID", conflicts_with_all = ["all", "queue", "kind", "error", "tag", "flow"])]
    pub(crate) ids: Vec<String>,
    /// All dead letters.
    #[arg(long, conflicts_with_all = ["queue", "kind", "error", "tag", "flow"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Do not ask for confirmation. Required to remove many where there is no terminal.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters that match, the latest deaths first.
    #[command(after_help = "Examples:
  taskyard dead list --queue mail --error 'connection refused'
  taskyard dead list --since 1h --payload")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Run dead letters again, with their full number of attempts.
    #[command(after_help = "Examples:
  taskyard dead retry 6hrp7d20020010000000000001 6hrp7d20020010000000000002
  taskyard dead retry --queue mail --error 'connection refused'
  taskyard dead retry --all --yes")]
    Retry(DeadSelection),
    /// Remove dead letters for good.
    #[command(after_help = "Example:\n  taskyard dead discard --type old_report --yes")]
    Discard(DeadSelection),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// List workers that are connected to any node, or were lost within a day.
    ///
    /// A node that does not answer within a second is named on stderr: its workers are not listed.
    List,
    /// Make workers finish their tasks and claim nothing more, whichever node they are connected
    /// to.
    Quiet {
        /// Their ids, as worker list prints them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Make workers shut down, whichever node they are connected to.
    Stop {
        /// Their ids, as worker list prints them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}
