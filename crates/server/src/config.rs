//! Config: one struct, defaults, `validate()`.

use crate::{
    Clock,
    limits::{CONNECTIONS_MAX, MEMORY_BYTES_MIN, SHARDS_MAX},
    node::StartError,
};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use taskyard_machine::limits;

/// The memory of this machine, or of the container it seems to be.
fn machine_memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    container.map_or(machine, |container| machine.min(container)).max(2 * MEMORY_BYTES_MIN)
}

/// Everything a node can be told. Each field says its default and what too small and too large cost.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where state is kept. Made if it does not exist; locked while the node runs.
    pub data: PathBuf,
    /// gRPC and HTTP. Port 0 takes any free one. `None` listens nowhere: only in-process connections.
    pub listen: Option<SocketAddr>,
    /// Shards of a new data directory, fixed from then on: a directory with another number is refused.
    /// Default: what the directory has; 32 in a new one.
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
    /// Where time comes from.
    pub clock: Clock,
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
            clock: Clock::system(),
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
        if mistakes.is_empty() { Ok(()) } else { Err(StartError(mistakes.join("\n"))) }
    }
}
