//! Cluster: the parts of a node that deal with other nodes, apart from tasks.
//!
//! ```text
//! routes.rs    the known leader of each group, and the control state as applied here
//! snapshots.rs whole states of shards, for nodes that are too far behind the log
//! fetch.rs     the receiving side of snapshots
//! handler.rs   the receiver of everything that peers send
//! groups.rs    requests of the control group's leader and of operators to groups
//! call.rs      calls about the cluster, as bytes     member.rs   this node's answers and questions
//! entrance.rs  how a new data directory founds a cluster or joins one
//! join.rs      how a cluster takes a node in         announce.rs what a node keeps telling and hearing
//! sight.rs     how all nodes stand, at one moment    mover.rs    the leader's hands: does what is planned
//! operate.rs   what operators ask for                view.rs     what they are shown
//! copy.rs      a backup of the whole cluster         kept.rs     what a node keeps of its shards for one
//! workers.rs   the workers of all nodes              gauges.rs   what metrics say of the cluster
//! gate.rs      what a node hears of its peers before it takes part again
//! ```
//!
//! This folder does not decide where replicas go: `taskyard_replica::Control` and its plan do.

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

/// The first byte of every call between nodes, which names the part that answers.
pub(crate) mod call_kind {
    /// A `ShardCall`: a client's request to shards.
    pub(crate) const SHARD: u8 = 1;
    /// A call about the cluster itself: status, members, operators.
    pub(crate) const CLUSTER: u8 = 2;
    /// A request for a piece of a snapshot.
    pub(crate) const SNAPSHOT: u8 = 3;
}
