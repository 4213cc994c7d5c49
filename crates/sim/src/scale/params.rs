//! Params: the parameters of a large cluster. Equal parameters make equal reports.

use clap::ValueEnum;
use serde::Serialize;

/// Time of a run, in virtual microseconds since its beginning.
pub(crate) type Micros = u64;

pub(crate) const MILLI: Micros = 1_000;
pub(crate) const SECOND: Micros = 1_000_000;

/// The timing of the replicas, as shipped.
pub(crate) const TICK: Micros = 50 * MILLI;
pub(crate) const HEARTBEAT_TICKS: usize = 2;
pub(crate) const ELECTION_TICKS: usize = 10;

/// Within this time leaders are elected and workers connected; nothing is counted before.
pub(crate) const WARM_UP: Micros = 3 * SECOND;

/// The victim of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Victim {
    /// A node that leads shards, drawn anew each time.
    Node,
    /// The node that leads the control group.
    ControlLeader,
    /// All nodes of one zone, at once and for good.
    Zone,
}

/// The sessions that a gateway names to a leader once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Named {
    /// Every session that it has heard in that second, which needs no state on the gateway.
    All,
    /// Only the sessions with queues of that leader.
    Concerned,
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Params {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) shards: u16,
    pub(crate) workers: usize,
    /// Node `n` is in zone `n % zones`.
    pub(crate) zones: usize,
    /// The counted time, in virtual seconds.
    pub(crate) seconds: u64,
    /// Tasks enqueued per second, evenly over all shards.
    pub(crate) tasks_per_second: u64,
    pub(crate) payload_bytes: usize,
    /// How long a task runs on its worker.
    pub(crate) run_ms: u64,
    /// The latency between two nodes of a zone; each message takes up to a fifth more.
    pub(crate) in_zone_us: Micros,
    /// The latency between zones.
    pub(crate) across_us: Micros,
    /// The time of one sync of a node's log.
    pub(crate) sync_us: Micros,
    /// The computing time of a node's loop for one message or call.
    pub(crate) cpu_ns_per_input: u64,
    /// The computing time for one tick of one replica.
    pub(crate) cpu_ns_per_tick: u64,
    pub(crate) named: Named,
    pub(crate) kills: u32,
    pub(crate) victim: Victim,
    /// How long a killed node is away.
    pub(crate) down_ms: u64,
}

/// The time from the end of one outage to the next kill.
const CALM: Micros = 4 * SECOND;

impl Params {
    /// The end of counting: after the requested seconds, and after the last kill.
    pub(crate) fn end(&self) -> Micros {
        let kills = match self.kills {
            0 => 0,
            _ => self.kill_at(self.kills) + 2 * SECOND,
        };
        (WARM_UP + self.seconds * SECOND).max(kills)
    }

    /// The moment of the `number`th kill, from 0.
    pub(crate) fn kill_at(&self, number: u32) -> Micros {
        WARM_UP + SECOND + u64::from(number) * (self.down_ms * MILLI + CALM)
    }

    pub(crate) fn zone(&self, node: usize) -> usize {
        node % self.zones
    }

    /// Why the parameters cannot be simulated, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.nodes < self.zones || self.zones == 0 {
            return Err(format!("{} nodes can't fill {} zones", self.nodes, self.zones));
        }
        if self.kills > 1 && self.victim == Victim::Zone {
            return Err("a zone is lost for good; kill one".into());
        }
        let lagging = self.log_bytes_per_shard_second() * (self.down_ms / 1_000 + 2);
        if self.kills > 0 && lagging > 3 << 20 {
            return Err(format!(
                "a killed node would miss {lagging} bytes of each shard's log, more than replicas \
                 keep in memory, and nothing here reads logs back; lower --rate"
            ));
        }
        Ok(())
    }

    fn log_bytes_per_shard_second(&self) -> u64 {
        let per_task = self.payload_bytes as u64 + 600;
        self.tasks_per_second * per_task / u64::from(self.shards)
    }
}
