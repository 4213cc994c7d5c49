//! Arguments of the commands that run, back up, restore and measure a broker.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::{remote::usage, values};

/// All values are text here. They are parsed together with those of the file, so that all mistakes
/// are reported at once.
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Data directory; created if it does not exist [default: ./taskyard-data]
    #[arg(long, env = "TASKYARD_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address for gRPC and HTTP, or a name that has one; port 0 takes any free one
    /// [default: 127.0.0.1:7400]
    #[arg(long, env = "TASKYARD_LISTEN", value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Number of shards of a new data directory. It can't change later: a directory with another
    /// number is refused [default: the directory's number; 32 in a new one]
    #[arg(long, env = "TASKYARD_SHARDS", value_name = "N")]
    pub(crate) shards: Option<String>,
    /// Largest accepted payload, up to 8M [default: 1M]
    #[arg(long, env = "TASKYARD_PAYLOAD_MAX", value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) payload_max: Option<String>,
    /// Memory for tasks and payloads. Past it, payloads move to disk, and then enqueues are refused
    /// [default: half of the machine's memory]
    #[arg(long, env = "TASKYARD_MEMORY_MAX", value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory_max: Option<String>,
    /// Free disk space below which enqueues are refused [default: 1G]
    #[arg(long, env = "TASKYARD_DISK_RESERVE", value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) disk_reserve: Option<String>,
    /// Most connections at once. Further ones are refused, except for /healthz, /readyz and
    /// /metrics. Lower if the process may open fewer files [default: 20000]
    #[arg(long, env = "TASKYARD_CONNECTIONS_MAX", value_name = "N")]
    pub(crate) connections_max: Option<String>,
    /// The longest time of a stop: for calls in flight, then for checkpoints [default: 10s]
    #[arg(
        long,
        env = "TASKYARD_SHUTDOWN_GRACE",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) shutdown_grace: Option<String>,
    /// Address for other nodes of the cluster; port 0 takes any free one [default: 127.0.0.1:7401,
    /// or any free port if that is taken]
    #[arg(long, env = "TASKYARD_PEER", value_name = "ADDR", help_heading = CLUSTER)]
    pub(crate) peer: Option<String>,
    /// Join the cluster of the node with this peer address, if the data directory is new. Several
    /// addresses are tried in turn. A list with this node's own address must name all nodes: the
    /// first node of the list founds the cluster once all are up
    #[arg(long, env = "TASKYARD_JOIN", value_name = "HOST:PORT", value_delimiter = ',', help_heading = CLUSTER)]
    pub(crate) join: Vec<String>,
    /// The rack or availability zone that this node fails together with: replicas are spread over
    /// zones
    #[arg(long, env = "TASKYARD_ZONE", value_name = "NAME", help_heading = CLUSTER)]
    pub(crate) zone: Option<String>,
    /// Address at which other nodes reach this node [default: --peer, unless that is 0.0.0.0]
    #[arg(long, env = "TASKYARD_ADVERTISE", value_name = "HOST:PORT", help_heading = CLUSTER)]
    pub(crate) advertise: Option<String>,
    /// Address at which clients reach this node [default: --listen, with the host of --advertise
    /// for 0.0.0.0]
    #[arg(long, env = "TASKYARD_ADVERTISE_CLIENTS", value_name = "HOST:PORT", help_heading = CLUSTER)]
    pub(crate) advertise_clients: Option<String>,
    /// Host names by which clients may call this node; .NAME allows all names that end in it. IP
    /// addresses, localhost and advertised hosts are always allowed. Other names are refused,
    /// because a web page can point a name of its own at this node
    #[arg(long, env = "TASKYARD_ALLOWED_HOSTS", value_name = "HOST", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// A file with the secret that all nodes of the cluster share, at least 32 bytes (`openssl rand
    /// -hex 32`). The secret itself may be in TASKYARD_CLUSTER_SECRET instead [default: none;
    /// anybody who reaches the peer address can join]
    #[arg(long, env = "TASKYARD_CLUSTER_SECRET_FILE", value_name = "FILE", help_heading = CLUSTER)]
    pub(crate) cluster_secret_file: Option<PathBuf>,
    /// Take part at once with a copied data directory, before all other nodes have confirmed that
    /// they know no newer one. If a newer one exists, acknowledged tasks may be lost. Use it for
    /// one start only
    #[arg(long, help_heading = CLUSTER)]
    pub(crate) newest_copy: bool,
    /// Replicas of each shard in a new cluster, once it has enough nodes: 1, 3 or 5 [default: 3]
    #[arg(long, env = "TASKYARD_REPLICATION", value_name = "N", help_heading = CLUSTER)]
    pub(crate) replication: Option<String>,
    /// Address for Faktory clients, or none to open no such port; port 0 takes any free one
    /// [default: 127.0.0.1:7419]
    #[arg(long, env = "TASKYARD_FAKTORY", value_name = "ADDR|none", help_heading = FAKTORY)]
    pub(crate) faktory: Option<String>,
    /// A file with the password of Faktory clients. The password itself may be in
    /// TASKYARD_FAKTORY_PASSWORD instead [default: none; anybody who reaches the port is served]
    #[arg(long, env = "TASKYARD_FAKTORY_PASSWORD_FILE", value_name = "FILE", help_heading = FAKTORY)]
    pub(crate) faktory_password_file: Option<PathBuf>,
    /// A certificate for Faktory clients (tcp+tls://), in PEM, with its chain [default: none, no
    /// encryption]
    #[arg(long, env = "TASKYARD_FAKTORY_TLS_CERT", value_name = "FILE", help_heading = FAKTORY)]
    pub(crate) faktory_tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, env = "TASKYARD_FAKTORY_TLS_KEY", value_name = "FILE", help_heading = FAKTORY)]
    pub(crate) faktory_tls_key: Option<PathBuf>,
    /// A TOML file with the names of these options, with _ for -
    #[arg(long, env = "TASKYARD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What to log, such as warn or taskyard_server=debug [default: info]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How to write the log, to stderr: text or json [default: text]
    #[arg(long, env = "TASKYARD_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
}

const CLUSTER: &str = "Cluster";
const FAKTORY: &str = "Faktory";

const SERVE_EXAMPLES: &str = "\
Options win over environment variables, those over the file, that over the defaults.
SIGTERM or Ctrl-C stops gracefully; a second one stops at once, which loses nothing that was
acknowledged.

Examples:
  taskyard serve --data /var/lib/taskyard
  taskyard serve --listen 0.0.0.0:7400 --memory-max 4G
  taskyard serve --config /etc/taskyard.toml

Three machines, the second and third join the first, at any time:
  taskyard serve --listen 10.0.0.1:7400 --peer 10.0.0.1:7401
  taskyard serve --listen 10.0.0.2:7400 --peer 10.0.0.2:7401 --join 10.0.0.1:7401
  taskyard serve --listen 10.0.0.3:7400 --peer 10.0.0.3:7401 --join 10.0.0.1:7401
or all three with the same list, in any order:
  taskyard serve --listen 10.0.0.1:7400 --peer 10.0.0.1:7401 \\
    --join 10.0.0.1:7401,10.0.0.2:7401,10.0.0.3:7401

Workers and producers of Faktory, from other machines too:
  taskyard serve --faktory 10.0.0.1:7419 --faktory-password-file /etc/taskyard.password
  FAKTORY_URL=tcp://:PASSWORD@10.0.0.1:7419 bundle exec faktory-worker
A second broker on one machine needs ports of its own:
  taskyard serve --data ./two --listen 127.0.0.1:7410 --peer 127.0.0.1:7411 --faktory none

A file:
  data = \"/var/lib/taskyard\"
  listen = \"10.0.0.5:7400\"
  memory_max = \"4G\"
  log_format = \"json\"
  join = [\"10.0.0.1:7401\", \"10.0.0.2:7401\"]";

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

impl LogFormat {
    /// The format of a name.
    pub(crate) fn read(name: &str) -> Result<LogFormat, String> {
        <LogFormat as ValueEnum>::from_str(name, false)
            .map_err(|_| format!("{name:?} is neither text nor json"))
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskyard demo
  taskyard demo --keep        stay up afterwards, to look around with the commands it prints
  taskyard demo --nodes 3     a cluster of three processes; one is killed under load and comes back")]
pub(crate) struct DemoArgs {
    /// Start a cluster of 3 or 5 nodes, kill one of them under load and count the lost tasks: none.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = demo_nodes, conflicts_with_all = ["listen", "duration"])]
    pub(crate) nodes: u8,
    /// Keep running until Ctrl-C.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Address for gRPC and HTTP; port 0 takes any free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = demo_address)]
    pub(crate) listen: SocketAddr,
    /// How long the load runs.
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) duration: Duration,
}

fn demo_address(typed: &str) -> Result<SocketAddr, String> {
    values::address(typed, 7400)
}

/// The number of nodes of the demo; a cluster must survive the loss of one.
fn demo_nodes(typed: &str) -> Result<u8, String> {
    let words = "the demo's cluster has 3 or 5 nodes; 1 is the demo without a cluster";
    odd_nodes(typed).ok_or_else(|| words.to_owned())
}

/// The same for a benchmark.
fn bench_nodes(typed: &str) -> Result<u8, String> {
    let words = "the cluster to be measured has 3 or 5 nodes; 1 measures one broker alone";
    odd_nodes(typed).ok_or_else(|| words.to_owned())
}

fn odd_nodes(typed: &str) -> Option<u8> {
    typed.parse().ok().filter(|nodes| [1, 3, 5].contains(nodes))
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  taskyard backup yard-monday.backup
The file appears under its name only when it is whole. All shards are copied so that they fit
together, from whichever nodes have them; the broker goes on meanwhile.")]
pub(crate) struct BackupArgs {
    /// The file to write; - for stdout.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  taskyard restore yard-monday.backup --data ./restored && taskyard serve --data ./restored
The directory must not exist or be empty. Ids that the restored broker gives never meet old ones.")]
pub(crate) struct RestoreArgs {
    /// A file that `taskyard backup` made.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The data directory to create.
    #[arg(long, env = "TASKYARD_DATA", value_name = "DIR")]
    pub(crate) data: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Three phases: enqueue as fast as answers come, execute what waits, then both at a fixed rate, timed
from the moment each task was due.

With --nodes 3, a cluster of three processes and one node go through them in turns, each with all
others stopped, and what counts are the ratios. With --kills or --stops, nodes of a cluster go away
and come back instead, one after the other under load: how long writes stand still, and whether
every confirmed task is there once. If not, the exit code is 1.

With --faktory, the load comes over Faktory's wire, from connections with one command in flight each:
push as fast as answers come, fetch and acknowledge what waits, then push, fetch and acknowledge in
turns, which is what full cycles per second are. Each connection begins with a queue of its own.

Examples:
  taskyard bench                              a broker of its own, in a folder beside you
  taskyard bench --tasks 1000000 --seconds 60 --restart --json
  taskyard bench --remote --server http://10.0.0.5:7400 --rate 20000
  taskyard bench --nodes 3 --rate 2000        three nodes beside one
  taskyard bench --nodes 3 --kills 30 --stops 30
  taskyard bench --faktory --connections 64 --seconds 10"
)]
pub(crate) struct BenchArgs {
    /// Measure the broker at --server instead of starting one.
    #[arg(long)]
    pub(crate) remote: bool,
    /// Measure a cluster of 3 or 5 nodes beside one node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = bench_nodes)]
    pub(crate) nodes: u8,
    /// Rounds in which a cluster and one node take turns [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Kill nodes of a cluster in turn, this many times, and measure how long writes stand still.
    #[arg(long, value_name = "N", conflicts_with_all = ["tasks", "seconds", "clients", "rounds"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: Option<u32>,
    /// Stop nodes gracefully in turn, this many times, and measure the same.
    #[arg(long, value_name = "N", conflicts_with_all = ["tasks", "seconds", "clients", "rounds"], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    stops: Option<u32>,
    /// Stop after this many tasks.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub(crate) tasks: u64,
    /// Stop each phase after this long.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) seconds: u64,
    /// Bytes of each payload.
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = values::size, allow_hyphen_values = true)]
    pub(crate) payload: u64,
    /// Enqueues in flight at once.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) clients: usize,
    /// Tasks that workers run at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) slots: u32,
    /// Queues to spread the tasks over [default: 8, with --nodes 24]
    #[arg(long, value_name = "N")]
    queues: Option<u32>,
    /// Tasks per second of the last phase [default: half of the fastest rate of execution], or of
    /// all queues while nodes go away [default: 600]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// Measure over Faktory's wire.
    #[arg(long, conflicts_with_all = ["remote", "kills", "stops", "clients", "slots", "rate", "restart"])]
    pub(crate) faktory: bool,
    /// Faktory connections, each with one command in flight [default: 64]
    #[arg(long, value_name = "N", requires = "faktory", value_parser = clap::value_parser!(u16).range(1..=2_000))]
    connections: Option<u16>,
    /// Kill the broker while all tasks wait, and measure how long its restart takes.
    #[arg(long, conflicts_with = "remote")]
    pub(crate) restart: bool,
}

impl BenchArgs {
    /// Queues to spread the tasks over. With more queues, the nodes of a cluster lead more equal
    /// shares.
    pub(crate) fn queues(&self) -> u32 {
        self.queues.unwrap_or(if self.nodes > 1 { 24 } else { 8 }).max(1)
    }

    /// Faktory connections.
    pub(crate) fn connections(&self) -> u16 {
        self.connections.unwrap_or(64)
    }

    /// The number of kills.
    pub(crate) fn kills(&self) -> u32 {
        self.kills.unwrap_or(0)
    }

    /// The number of graceful stops.
    pub(crate) fn stops(&self) -> u32 {
        self.stops.unwrap_or(0)
    }

    /// The number of rounds.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(2)
    }

    /// Refuses options that exclude each other.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let words = match self.nodes {
            1 if self.kills() + self.stops() > 0 => {
                "a single node has no other node to take over; add --nodes 3, or use --restart"
            }
            1 if self.rounds.is_some() => {
                "--rounds compares a cluster with one node; add --nodes 3"
            }
            2.. if self.faktory => "--faktory measures one broker; leave out --nodes or --faktory",
            2.. if self.remote => {
                "--nodes starts a cluster of its own; leave out --remote or --nodes"
            }
            2.. if self.restart => {
                "--restart times the return of one node; kill nodes of a cluster with --kills 10"
            }
            _ => return Ok(()),
        };
        Err(usage(words))
    }
}
