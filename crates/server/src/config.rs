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

/// The memory of this machine, or of the container it seems to be.
fn machine_memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    container.map_or(machine, |container| machine.min(container)).max(2 * MEMORY_BYTES_MIN)
}

/// Everything a node can be told. Each field says its default and what too small and too large
/// cost.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where state is kept. Made if it does not exist; locked while the node runs.
    pub data: PathBuf,
    /// gRPC and HTTP. Port 0 takes any free one. `None` listens nowhere: only in-process
    /// connections.
    pub listen: Option<SocketAddr>,
    /// Shards of a new data directory, fixed from then on: a directory with another number is
    /// refused. Default: what the directory has; 32 in a new one.
    pub shards: Option<u16>,
    /// Largest payload taken, in bytes. Default 1 MiB.
    pub payload_bytes_max: usize,
    /// Memory for tasks and their payloads, in bytes. Over it payloads spill to disk, then enqueues
    /// are refused. Default: half of the machine's memory.
    pub memory_bytes_max: u64,
    /// Free disk space below which enqueues are refused, in bytes. Default 1 GiB.
    pub disk_reserve_bytes: u64,
    /// Connections at once; fewer if the process may not open as many files. Each costs a file and
    /// some memory; those beyond are refused. Default 20,000.
    pub connections_max: usize,
    /// How long a graceful stop takes: for calls in flight, then for checkpoints. Default 10 s.
    pub shutdown_grace: Duration,
    /// Where other nodes of the cluster connect. Port 0 takes any free one. `None`, the default, is
    /// a node that stays alone.
    pub peer: Option<SocketAddr>,
    /// `peer` was chosen by nobody: if its port is taken, any free one will do, as for a second
    /// broker on one machine. The node says where it listens, and other nodes are told. Default:
    /// false, a port that is taken is an error.
    pub peer_may_move: bool,
    /// Peer addresses of nodes whose cluster a new data directory is to join, as host:port, tried
    /// in turn. If this node's own is among them, it is the list of all nodes: the first one founds
    /// the cluster, the others join it. A directory that is in a cluster stays there. Default:
    /// none, a new directory founds a cluster of its own.
    pub join: Vec<String>,
    /// Whether a data directory that was copied is surely the newest one of its node, so that no
    /// other node needs to be asked. A wrong `true` may lose acknowledged tasks. Default `false`.
    pub newest_copy: bool,
    /// What this node fails together with, such as a rack: replicas of a shard are spread over
    /// zones. Empty, the default, if unknown.
    pub zone: String,
    /// Where other nodes reach this one, as host:port. Default: `peer`, unless that is a wildcard.
    pub advertise: Option<String>,
    /// Where clients reach this node, as host:port. Default: `listen`, with the host of `advertise`
    /// if it is a wildcard.
    pub advertise_clients: Option<String>,
    /// Names by which clients may call this node, such as `queue.internal`; one with a leading dot
    /// stands for all names that end in it. IP addresses, `localhost` and the hosts of `advertise`
    /// and `advertise_clients` always may be used. Another name is refused, because a web page can
    /// make a name of its own lead here. Default: none.
    pub allowed_hosts: Vec<String>,
    /// What every node of the cluster knows, and nobody else: at least 32 bytes, so that nobody
    /// guesses it. Empty, the default: whoever reaches the peer port is taken for the node that it
    /// says it is.
    pub cluster_secret: Secret,
    /// Replicas of each shard in a new cluster, where it has nodes enough: 1, 3 or 5. Default 3.
    pub replication: Option<u8>,
    /// Where Faktory clients connect. Port 0 takes any free one. `None`, the default, listens for
    /// none.
    pub faktory: Option<SocketAddr>,
    /// The same of `faktory` as `peer_may_move` of `peer`. Default: false.
    pub faktory_may_move: bool,
    /// What Faktory clients must know. Empty, the default: whoever reaches the port gets in. The
    /// proof of it costs each new connection up to some milliseconds; a short one is guessed from
    /// what a listener on the network hears.
    pub faktory_password: Secret,
    /// Proves this node to Faktory clients and encrypts what they say. `None`, the default: in the
    /// clear.
    pub faktory_tls: Option<FaktoryTls>,
    /// Where time comes from.
    pub clock: Clock,
    /// The newest rules for tasks that this node says it knows. For tests alone, which have one
    /// build stand for several versions.
    #[doc(hidden)]
    pub rules_max: u16,
}

/// Bytes that nodes, or clients, prove that they know.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It stays out of logs.
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

    /// Checks every field; reports all mistakes at once.
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
