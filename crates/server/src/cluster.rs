//! Cluster: what a node knows of the others, and what nodes ask of each other besides tasks.
//!
//! ```text
//! routes.rs    who leads which group, as far as is known here; the control state as applied here
//! snapshots.rs whole states of shards, for nodes that are too far behind the log
//! fetch.rs     the other side: gets them
//! groups.rs    what the control group's leader and operators ask of groups: commands, changes, status
//! ```
//!
//! Nothing here decides where a replica goes: that is `taskyard_replica::Control` and its plan.

#[cfg_attr(not(test), expect(dead_code, reason = "the loop takes snapshots once it has peers"))]
mod fetch;
mod groups;
mod routes;
#[cfg_attr(not(test), expect(dead_code, reason = "the loop offers snapshots once it has peers"))]
mod snapshots;

#[expect(unused_imports, reason = "the loop takes snapshots once it has peers")]
pub(crate) use fetch::Fetcher;
pub(crate) use fetch::{Fetched, SnapshotOrder};
pub use groups::{GroupStatus, MemberStatus};
pub(crate) use routes::Routes;
#[cfg_attr(
    not(test),
    expect(unused_imports, reason = "the loop offers snapshots once it has peers")
)]
pub(crate) use snapshots::Snapshots;

/// The first byte of every call between nodes: who answers it.
pub(crate) mod call_kind {
    /// A `ShardCall`: what clients ask of shards.
    pub(crate) const SHARD: u8 = 1;
    /// About the cluster itself: status, members, operators.
    pub(crate) const CLUSTER: u8 = 2;
    /// A piece of a snapshot.
    pub(crate) const SNAPSHOT: u8 = 3;
}
