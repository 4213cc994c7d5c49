//! The command line: every command and its options, with the help that `--help` prints.
//!
//! This module only parses. Each command's own file has the one function that carries out its
//! arguments.

mod broker;
mod cluster;
mod enqueue;
mod flow;
mod import;
mod manual;
mod operate;
mod schedule;
mod work;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::{
    broker::{BackupArgs, BenchArgs, DemoArgs, LogArgs, LogFormat, RestoreArgs, ServeArgs},
    cluster::{ClusterCommand, ClusterStatusArgs},
    enqueue::{ConflictName, EnqueueArgs, PolicyName, RetryArgs, TaskArgs, UniqueArgs, UntilName},
    flow::{FlowCommand, FlowListArgs, FlowOperation, FlowRunArgs},
    import::{ImportCommand, ImportFaktoryArgs},
    manual::{CompletionsArgs, ManArgs},
    operate::{
        DeadCommand, DeadSelection, FilterArgs, PageArgs, QueueCommand, QueueSetArgs, SettingName,
        TaskCommand, WorkerCommand,
    },
    schedule::{CatchUpName, OverlapName, ScheduleAddArgs, ScheduleCommand},
    work::WorkArgs,
};

/// A distributed task queue in one binary.
///
/// Producers enqueue tasks, workers claim and run them under leases. The broker keeps tasks on
/// disk, retries failed ones and recovers those of crashed workers.
#[derive(Debug, Parser)]
#[command(name = "taskyard", version, arg_required_else_help = true, after_help = TOP_EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const TOP_EXAMPLES: &str = "\
See it work, alone and as a cluster that loses a node:
  taskyard demo
  taskyard demo --nodes 3

A broker, a worker and a task, each in a terminal of its own:
  taskyard serve --data ./yard
  taskyard work --exec 'tr a-z A-Z'
  taskyard enqueue shout '{\"name\": \"Ada\"}' --wait

Exit codes: 0 it worked, 1 it failed, 2 it was asked in a way that means nothing.";

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// The broker; several are tried in turn [env: TASKYARD_URL] [default: http://127.0.0.1:7400]
    // The variables are read below, not by the parser: the parser would show these options as
    // required in the usage of each command.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        value_delimiter = ',',
        help_heading = "Common options"
    )]
    pub(crate) server: Vec<String>,
    /// Token to send with every call [env: TASKYARD_TOKEN]
    // Hidden, because no broker asks for a token yet.
    #[arg(long, global = true, hide = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Answer in JSON, one object per line.
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) json: bool,
}

impl Common {
    /// Fills in missing options: from environment variables, then with defaults.
    pub(crate) fn or_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Common {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        if self.server.is_empty() {
            let servers = variable("TASKYARD_URL").unwrap_or_else(|| SERVER.to_owned());
            self.server = servers.split(',').map(str::to_owned).collect();
        }
        self.token = self.token.or_else(|| variable("TASKYARD_TOKEN"));
        self
    }
}

/// The default address of `serve`.
const SERVER: &str = "http://127.0.0.1:7400";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a broker.
    Serve(Box<ServeArgs>),
    /// Show the product in ten seconds: a broker, a worker and some load in one process.
    Demo(DemoArgs),
    /// Add a task, or many from a file.
    Enqueue(Box<EnqueueArgs>),
    /// Run a command for each task of a queue.
    Work(WorkArgs),
    /// Show, cancel and retry tasks.
    #[command(subcommand)]
    Task(TaskCommand),
    /// Show queues, pause, purge, change and delete them.
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Show, retry and discard dead letters.
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Run, show, cancel and retry flows.
    #[command(subcommand)]
    Flow(FlowCommand),
    /// Set, show, pause, trigger and remove schedules.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Show, quiet and stop workers.
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Show nodes and shards, drain and remove nodes, move leaders.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Save a consistent copy of a running broker.
    Backup(BackupArgs),
    /// Make a data directory from a backup.
    Restore(RestoreArgs),
    /// Import jobs from another server.
    #[command(subcommand)]
    Import(ImportCommand),
    /// Measure a broker: enqueues and executions per second, and their latency.
    Bench(BenchArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Print the man page, or write the pages of all commands to a folder.
    Man(ManArgs),
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
    fn an_option_without_effect_is_not_shown() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("--server") && !help.contains("--token"), "{help}");
        assert!(parse("task get 1 --token t").is_ok(), "scripts may say it already");
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
            "flow run",
            "flow run a --detach --wait-for 5s",
            "flow list --state asleep",
            "flow cancel",
            "schedule add",
            "schedule add a",
            "schedule add a t",
            "schedule add a t --cron @daily --every 5s",
            "schedule add a t --every 5",
            "schedule add a t --every 5s --timezone UTC",
            "schedule add a t --cron @daily --runs 0",
            "schedule add a t --cron @daily --overlap often",
            "schedule add a t --cron @daily --catch-up some",
            "schedule add a t --cron @daily --start tomorrow",
            "schedule add a t --cron @daily --delay 5s",
            "schedule backfill a --from 2031-05-01T09:30:00Z",
            "schedule remove",
            "restore file",
            "import",
            "import faktory tcp://a --queues a,,b",
            "import faktory tcp://a --connections 0",
            "import faktory tcp://a --dry-run --follow",
            "cluster",
            "cluster drain",
            "cluster drain two",
            "cluster transfer 1",
            "cluster status --watch --wait",
            "demo --nodes 2",
            "demo --nodes 3 --listen 127.0.0.1:7400",
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
    fn options_win_over_the_environment_and_that_over_defaults() {
        let variable = |name: &str| match name {
            "TASKYARD_URL" => Some("http://c,http://d".to_owned()),
            _ => Some(String::new()),
        };
        let typed = parse("task get 1 --server http://a").unwrap().common;
        assert_eq!(typed.or_environment(variable).server, ["http://a"]);
        let common = parse("task get 1").unwrap().common;
        let filled = common.clone().or_environment(variable);
        assert_eq!(
            (filled.server, filled.token),
            (vec!["http://c".into(), "http://d".into()], None)
        );
        assert_eq!(common.or_environment(|_| None).server, [SERVER]);
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
