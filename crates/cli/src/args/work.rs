//! Arguments of `work`.

use std::time::Duration;

use clap::Args;
use taskyard_cli::exec::User;

use super::LogArgs;
use crate::values;

#[derive(Debug, Args)]
#[command(after_help = WORK_HELP)]
pub(crate) struct WorkArgs {
    /// A queue to claim from; may be given several times. A later queue is used while the earlier
    /// ones are empty. With weights (mail:3) queues are drawn by chance in these shares.
    #[arg(long, short, value_name = "NAME[:WEIGHT]", default_value = "default", value_parser = values::weighted)]
    pub(crate) queue: Vec<(String, Option<u32>)>,
    /// A type of tasks to run; may be given up to 256 times. Tasks of other types are left to other
    /// workers [default: any type]
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    pub(crate) types: Vec<String>,
    /// Tasks at once [default: one per processor]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) concurrency: Option<u32>,
    /// The command to run for each task, through sh.
    #[arg(long, value_name = "COMMAND", required_unless_present = "argv", conflicts_with = "argv")]
    pub(crate) exec: Option<String>,
    /// After --: a program and its arguments, to run without a shell.
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) argv: Vec<String>,
    /// The name shown to people [default: taskyard]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Kill a task that runs longer than this, if it has no timeout of its own.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Run commands as this user, a name or a number, with :GROUP for another group than the user's
    /// own. Only for a worker that runs as root.
    #[arg(long, value_name = "USER[:GROUP]", value_parser = User::find)]
    pub(crate) user: Option<User>,
    /// Let commands see and signal processes outside of their task, and mount file systems for all.
    /// Without this option a worker that runs as root gives each task a pid namespace, where the
    /// kernel allows it. See docs/work.md.
    #[arg(long)]
    pub(crate) no_pid_namespace: bool,
    /// Address space of each process.
    #[arg(long, value_name = "SIZE", value_parser = values::size, allow_hyphen_values = true, help_heading = "Limits of each task")]
    pub(crate) memory: Option<u64>,
    /// Processor time of each process.
    #[arg(long, value_name = "N", help_heading = "Limits of each task")]
    pub(crate) cpu_seconds: Option<u64>,
    /// Most processes at once, the command itself included; 0 for no limit. A task that needs more
    /// is killed. Where the worker may make cgroups, the kernel enforces this bound exactly, and
    /// each thread counts as one. Elsewhere the worker counts processes every 50 ms: this ends a
    /// fork bomb within seconds, but thousands of processes may exist until then. For a user other
    /// than root, RLIMIT_NPROC is a second bound; for root there is none. See docs/work.md.
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Limits of each task")]
    pub(crate) max_processes: u32,
    /// Between SIGTERM and SIGKILL for a task that is stopped.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_grace: Duration,
    /// How long a stop of the worker waits for running tasks; the others are then killed and
    /// released.
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) shutdown_grace: Duration,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

const WORK_HELP: &str = "\
The command gets the payload on stdin, and in its environment TASKYARD_ID, TASKYARD_TYPE,
TASKYARD_QUEUE, TASKYARD_ATTEMPT, TASKYARD_DEADLINE (RFC 3339, if the task has a timeout) and
TASKYARD_RESUME_STATE (or TASKYARD_RESUME_STATE_BASE64, if it is not text). A task of a flow also
gets TASKYARD_FLOW, TASKYARD_NODE, and the results of the tasks that it depends on, by name, in
TASKYARD_PARENTS (above 64 KiB in the file TASKYARD_PARENTS_FILE) and their errors in
TASKYARD_PARENT_ERRORS, all as JSON. A run of a schedule gets TASKYARD_SCHEDULE and
TASKYARD_OCCURRENCE_AT (RFC 3339). The rest of its environment is the worker's, without the worker's
own variables that begin with TASKYARD_, such as a token; TASKYARD_URL stays.

TASKYARD_REPORT is a named pipe. Each line that is written to it is JSON and says how far the task
is, what the next attempt should get as its resume state, or both:
  echo '{\"progress\": {\"percent\": 40, \"message\": \"page 4\"}}' > \"$TASKYARD_REPORT\"
  echo '{\"resume_state\": {\"page\": 4}}' > \"$TASKYARD_REPORT\"

  exit 0     the task succeeded; stdout is its result: JSON if it is JSON, other text as a JSON
             string, other bytes as they are. Above 1 MiB it is no result: the task fails for good
  exit 65    it failed for good: a dead letter, no retry
  any other  it failed, with the tail of stderr as its error; it is retried by its policy

What the command leaves running when it ends is killed. All of it, with children that left its
process group, is killed at its timeout, when the task is cancelled, when its lease is lost, and
when the worker dies.

A worker of root gives each task a pid namespace: its command can signal nothing outside of its task.

Examples:
  taskyard work --queue mail --exec './send-mail'
  taskyard work -q media --type thumbnail --type transcode --exec './media'
  taskyard work -q urgent -q bulk -c 8 --memory 512M --timeout 5m --exec 'python3 job.py'
  taskyard work -q mail --user mail --exec './send-mail'
  taskyard work -q images:3 -q videos:1 -- ffmpeg-wrapper --fast";
