//! Workers as lists and other nodes see them.

use crate::shard::TaskTypes;
use taskyard_machine::{
    SessionId, Timestamp,
    wire::{wire_enum, wire_struct},
};
use taskyard_replica::NodeId;

/// Who a worker says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its name, for people.
    pub name: String,
    /// The name of its machine.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// The version of its SDK.
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
    /// Finishes its tasks and claims no more, or was asked to.
    Quiet,
    /// Shuts down, or was asked to.
    Stopping,
    /// Was not heard for too long.
    Lost,
}

impl WorkerState {
    /// The name of the state on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Running => "running",
            WorkerState::Quiet => "quiet",
            WorkerState::Stopping => "stopping",
            WorkerState::Lost => "lost",
        }
    }
}

/// A worker as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Its session.
    pub id: SessionId,
    /// The node that it is or was last connected to.
    pub node: NodeId,
    /// Who it says it is.
    pub profile: Profile,
    /// Claims it holds.
    pub busy: u32,
    /// What it does.
    pub state: WorkerState,
    /// When its session was opened on that node.
    pub connected_at: Timestamp,
    /// When it last reported its claims.
    pub beat_at: Timestamp,
    /// How long that node has not heard it. Unlike moments, this can be compared between nodes,
    /// whose clocks differ.
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
