//! Config: one struct, defaults, `validate()`.

mod faktory;
mod peers;

pub use self::faktory::FaktoryTls;
use crate::{
    Clock,
    limits::{CONNECTIONS_MAX, MEMORY_BYTES_MIN, SHARDS_MAX},
    node::StartError,
};
use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};
use taskyard_machine::{RULES_CURRENT, limits};

/// The memory of this machine, or of its container if that has less.
fn machine_memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    container.map_or(machine, |container| machine.min(container)).max(2 * MEMORY_BYTES_MIN)
}

/// The configuration of a node. Each field says its default, and what too small and too large
/// values cost.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the node's state. The node makes it if needed, and locks it while it runs.
    pub data: PathBuf,
    /// The address of gRPC and HTTP. Port 0 takes any free one. With `None` only in-process
    /// connections work.
    pub listen: Option<SocketAddr>,
    /// The number of shards of a new data directory, fixed from then on: a directory with another
    /// number is refused. Default: the number of the directory; 32 for a new one.
    pub shards: Option<u16>,
    /// Largest payload taken, in bytes. Default 1 MiB.
    pub payload_bytes_max: usize,
    /// Memory for tasks and their payloads, in bytes. Above it payloads spill to disk, then
    /// enqueues are refused. Default: half of the machine's memory.
    pub memory_bytes_max: u64,
    /// Free disk space below which enqueues are refused, in bytes. Default 1 GiB.
    pub disk_reserve_bytes: u64,
    /// Connections at a time; fewer if the process may not open as many files. Each costs a file
    /// and some memory. Further connections are refused. Default 20,000.
    pub connections_max: usize,
    /// How long a graceful stop may take: for calls in flight, then for checkpoints. Default 10 s.
    pub shutdown_grace: Duration,
    /// The address where other nodes of the cluster connect. Port 0 takes any free one. Default
    /// `None`: the node stays alone.
    pub peer: Option<SocketAddr>,
    /// Whether the node may take another port for `peer` if its port is in use, as for a second
    /// broker on one machine. For an address that is a default, not a choice. The node logs the
    /// port and tells other nodes. Default `false`: a port in use is an error.
    pub peer_may_move: bool,
    /// Peer addresses (host:port) of nodes whose cluster a new data directory joins, tried in turn.
    /// If the node's own address is among them, this is the list of all nodes: the first one founds
    /// the cluster, and the others join it. A directory that is in a cluster stays there. Default:
    /// none, so that a new directory founds its own cluster.
    pub join: Vec<String>,
    /// Says that a copied data directory is the newest one of its node, so that no other node needs
    /// to be asked. A wrong `true` may lose acknowledged tasks. Default `false`.
    pub newest_copy: bool,
    /// The zone of this node: nodes that fail together, such as a rack. Replicas of a shard are
    /// spread over zones. Default: empty, for unknown.
    pub zone: String,
    /// The address (host:port) under which other nodes reach this one. Default: `peer`, unless that
    /// is a wildcard.
    pub advertise: Option<String>,
    /// The address (host:port) under which clients reach this node. Default: `listen`, with the
    /// host of `advertise` if that is a wildcard.
    pub advertise_clients: Option<String>,
    /// Names by which clients may call this node, such as `queue.internal`. A name with a leading
    /// dot stands for all names that end in it. IP addresses, `localhost` and the hosts of
    /// `advertise` and `advertise_clients` are always allowed. Other names are refused, because a
    /// web page can point a name of its own at this node. Default: none.
    pub allowed_hosts: Vec<String>,
    /// The secret that every node of the cluster knows: at least 32 bytes, so that it can't be
    /// guessed. Default: empty. Anything that reaches the peer port can then pose as any node.
    pub cluster_secret: Secret,
    /// Replicas of each shard in a new cluster with enough nodes: 1, 3 or 5. Default 3.
    pub replication: Option<u8>,
    /// The address where Faktory clients connect. Port 0 takes any free one. Default `None`: no
    /// such port.
    pub faktory: Option<SocketAddr>,
    /// Like `peer_may_move`, for `faktory`. Default: false.
    pub faktory_may_move: bool,
    /// The password of Faktory clients. Default: empty, so that every client gets in. Its proof
    /// costs each new connection up to some milliseconds. A listener on the network can guess a
    /// short password.
    pub faktory_password: Secret,
    /// The certificate and key for TLS with Faktory clients. Default `None`: no encryption.
    pub faktory_tls: Option<FaktoryTls>,
    /// The clock of the node.
    pub clock: Clock,
    /// The newest rules for tasks that this node claims to know. Only for tests, in which one build
    /// stands for several versions.
    #[doc(hidden)]
    pub rules_max: u16,
}

/// A secret of the cluster, or of Faktory clients.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keeps the secret out of logs.
        f.write_str(if self.0.is_empty() { "none" } else { "***" })
    }
}

impl Config {
    /// The defaults for a node on `data`, listening on 127.0.0.1:7400.
    pub fn new(data: impl Into<PathBuf>) -> Config {
        Config {
            data: data.into(),
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 7400))),
            shards: None,
            payload_bytes_max: limits::PAYLOAD_BYTES_MAX,
            memory_bytes_max: machine_memory_bytes() / 2,
            disk_reserve_bytes: 1 << 30,
            connections_max: CONNECTIONS_MAX,
            shutdown_grace: Duration::from_secs(10),
            peer: None,
            peer_may_move: false,
            join: Vec::new(),
            newest_copy: false,
            zone: String::new(),
            advertise: None,
            advertise_clients: None,
            allowed_hosts: Vec::new(),
            cluster_secret: Secret::default(),
            replication: None,
            faktory: None,
            faktory_may_move: false,
            faktory_password: Secret::default(),
            faktory_tls: None,
            clock: Clock::system(),
            rules_max: RULES_CURRENT,
        }
    }

    /// Checks every field, and reports all mistakes together.
    pub fn validate(&self) -> Result<(), StartError> {
        let mut mistakes = Vec::new();
        let mut check = |is_good: bool, mistake: String| {
            if !is_good {
                mistakes.push(mistake);
            }
        };
        check(!self.data.as_os_str().is_empty(), "data is empty; name a directory".into());
        if let Some(shards) = self.shards {
            check(
                (1..=SHARDS_MAX).contains(&shards),
                format!("shards is {shards}; it must be 1 to {SHARDS_MAX}"),
            );
        }
        let (payload, ceiling) = (self.payload_bytes_max, limits::PAYLOAD_BYTES_CEILING);
        check(
            (1..=ceiling).contains(&payload),
            format!("payload_bytes_max is {payload}; it must be 1 to {ceiling}"),
        );
        let memory = self.memory_bytes_max;
        check(
            memory >= MEMORY_BYTES_MIN,
            format!("memory_bytes_max is {memory}; it must be at least {MEMORY_BYTES_MIN}"),
        );
        let connections = self.connections_max;
        check(
            (1..=CONNECTIONS_MAX).contains(&connections),
            format!("connections_max is {connections}; it must be 1 to {CONNECTIONS_MAX}"),
        );
        self.check_peers(&mut mistakes);
        self.check_faktory(&mut mistakes);
        if mistakes.is_empty() { Ok(()) } else { Err(StartError(mistakes.join("\n"))) }
    }
}
