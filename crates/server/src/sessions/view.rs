//! What is shown of a worker, to people and to other nodes.

use crate::shard::TaskTypes;
use taskyard_machine::{
    SessionId, Timestamp,
    wire::{wire_enum, wire_struct},
};
use taskyard_replica::NodeId;

/// Who a worker says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// For people.
    pub name: String,
    /// Its machine.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its SDK's version.
    pub version: String,
    /// The queues it claims from.
    pub queues: Vec<String>,
    /// The types of tasks it takes.
    pub types: TaskTypes,
    /// How many tasks it runs at once.
    pub slots: u32,
}

/// What a worker does, as far as its node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Claims and runs.
    Running,
    /// Finishes what it has and claims nothing more, or was asked to.
    Quiet,
    /// Shuts down, or was asked to.
    Stopping,
    /// Was not heard for too long.
    Lost,
}

impl WorkerState {
    /// The word on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Running => "running",
            WorkerState::Quiet => "quiet",
            WorkerState::Stopping => "stopping",
            WorkerState::Lost => "lost",
        }
    }
}

/// A worker as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Its session.
    pub id: SessionId,
    /// The node that it is connected to, or was last.
    pub node: NodeId,
    /// Who it says it is.
    pub profile: Profile,
    /// Claims it holds.
    pub busy: u32,
    /// What it does.
    pub state: WorkerState,
    /// When its session was opened on that node.
    pub connected_at: Timestamp,
    /// When it last told what it holds.
    pub beat_at: Timestamp,
    /// How long that node has not heard it. Clocks of nodes differ; this can be compared.
    pub silent_ms: u64,
    /// Its memory.
    pub rss_bytes: u64,
}

wire_struct!(Profile { name, host, pid, version, queues, types, slots });
wire_enum!(WorkerState { 1 => Running, 2 => Quiet, 3 => Stopping, 4 => Lost });
wire_struct!(WorkerView {
    id,
    node,
    profile,
    busy,
    state,
    connected_at,
    beat_at,
    silent_ms,
    rss_bytes,
});
