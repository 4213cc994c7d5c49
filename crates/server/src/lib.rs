//! Taskyard's server: everything that touches the world.
//!
//! A front decodes a request (`front/`), the broker routes it (`broker.rs`), a shard agrees on it
//! (`shard.rs`, `shard_loop.rs`), the machine decides it (its own crate). Below the shards:
//!
//! ```text
//! node.rs         opens shards, starts fronts, stops them in reverse order
//! shard.rs        the handle to the shards; shard/engine.rs opens them and runs their thread
//! shard_loop.rs   the thread: drain, propose, persist once, apply, answer
//!   local.rs        one shard of this node            local_shards.rs   all of them
//!   control.rs      the replica of the control group
//!   accept.rs       inputs                            outcomes.rs   answers and events
//!   turn.rs         one turn: propose, send, write once, answer
//!   peers.rs        messages between replicas, ticks, who leads      replicas.rs   which replicas are here
//!   deliver.rs      what shards owe each other
//!   checkpoints.rs  when and in which bites           memory.rs   the budget of tasks and bodies
//!   log_age.rs      how much log each shard keeps     room.rs     what a disk that is full lets pass
//!   recover.rs      from disk to replicas             install.rs  snapshots that have come
//!   stopped.rs      shards whose rules have failed    spares.rs   bodies that another replica has
//! shard/local.rs  what is asked of the shards that this node leads
//! shard/route.rs  whom to ask else; proposals.rs, claims.rs and reads.rs ask, remote.rs is the calls as bytes
//! shard/          what a leader remembers and never logs: inbox, waiters, watchers, sessions, timer,
//!                 firing (of schedules), outbox, its clock
//! log.rs          the Raft log of all shards (raft-engine)
//! checkpoint.rs   checkpoints and spilled bodies (fjall), with the threads beside the loop
//! cluster.rs      who leads what, how clusters form and move, what nodes ask besides tasks
//! peer.rs         the connections between nodes: handshake, Raft messages, calls
//! buffers.rs      bytes of requests and answers in flight: front/intake.rs and outflow.rs count them
//! payloads.rs     bodies in memory           backup.rs    a copy of it all, and back (backup/restore.rs)
//! data_dir.rs     layout, lock and format    disk.rs      the reserve of free space
//! descriptors.rs  the limit of open files, and what of it connections may take
//! clock.rs        the time                   moment.rs    moments in words
//! schedule.rs     when schedules fire: cron and time zones
//! limits.rs       every bound of a node
//! ```
//!
//! Invariants: nothing is acknowledged before it is synced; nothing about a task is decided here;
//! only `clock.rs` reads the time; what leaders remember may be lost at any moment without losing a
//! task.

mod backup;
pub mod broker;
mod buffers;
mod checkpoint;
pub mod clock;
pub mod cluster;
pub mod config;
mod data_dir;
mod descriptors;
mod disk;
pub mod error;
pub mod front;
pub mod limits;
mod log;
mod moment;
pub mod node;
mod pauses;
mod payloads;
pub mod peer;
mod random;
mod schedule;
pub mod sessions;
pub mod shard;
mod shard_loop;
mod telemetry;

pub use backup::{RestoreProgress, restore};
pub use broker::Broker;
pub use clock::Clock;
pub use config::Config;
pub use error::Error;
pub use front::Front;
pub use node::Node;
pub use taskyard_machine::{home_shard, limits::RESULT_BYTES_MAX};
