//! Taskyard's replica: one group's consensus, sans-I/O.
//!
//! A [`Replica`] is a raft node and a state machine in one value. A driver brings ticks, messages
//! and disks: the server brings real ones, the simulator fake ones. Group 0 is the control group
//! ([`Control`]); group `shard + 1` is a data shard.
//!
//! Invariants:
//! - The actions of a replica, election timeouts included, follow from its inputs alone.
//! - A replica tells no peer anything that a crash could make it forget: it returns a message that
//!   depends on a write only after the driver has reported the write as durable.
//! - The state machine applies each committed entry once, in order, and nothing else.
//!
//! The loop of every driver, here for a lone voter whose log is a list in memory:
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use taskyard_replica::eraftpb::Entry;
//! use taskyard_replica::{Config, LogReader, Replica, Restored, StateMachine};
//!
//! struct Count(u64);
//! impl StateMachine for Count {
//!     type Outcome = u64;
//!     fn apply(&mut self, _index: u64, data: &[u8]) -> u64 {
//!         self.0 += data.len() as u64;
//!         self.0
//!     }
//! }
//!
//! #[derive(Clone, Default)]
//! struct Memory(Arc<Mutex<Vec<Entry>>>);
//! impl LogReader for Memory {
//!     fn entries(&self, from: u64, to: u64, _bytes_max: u64) -> Vec<Entry> {
//!         let log = self.0.lock().unwrap();
//!         log.iter().filter(|entry| (from..to).contains(&entry.index)).cloned().collect()
//!     }
//!     fn term(&self, index: u64) -> Option<u64> {
//!         self.0.lock().unwrap().iter().find(|entry| entry.index == index).map(|entry| entry.term)
//!     }
//! }
//!
//! let log = Memory::default();
//! let config = Config { id: 1, seed: 7, heartbeat_ticks: 2, election_ticks: 10, entry_bytes_max: 1 << 20 };
//! let restored = Restored::first(&[1]);
//! let mut replica = Replica::new(&config, restored, Box::new(log.clone()), Count(0))?;
//! let mut outcomes = Vec::new();
//! for data in ["", "four", "two"] {
//!     if !data.is_empty() {
//!         replica.propose(data.as_bytes().to_vec(), 1)?;
//!     }
//!     while let Some(ready) = replica.ready() {
//!         // Send `messages_now`, write entries and hard state, sync if `must_sync`.
//!         log.0.lock().unwrap().extend(ready.entries);
//!         let progress = replica.persisted(ready.number);
//!         // Send `messages`, answer what was applied.
//!         outcomes.extend(progress.applied.into_iter().map(|applied| applied.outcome));
//!     }
//! }
//! assert_eq!(outcomes, [4, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod control;
mod election;
mod jury;
mod log;
mod membership;
mod message;
mod reads;
mod replica;
mod restored;
mod role;
mod room;
mod snapshot;
mod stall;
mod transfer;

pub use control::{
    Control, ControlCommand, ControlOutcome, ControlRejection, GroupSeen, InvalidControlBytes,
    Node, NodeId, Placement, Seen, SetSpread, Spread, SpreadBefore, Start, Step,
};
pub use jury::{Jury, Statement, Verdict};
pub use log::{LogReader, SnapshotSource, SnapshotState};
pub use membership::{Change, ChangeRefused, Members, PeerProgress};
pub use message::{InvalidMessage, decode_message, encode_message, message_bytes};
/// The consensus library's types for wire and log: entries, hard state, membership, messages.
pub use raft::eraftpb;
pub use replica::{Applied, Config, Progress, Ready, Replica, StateMachine};
pub use restored::{Error, Restored};
pub use role::{NotLeader, ProposeRefused, Role};
pub use room::Room;

/// The consensus group of the control state; data shard `n` is group `n + 1`.
pub const CONTROL_GROUP: u64 = 0;
