//! Cluster: what a node knows of the others, and what nodes ask of each other besides tasks.
//!
//! ```text
//! routes.rs    who leads which group, as far as is known here; the control state as applied here
//! snapshots.rs whole states of shards, for nodes that are too far behind the log
//! fetch.rs     the other side: gets them
//! handler.rs   what a node does with all that its peers send
//! groups.rs    what the control group's leader and operators ask of groups: commands, changes, status
//! call.rs      calls about the cluster, as bytes     member.rs   this node's side of them
//! entrance.rs  how a new data directory founds a cluster or joins one
//! join.rs      how a cluster takes a node in         announce.rs what a node keeps telling and hearing
//! sight.rs     how all nodes stand, at one moment    mover.rs    the leader's hands: does what is planned
//! operate.rs   what operators ask for                view.rs     what they are shown
//! copy.rs      a backup of the whole cluster         kept.rs     what a node keeps of its shards for one
//! workers.rs   the workers of all nodes              gauges.rs   what metrics say of the cluster
//! gate.rs      what a node hears of its peers before it takes part again
//! ```
//!
//! Nothing here decides where a replica goes: that is `taskyard_replica::Control` and its plan.

mod announce;
mod call;
mod copy;
mod entrance;
mod fetch;
mod gate;
mod gauges;
mod groups;
mod handler;
mod join;
mod kept;
mod member;
mod mover;
mod operate;
mod routes;
mod snapshots;

pub(crate) use fetch::{Fetched, Fetcher, SnapshotOrder};
mod sight;
mod view;
mod workers;

pub use call::Operation;
pub(crate) use call::{About, ClusterCall, ClusterReply};
pub(crate) use entrance::{Entrance, enter};
pub(crate) use gate::Gate;
pub use groups::{GroupStatus, MemberStatus};
pub use handler::{Admit, AnswerCall, AnswerJoin, ClusterHandler, Seated};
pub(crate) use member::Cluster;
pub(crate) use routes::Routes;
pub(crate) use snapshots::Snapshots;
pub(crate) use view::name_of;
pub use view::{ClusterView, GroupView, NodeState, NodeView, ReplicaRole, ReplicaView};
pub use workers::Workers;
pub(crate) use workers::did_not_answer;

/// The first byte of every call between nodes: who answers it.
pub(crate) mod call_kind {
    /// A `ShardCall`: what clients ask of shards.
    pub(crate) const SHARD: u8 = 1;
    /// About the cluster itself: status, members, operators.
    pub(crate) const CLUSTER: u8 = 2;
    /// A piece of a snapshot.
    pub(crate) const SNAPSHOT: u8 = 3;
}
