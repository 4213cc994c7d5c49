//! What was typed: every command and its options, with the help that `--help` prints.
//!
//! Nothing here decides anything. Each command's own file has the one function that turns its
//! arguments into what they mean.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::values;

/// A distributed task queue in one binary.
///
/// Producers enqueue tasks, workers claim and execute them under leases; the broker keeps them,
/// retries them and recovers those of crashed workers.
#[derive(Debug, Parser)]
#[command(name = "taskyard", version, arg_required_else_help = true, after_help = TOP_EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const TOP_EXAMPLES: &str = "\
See it work:
  taskyard demo

Start a broker, then from another terminal enqueue a task and work on it:
  taskyard serve --data ./yard
  taskyard enqueue greet '{\"name\": \"Ada\"}'
  taskyard work --exec 'jq -r .name'

Exit codes: 0 it worked, 1 it failed, 2 it was asked in a way that means nothing.";

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// The broker; several are tried in turn.
    #[arg(
        long,
        global = true,
        env = "TASKYARD_URL",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7400",
        help_heading = "Common options"
    )]
    pub(crate) server: Vec<String>,
    /// Sent with every call, where the broker asks for one.
    #[arg(
        long,
        global = true,
        env = "TASKYARD_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true,
        help_heading = "Common options"
    )]
    pub(crate) token: Option<String>,
    /// Answer in JSON, one object per line.
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a broker.
    Serve(ServeArgs),
    /// Show the product in ten seconds: a broker, a worker and some load in one process.
    Demo(DemoArgs),
    /// Add a task, or many from a file.
    Enqueue(Box<EnqueueArgs>),
    /// Run a command for each task of a queue.
    Work(WorkArgs),
    /// Look at tasks, cancel them, run them again.
    #[command(subcommand)]
    Task(TaskCommand),
    /// Look at queues, pause, purge and set them.
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Look at dead letters, run them again, remove them.
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Look at workers, quiet and stop them.
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Save a consistent copy of a running broker.
    Backup(BackupArgs),
    /// Measure a broker: enqueues and executions per second, and how long they take.
    Bench(BenchArgs),
}

// ---- serve, demo

#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Where state is kept; made if it does not exist [default: ./taskyard-data]
    #[arg(long, env = "TASKYARD_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address for gRPC and HTTP; port 0 takes any free one [default: 127.0.0.1:7400]
    #[arg(long, env = "TASKYARD_LISTEN", value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Shards of a new data directory, fixed from then on [default: 32]
    #[arg(long, env = "TASKYARD_SHARDS", value_name = "N")]
    pub(crate) shards: Option<u16>,
    /// Largest payload taken, up to 8M [default: 1M]
    #[arg(long, env = "TASKYARD_PAYLOAD_MAX", value_name = "SIZE", value_parser = values::size)]
    pub(crate) payload_max: Option<u64>,
    /// Memory for tasks and payloads; over it payloads go to disk, then enqueues are refused
    /// [default: half of the machine's]
    #[arg(long, env = "TASKYARD_MEMORY_MAX", value_name = "SIZE", value_parser = values::size)]
    pub(crate) memory_max: Option<u64>,
    /// Free disk space below which enqueues are refused [default: 1G]
    #[arg(long, env = "TASKYARD_DISK_RESERVE", value_name = "SIZE", value_parser = values::size)]
    pub(crate) disk_reserve: Option<u64>,
    /// How long a stop waits for calls in flight [default: 10s]
    #[arg(long, env = "TASKYARD_SHUTDOWN_GRACE", value_name = "DURATION", value_parser = values::duration)]
    pub(crate) shutdown_grace: Option<Duration>,
    /// A TOML file with the same names as these options, with _ for -
    #[arg(long, env = "TASKYARD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

const SERVE_EXAMPLES: &str = "\
Options win over environment variables, those over the file, that over the defaults.
SIGTERM or Ctrl-C stops gracefully; a second one stops at once, which loses nothing that was
acknowledged.

Examples:
  taskyard serve --data /var/lib/taskyard
  taskyard serve --listen 0.0.0.0:7400 --memory-max 4G
  taskyard serve --config /etc/taskyard.toml

A file:
  data = \"/var/lib/taskyard\"
  listen = \"10.0.0.5:7400\"
  memory_max = \"4G\"";

#[derive(Clone, Debug, Args)]
pub(crate) struct LogArgs {
    /// What to log, such as warn or taskyard_server=debug [default: info]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How to write the log, to stderr.
    #[arg(long, env = "TASKYARD_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskyard demo
  taskyard demo --keep        stay up afterwards, to look around with the commands it prints")]
pub(crate) struct DemoArgs {
    /// Keep running until Ctrl-C.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Address for gRPC and HTTP; port 0 takes any free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// How long the load runs.
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = values::duration)]
    pub(crate) duration: Duration,
}

// ---- enqueue

#[derive(Debug, Args)]
#[command(after_help = ENQUEUE_EXAMPLES)]
pub(crate) struct EnqueueArgs {
    /// What kind of task: the name of the function that does it.
    #[arg(value_name = "TYPE", required_unless_present = "file")]
    pub(crate) kind: Option<String>,
    /// Its input: JSON text, @FILE, or - for stdin [default: null]
    #[arg(value_name = "PAYLOAD", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// The payload is bytes, not JSON.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Media type of a --raw payload.
    #[arg(long, value_name = "TYPE", requires = "raw", default_value = "application/octet-stream")]
    pub(crate) content_type: String,
    /// The queue [default: default]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// 0 to 9, 9 first [default: 5]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub(crate) priority: Option<u8>,
    /// Not before this much later: 10s, 5m, 1h30m.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Not before this moment: 2031-05-01T09:30:00Z.
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub(crate) at: Option<u64>,
    /// Give it up if no worker has begun by this moment.
    #[arg(long, value_name = "TIME", value_parser = values::moment, conflicts_with = "expires_in")]
    pub(crate) expires_at: Option<u64>,
    /// Give it up if no worker has begun this much later.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) expires_in: Option<Duration>,
    /// Enqueue once only: the same id in the same queue answers with the same task.
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// The longest one attempt may run.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// How long it is kept after its end.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) retention: Option<Duration>,
    /// A word to find it by; may be given several times.
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// Data that travels with it; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::pair)]
    pub(crate) header: Vec<(String, String)>,
    /// Wait for its end and print its result.
    #[arg(long)]
    pub(crate) wait: bool,
    /// With --wait: give up after this long.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "wait")]
    pub(crate) wait_for: Option<Duration>,
    /// Add one task per line of a JSONL file, or of stdin (-). Options above are defaults for
    /// lines that do not say otherwise.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "raw", "wait", "request_id"], help_heading = "Many tasks")]
    pub(crate) file: Option<PathBuf>,
    /// All lines or none, in one queue; up to 10,000 tasks.
    #[arg(long, requires = "file", help_heading = "Many tasks")]
    pub(crate) batch: bool,
    // Last, because its heading holds for all that follows.
    #[command(flatten)]
    pub(crate) retry: RetryArgs,
}

const ENQUEUE_EXAMPLES: &str = "\
Examples:
  taskyard enqueue send_mail '{\"to\": \"ada@example.com\"}' --queue mail
  taskyard enqueue report @input.json --delay 10m --priority 8
  taskyard enqueue resize '\"cat.png\"' --wait
  taskyard enqueue import - --raw --content-type text/csv < rows.csv
  taskyard enqueue --file tasks.jsonl --queue import

A line of a file is an object; all but the type (which TYPE gives for all lines) may be left out:
  {\"type\": \"send_mail\", \"queue\": \"mail\", \"payload\": {\"to\": \"ada@example.com\"}, \"delay_ms\": 5000,
   \"priority\": 7, \"request_id\": \"order-17\", \"tags\": [\"new\"], \"retry\": {\"max_attempts\": 3}}";

/// A retry policy. What is not given keeps its default.
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
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) retry_delay: Option<Duration>,
    /// The longest wait [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) retry_delay_max: Option<Duration>,
    /// Growth per failure [default: 2]
    #[arg(long, value_name = "X")]
    pub(crate) retry_factor: Option<f64>,
    /// Added to each wait: up to this share of it, 0 to 1 [default: 0.25]
    #[arg(long, value_name = "SHARE")]
    pub(crate) retry_jitter: Option<f64>,
    /// For --retry list: every wait, the last repeats.
    #[arg(long, value_name = "DURATION,...", value_delimiter = ',', value_parser = values::duration)]
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

// ---- work

#[derive(Debug, Args)]
#[command(after_help = WORK_HELP)]
pub(crate) struct WorkArgs {
    /// Where tasks come from, in this order; may be given several times. With weights (mail:3) by
    /// chance in these shares.
    #[arg(long, short, value_name = "NAME[:WEIGHT]", default_value = "default", value_parser = values::weighted)]
    pub(crate) queue: Vec<(String, Option<u32>)>,
    /// Tasks at once [default: one per processor]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) concurrency: Option<u32>,
    /// Run by sh for each task.
    #[arg(long, value_name = "COMMAND", required_unless_present = "argv", conflicts_with = "argv")]
    pub(crate) exec: Option<String>,
    /// After --: a program and its arguments, run without a shell.
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) argv: Vec<String>,
    /// The name shown to people [default: taskyard]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Kill a task that runs longer, if it brings no timeout of its own.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// Address space of each process.
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Limits of each task")]
    pub(crate) memory: Option<u64>,
    /// Processor time of each process.
    #[arg(long, value_name = "N", help_heading = "Limits of each task")]
    pub(crate) cpu_seconds: Option<u64>,
    /// Processes alive at once, the command itself included; 0 for no limit. They are counted
    /// every 50 ms: more may live for a moment before all are killed.
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Limits of each task")]
    pub(crate) max_processes: u32,
    /// Between SIGTERM and SIGKILL for a task that is stopped.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration)]
    pub(crate) kill_grace: Duration,
    /// How long a stop of the worker waits for running tasks; the rest is given back.
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = values::duration)]
    pub(crate) shutdown_grace: Duration,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

const WORK_HELP: &str = "\
The command gets the payload on stdin, and in its environment TASKYARD_ID, TASKYARD_TYPE,
TASKYARD_QUEUE, TASKYARD_ATTEMPT, TASKYARD_DEADLINE (RFC 3339, if the task has a timeout) and
TASKYARD_RESUME_STATE (or TASKYARD_RESUME_STATE_BASE64, if it is not text).

  exit 0     the task succeeded; stdout (its last 64 KiB) is its result, as JSON if it is JSON
  exit 65    it failed for good: a dead letter, no retry
  any other  it failed, with the tail of stderr as its error; it is retried by its policy

What the command leaves running when it ends is killed. All of it, with children that left its
process group, is killed at its timeout, when the task is cancelled, when its lease is lost, and
when the worker dies.

Examples:
  taskyard work --queue mail --exec './send-mail'
  taskyard work -q urgent -q bulk -c 8 --memory 512M --timeout 5m --exec 'python3 job.py'
  taskyard work -q images:3 -q videos:1 -- ffmpeg-wrapper --fast";

// ---- task, queue, dead, worker

/// Which tasks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Of this queue.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Of this type.
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    /// Whose last error contains this text.
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) error: Option<String>,
    /// With this tag.
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
}

/// How much of a list.
#[derive(Clone, Debug, Args)]
pub(crate) struct PageArgs {
    /// At most this many.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Go on where a list ended; it prints its cursor.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    /// With payloads.
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Everything that is known about a task.
    #[command(after_help = "Example:\n  taskyard task get 3f0a... --json | jq .attempts")]
    Get {
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Tasks that match.
    #[command(after_help = "Examples:
  taskyard task list --queue mail --state scheduled
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
    /// Take tasks back: at once while they wait, else when their worker yields.
    Cancel {
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Run a task again that is dead, or now instead of later.
    #[command(after_help = "Examples:
  taskyard task retry 3f0a...
  taskyard task retry 3f0a... --payload '{\"to\": \"ada@example.org\"}'")]
    Retry {
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        /// With this payload instead: JSON text, @FILE, or - for stdin.
        #[arg(long, value_name = "PAYLOAD", allow_hyphen_values = true)]
        payload: Option<String>,
    },
    /// What a task returned. Exits 1 if it did not succeed.
    #[command(after_help = "Examples:
  taskyard task result 3f0a...
  taskyard task result 3f0a... --wait --wait-for 5m")]
    Result {
        #[arg(value_name = "ID")]
        id: String,
        /// Wait for its end.
        #[arg(long)]
        wait: bool,
        /// With --wait: give up after this long.
        #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "wait")]
        wait_for: Option<Duration>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// All queues with their counts.
    List,
    /// One queue: its counts and its settings.
    Get {
        #[arg(value_name = "QUEUE")]
        queue: String,
    },
    /// Hand out no more tasks of a queue; enqueues go on.
    Pause {
        #[arg(value_name = "QUEUE", required = true)]
        queues: Vec<String>,
    },
    /// Hand out tasks again.
    Resume {
        #[arg(value_name = "QUEUE", required = true)]
        queues: Vec<String>,
    },
    /// Remove all waiting tasks of a queue.
    Purge {
        #[arg(value_name = "QUEUE")]
        queue: String,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
    /// Change settings of a queue; what is not given stays.
    Set(Box<QueueSetArgs>),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskyard queue set mail --max-length 100000 --retention 7d
  taskyard queue set mail --retry fixed --retry-delay 1m --max-attempts 5
  taskyard queue set mail --unset max-length --unset retry")]
pub(crate) struct QueueSetArgs {
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: String,
    /// Most waiting tasks.
    #[arg(long, value_name = "N")]
    pub(crate) max_length: Option<u64>,
    /// How long a request id is remembered.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) dedup_window: Option<Duration>,
    /// How long finished tasks are kept at most.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) retention: Option<Duration>,
    /// How many finished tasks are kept at most.
    #[arg(long, value_name = "N")]
    pub(crate) retention_count: Option<u32>,
    /// How long dead letters are kept.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) dead_retention: Option<Duration>,
    /// How many dead letters are kept at most; 0 keeps none.
    #[arg(long, value_name = "N")]
    pub(crate) dead_retention_count: Option<u32>,
    /// The longest one attempt may run, for tasks that do not say.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
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
    Retry,
}

/// Which dead letters: ids, a filter, or all of them. One of these has to be said.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeadSelection {
    /// These.
    #[arg(value_name = "ID", conflicts_with_all = ["all", "queue", "kind", "error", "tag"])]
    pub(crate) ids: Vec<String>,
    /// All there are.
    #[arg(long, conflicts_with_all = ["queue", "kind", "error", "tag"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// Dead letters that match.
    #[command(
        after_help = "Example:\n  taskyard dead list --queue mail --error 'connection refused'"
    )]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Run them again, with all their attempts.
    #[command(after_help = "Examples:
  taskyard dead retry 3f0a... 3f0b...
  taskyard dead retry --queue mail --error 'connection refused'
  taskyard dead retry --all --yes")]
    Retry(DeadSelection),
    /// Remove them for good.
    #[command(after_help = "Example:\n  taskyard dead discard --type old_report")]
    Discard(DeadSelection),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Workers that are connected, or were a moment ago.
    List,
    /// Let workers finish what they have and claim nothing more.
    Quiet {
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Let workers shut down.
    Stop {
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

// ---- backup, bench

#[derive(Debug, Args)]
#[command(after_help = "Example:
  taskyard backup yard-monday.backup
The file appears under its name only when it is whole. Tasks of each shard are copied as of one
moment; the broker goes on meanwhile.")]
pub(crate) struct BackupArgs {
    /// Where to; - for stdout.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace the file if there is one.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Three phases: enqueue as fast as answers come, execute what waits, then both at a fixed rate, timed
from the moment each task was due.

Examples:
  taskyard bench                              a broker of its own, in a folder beside you
  taskyard bench --tasks 1000000 --seconds 60 --restart --json
  taskyard bench --remote --server http://10.0.0.5:7400 --rate 20000"
)]
pub(crate) struct BenchArgs {
    /// Measure the broker at --server instead of starting one.
    #[arg(long)]
    pub(crate) remote: bool,
    /// Stop after this many tasks.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) tasks: u64,
    /// Stop each phase after this long.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) seconds: u64,
    /// Bytes of each payload.
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = values::size)]
    pub(crate) payload: u64,
    /// Enqueues in flight at once.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) clients: usize,
    /// Tasks that workers run at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) slots: u32,
    /// Queues to spread the tasks over.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) queues: u32,
    /// Tasks per second of the last phase [default: half of what was executed at the fastest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// Kill the broker while all tasks wait, and time its return.
    #[arg(long, conflicts_with = "remote")]
    pub(crate) restart: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("taskyard").chain(line.split(' ')))
    }

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_that_means_nothing_is_refused() {
        for line in [
            "enqueue",
            "enqueue a --priority 12",
            "enqueue a --priority -1",
            "enqueue a --delay 5",
            "enqueue a --delay -5s",
            "enqueue a --delay 5s --at 2031-05-01T09:30:00Z",
            "enqueue a 1 --file x",
            "enqueue a --batch",
            "enqueue a --wait-for 5s",
            "work",
            "work --exec a -- b",
            "work --exec a --concurrency 0",
            "task",
            "task cancel",
            "task list --state asleep",
            "dead retry 1 --all",
            "queue set q --unset nothing",
            "nonsense",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn common_options_stand_anywhere() {
        for line in [
            "--json task get 1 --server http://a,http://b",
            "task --json --server http://a,http://b get 1",
        ] {
            let cli = parse(line).unwrap();
            assert!(cli.common.json);
            assert_eq!(cli.common.server, ["http://a", "http://b"]);
        }
    }

    #[test]
    fn a_program_after_two_dashes_keeps_its_own_options() {
        let Command::Work(work) = parse("work -q a:2 -- prog --json -x").unwrap().command else {
            panic!("not work")
        };
        assert_eq!(work.argv, ["prog", "--json", "-x"]);
        assert_eq!(work.queue, [("a".to_owned(), Some(2))]);
    }
}
