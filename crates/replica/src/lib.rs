//! Taskyard's replica: one group's consensus, sans-I/O.
//!
//! A [`Replica`] is a raft node and a state machine in one value. Whoever drives it brings ticks,
//! messages and disks: the server real ones, the simulator fake ones. Group 0 is the control group
//! ([`Control`]); group `shard + 1` holds a data shard.
//!
//! Invariants:
//! - What a replica does follows from its inputs alone, election timeouts included.
//! - It says nothing to a peer that it could forget in a crash: what depends on a write is handed
//!   out only when the driver has said that the write is on disk.
//! - The state machine sees each committed entry once, in order, and nothing else.

mod control;
mod election;
mod log;
mod membership;
mod message;
mod reads;
mod replica;
mod restored;
mod role;

pub use control::{
    Control, ControlCommand, ControlOutcome, ControlRejection, InvalidControlBytes, Node, NodeId,
    Placement,
};
pub use log::{LogReader, SnapshotSource, SnapshotState};
pub use membership::{Change, ChangeRefused, Members, PeerProgress};
pub use message::{InvalidMessage, decode_message, encode_message};
/// The consensus library's wire and log types: entries, hard state, membership, messages.
pub use raft::eraftpb;
pub use replica::{Applied, Config, Progress, Ready, Replica, StateMachine};
pub use restored::{Error, Restored};
pub use role::{NotLeader, Role};

/// The consensus group of the control state; data shard `n` is group `n + 1`.
pub const CONTROL_GROUP: u64 = 0;
