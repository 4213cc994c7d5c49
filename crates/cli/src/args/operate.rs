//! What is typed to look at tasks, queues, dead letters and workers, and to change them.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::RetryArgs;
use crate::values;

/// Which tasks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Of this queue.
    #[arg(long, short, value_name = "NAME", value_parser = values::word)]
    pub(crate) queue: Option<String>,
    /// Of this type.
    #[arg(long = "type", short = 't', value_name = "TYPE", value_parser = values::word)]
    pub(crate) kind: Option<String>,
    /// Whose last error contains this text.
    #[arg(long, short, value_name = "TEXT", value_parser = values::word)]
    pub(crate) error: Option<String>,
    /// With this tag.
    #[arg(long, value_name = "TAG", value_parser = values::word)]
    pub(crate) tag: Option<String>,
    /// Of this flow.
    #[arg(long, value_name = "ID", value_parser = values::word)]
    pub(crate) flow: Option<String>,
}

/// How much of a list.
#[derive(Clone, Debug, Args)]
pub(crate) struct PageArgs {
    /// At most this many.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = values::at_least_one)]
    pub(crate) limit: usize,
    /// Go on where a list ended; it prints its cursor.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    /// Only what was enqueued since then, of dead letters what died: 10m ago, or at a moment like
    /// 2031-05-01T09:30:00Z.
    #[arg(long, value_name = "AGO|TIME", value_parser = values::since, allow_hyphen_values = true)]
    pub(crate) since: Option<values::Since>,
    /// With payloads.
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Everything that is known about a task.
    #[command(
        after_help = "Example:\n  taskyard task get 6hrp7d20020010000000000001 --json | jq .attempts"
    )]
    Get {
        /// Its id, as enqueue printed it.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Tasks that match, the newest first.
    #[command(after_help = "Examples:
  taskyard task list --queue mail --state scheduled
  taskyard task list --since 10m --payload
  taskyard task list --state dead --error 'connection refused' --json")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// In this state: scheduled, ready, claimed, succeeded, failed, dead, cancelled, expired.
        #[arg(long, short, value_name = "STATE")]
        state: Option<taskyard::TaskState>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// What a task waits for, the first to overcome first.
    #[command(after_help = "Example:\n  taskyard task why 6hrp7d20020010000000000001")]
    Why {
        /// Its id, as enqueue printed it.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Take tasks back: at once while they wait, else when their worker yields.
    Cancel {
        /// Their ids, as enqueue printed them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Run a task again that is dead, or now instead of later.
    #[command(after_help = "Examples:
  taskyard task retry 6hrp7d20020010000000000001
  taskyard task retry 6hrp7d20020010000000000001 --payload '{\"to\": \"ada@example.org\"}'")]
    Retry {
        /// Their ids, as enqueue and dead list print them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        /// With this payload instead: JSON text, @FILE, or - for stdin.
        #[arg(long, value_name = "PAYLOAD", allow_hyphen_values = true)]
        payload: Option<String>,
    },
    /// What a task returned. Exits 1 if it did not succeed.
    #[command(after_help = "Examples:
  taskyard task result 6hrp7d20020010000000000001
  taskyard task result 6hrp7d20020010000000000001 --wait --wait-for 5m")]
    Result {
        /// Its id, as enqueue printed it.
        #[arg(value_name = "ID")]
        id: String,
        /// Wait for its end.
        #[arg(long)]
        wait: bool,
        /// With --wait: give up after this long.
        #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, requires = "wait")]
        wait_for: Option<Duration>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// All queues with their counts.
    List,
    /// One queue: its counts and its settings.
    Get {
        /// Its name.
        #[arg(value_name = "QUEUE", value_parser = values::word)]
        queue: String,
    },
    /// Hand out no more tasks of a queue; enqueues go on.
    Pause {
        /// Their names.
        #[arg(value_name = "QUEUE", value_parser = values::word, required = true)]
        queues: Vec<String>,
    },
    /// Hand out tasks again.
    Resume {
        /// Their names.
        #[arg(value_name = "QUEUE", value_parser = values::word, required = true)]
        queues: Vec<String>,
    },
    /// Remove all tasks that wait in a queue. What is enqueued meanwhile stays.
    Purge {
        /// Its name.
        #[arg(value_name = "QUEUE", value_parser = values::word)]
        queue: String,
        /// Do not ask. Without a terminal nobody can be asked: there it has to be given.
        #[arg(long, short)]
        yes: bool,
    },
    /// Change settings of a queue; what is not given stays.
    Set(Box<QueueSetArgs>),
    /// Delete a queue, such as one with a mistyped name, and its settings. The queue must have no
    /// waiting or running tasks and no dead letters. Finished tasks stay readable by id.
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
    /// The longest one attempt may run, for tasks that do not say.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Most tasks that run at once.
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u32>,
    /// How often a task may start: 10/s, 90/m, 1000/h, 0.5/s.
    #[arg(long, value_name = "RATE", value_parser = values::rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<f64>,
    /// How many may start at once after a pause [default: what --rate gives in a second]
    #[arg(long, value_name = "N")]
    pub(crate) burst: Option<u32>,
    /// Most tasks of one fairness key that run at once.
    #[arg(long, value_name = "N")]
    pub(crate) key_concurrency: Option<u32>,
    /// How often a task of one fairness key may start.
    #[arg(long, value_name = "RATE", value_parser = values::rate, allow_hyphen_values = true)]
    pub(crate) key_rate: Option<f64>,
    /// How many of one fairness key may start at once after a pause.
    #[arg(long, value_name = "N")]
    pub(crate) key_burst: Option<u32>,
    /// How many tasks a fairness key is served per turn; may be given several times. Without a KEY,
    /// as in =3, it is about the tasks that have none.
    #[arg(long, value_name = "KEY=N", value_parser = values::weight)]
    pub(crate) weight: Vec<(String, u32)>,
    /// Raise a waiting task's priority by one each time this has passed.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) ageing: Option<Duration>,
    /// Lay the queue over this many shards, for one that is too hot for a single shard. Not
    /// together with --max-length, --concurrency, --rate or the limits of keys; order holds on each
    /// shard.
    #[arg(long, value_name = "N")]
    pub(crate) spread: Option<u32>,
    /// Return a setting to its default; may be given several times.
    #[arg(long, value_name = "SETTING")]
    pub(crate) unset: Vec<SettingName>,
    // Last, because its heading holds for all that follows.
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

/// Which dead letters: ids, a filter, or all of them. One of these has to be said.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeadSelection {
    /// These.
    #[arg(value_name = "ID", conflicts_with_all = ["all", "queue", "kind", "error", "tag", "flow"])]
    pub(crate) ids: Vec<String>,
    /// All there are.
    #[arg(long, conflicts_with_all = ["queue", "kind", "error", "tag", "flow"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Do not ask. To remove many without a terminal, where nobody can be asked, it has to be
    /// given.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// Dead letters that match, those that died last first.
    #[command(after_help = "Examples:
  taskyard dead list --queue mail --error 'connection refused'
  taskyard dead list --since 1h --payload")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Run them again, with all their attempts.
    #[command(after_help = "Examples:
  taskyard dead retry 6hrp7d20020010000000000001 6hrp7d20020010000000000002
  taskyard dead retry --queue mail --error 'connection refused'
  taskyard dead retry --all --yes")]
    Retry(DeadSelection),
    /// Remove them for good.
    #[command(after_help = "Example:\n  taskyard dead discard --type old_report --yes")]
    Discard(DeadSelection),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Workers that are connected to any node, or were lost within a day.
    ///
    /// A node that does not answer within a second is named on stderr: its workers are not listed.
    List,
    /// Let workers finish what they have and claim nothing more, whichever node they are connected
    /// to.
    Quiet {
        /// Their ids, as worker list prints them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Let workers shut down, whichever node they are connected to.
    Stop {
        /// Their ids, as worker list prints them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}
