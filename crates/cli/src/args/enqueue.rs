//! Arguments of `enqueue`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::values;

#[derive(Debug, Args)]
#[command(after_help = ENQUEUE_EXAMPLES)]
pub(crate) struct EnqueueArgs {
    /// The task's type: the name of the function that runs it.
    #[arg(value_name = "TYPE", required_unless_present = "file")]
    pub(crate) kind: Option<String>,
    /// The payload: JSON text, @FILE, or - for stdin [default: null]
    #[arg(value_name = "PAYLOAD", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Run the task after this long at the earliest: 10s, 5m, 1h30m.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Run the task at this moment at the earliest: 2031-05-01T09:30:00Z.
    #[arg(long, value_name = "TIME", value_parser = values::moment, allow_hyphen_values = true)]
    pub(crate) at: Option<u64>,
    /// Expire the task if no worker has begun by this moment.
    #[arg(long, value_name = "TIME", value_parser = values::moment, allow_hyphen_values = true, conflicts_with = "expires_in")]
    pub(crate) expires_at: Option<u64>,
    /// Expire the task if no worker has begun after this long.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) expires_in: Option<Duration>,
    /// An id that makes the enqueue safe to repeat: the same id in the same queue returns the same
    /// task.
    #[arg(long, value_name = "ID", value_parser = values::word)]
    pub(crate) request_id: Option<String>,
    /// Wait for the end of the task and print its result.
    #[arg(long)]
    pub(crate) wait: bool,
    /// With --wait: give up after this long.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, requires = "wait")]
    pub(crate) wait_for: Option<Duration>,
    /// Add one task per line of a JSONL file, or of stdin (-). The options above are defaults for
    /// the lines.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "raw", "wait", "request_id"], help_heading = "Many tasks")]
    pub(crate) file: Option<PathBuf>,
    /// All lines or none, in one queue; up to 10,000 tasks.
    #[arg(long, requires = "file", help_heading = "Many tasks")]
    pub(crate) batch: bool,
    /// Write lines that were not enqueued to this file, unchanged, so that they can be sent again.
    #[arg(
        long,
        value_name = "FILE",
        requires = "file",
        conflicts_with = "batch",
        help_heading = "Many tasks"
    )]
    pub(crate) refused: Option<PathBuf>,
    /// While the broker is full: give up when it has accepted no task for this long [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, requires = "file", conflicts_with = "batch", help_heading = "Many tasks")]
    pub(crate) patience: Option<Duration>,
    // Last, because its heading applies to all options that follow.
    #[command(flatten)]
    pub(crate) retry: RetryArgs,
    #[command(flatten)]
    pub(crate) unique: UniqueArgs,
}

const ENQUEUE_EXAMPLES: &str = "\
Examples:
  taskyard enqueue send_mail '{\"to\": \"ada@example.com\"}' --queue mail
  taskyard enqueue report @input.json --delay 10m --priority 8
  taskyard enqueue resize '\"cat.png\"' --wait
  taskyard enqueue index '{\"page\": 3}' --unique-by type,payload.page --debounce 5s
  taskyard enqueue import - --raw --content-type text/csv < rows.csv
  taskyard enqueue --file tasks.jsonl --queue import

A line of a file is an object; all but the type (which TYPE gives for all lines) may be left out:
  {\"type\": \"send_mail\", \"queue\": \"mail\", \"payload\": {\"to\": \"ada@example.com\"}, \"delay_ms\": 5000,
   \"priority\": 7, \"request_id\": \"order-17\", \"tags\": [\"new\"], \"retry\": {\"max_attempts\": 3}}";

/// Options of any task, enqueued now or by a schedule.
#[derive(Clone, Debug, Args)]
pub(crate) struct TaskArgs {
    /// The payload is bytes, not JSON.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Media type of a --raw payload.
    #[arg(long, value_name = "TYPE", requires = "raw", default_value = "application/octet-stream")]
    pub(crate) content_type: String,
    /// The queue [default: default]
    #[arg(long, short, value_name = "NAME", value_parser = values::word)]
    pub(crate) queue: Option<String>,
    /// 0 to 9, 9 first [default: 5]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9), allow_negative_numbers = true)]
    pub(crate) priority: Option<u8>,
    /// The longest one attempt may run.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// How long the task is kept after its end.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) retention: Option<Duration>,
    /// The customer that the task is for: the keys of a queue take turns, and have limits of their
    /// own.
    #[arg(long, value_name = "KEY", value_parser = values::word)]
    pub(crate) fairness_key: Option<String>,
    /// A word by which the task can be found; may be given several times.
    #[arg(long, value_name = "TAG", value_parser = values::word)]
    pub(crate) tag: Vec<String>,
    /// A header that travels with the task; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::pair)]
    pub(crate) header: Vec<(String, String)>,
}

/// A key that one task of a queue has at a time.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Uniqueness")]
pub(crate) struct UniqueArgs {
    /// A unique key: the queue has one task with this key at a time.
    #[arg(long, value_name = "KEY", value_parser = values::word, conflicts_with = "unique_by")]
    pub(crate) unique_key: Option<String>,
    /// Make the unique key from these fields: type, payload, payload.NAME, headers.NAME.
    #[arg(long, value_name = "FIELD,...", value_delimiter = ',', value_parser = values::word)]
    pub(crate) unique_by: Vec<String>,
    /// The step of the task that frees the key [default: done]
    #[arg(long, value_name = "STEP")]
    pub(crate) unique_until: Option<UntilName>,
    /// How long the key is taken from now: at most, with --unique-until; otherwise exactly, even if
    /// the task ends earlier.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) unique_window: Option<Duration>,
    /// What the enqueue does while another task has the key [default: existing; with --debounce:
    /// replace]
    #[arg(long, value_name = "ACTION")]
    pub(crate) on_conflict: Option<ConflictName>,
    /// Run after this long without another enqueue of the key, with the latest payload.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) debounce: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UntilName {
    /// The first claim of the task.
    Start,
    /// The end of the task.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConflictName {
    /// Return the task that has the key.
    Existing,
    /// Give that task the new payload, if it still waits.
    Replace,
    /// Refuse the enqueue.
    Reject,
}

/// A retry policy. Options that are not given keep their defaults.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Retry")]
pub(crate) struct RetryArgs {
    /// How the wait grows [default: exponential]
    #[arg(long = "retry", value_name = "POLICY")]
    pub(crate) policy: Option<PolicyName>,
    /// Attempts in all, the first included; 1 never retries [default: 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
    /// The first wait [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) retry_delay: Option<Duration>,
    /// The longest wait [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) retry_delay_max: Option<Duration>,
    /// Growth per failure [default: 2]
    #[arg(long, value_name = "X")]
    pub(crate) retry_factor: Option<f64>,
    /// The share of each wait that may be added to it at random, 0 to 1 [default: 0.25]
    #[arg(long, value_name = "SHARE")]
    pub(crate) retry_jitter: Option<f64>,
    /// For --retry list: all waits; the last one repeats.
    #[arg(long, value_name = "DURATION,...", value_delimiter = ',', value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) retry_delays: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    Exponential,
    Fixed,
    Linear,
    Polynomial,
    List,
    /// One attempt.
    Never,
}
