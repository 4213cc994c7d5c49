//! ControlRejection: every "no" of the control group, with what to do next.

use super::{NodeId, Start};

/// The control group says no; every replica says the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlRejection {
    /// The cluster exists already.
    #[error("cluster {cluster:032x} is already founded")]
    AlreadyFounded {
        /// Which one.
        cluster: u128,
    },
    /// Nothing can be set before the cluster is founded.
    #[error("the cluster is not founded yet")]
    NotFounded,
    /// No such node.
    #[error("node {node} is not known; add it first")]
    UnknownNode {
        /// The number that was asked for.
        node: NodeId,
    },
    /// The number was given to a node before.
    #[error("node {node} was known before; numbers are not given twice")]
    NodeTaken {
        /// The number.
        node: NodeId,
    },
    /// Another node is at the address.
    #[error(
        "node {node} is at {address} already; remove it first with `taskyard cluster remove {node}`, \
         or give this one another address"
    )]
    AddressTaken {
        /// Who is there.
        node: NodeId,
        /// Where.
        address: String,
    },
    /// The same data directory has joined before.
    #[error("this node has joined before, as node {node}")]
    AlreadyJoined {
        /// Its number.
        node: NodeId,
    },
    /// Nobody else has what the node holds.
    #[error(
        "node {node} holds the last replica of {}: without it that is lost; start it again, or \
         restore a backup into a new cluster",
        name_of(*group)
    )]
    LastReplica {
        /// The node.
        node: NodeId,
        /// The group.
        group: u64,
    },
    /// Nothing is expected of the node any more.
    #[error(
        "node {node} was given up and is being removed; to use its machine again, start it with a \
         new data directory and --join"
    )]
    GivenUp {
        /// The node.
        node: NodeId,
    },
    /// The node still holds replicas.
    #[error("node {node} still holds a replica of {}; drain it first", name_of(*group))]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// One of its groups.
        group: u64,
    },
    /// Without the node there were fewer replicas than there are now.
    #[error("node {node} can't be drained: {}", too_few(*left, *replicas))]
    TooFewNodes {
        /// The node.
        node: NodeId,
        /// Nodes in use without it.
        left: usize,
        /// Voters of each group now.
        replicas: usize,
    },
    /// The node's data is older than what is known of it.
    #[error("{}", start.is_outdated(*node, *known))]
    Outdated {
        /// The node.
        node: NodeId,
        /// The start that it tells of.
        start: Start,
        /// The last one that is known.
        known: Start,
    },
    /// A value is outside its bounds.
    #[error("{what}")]
    Invalid {
        /// Lower case, no full stop: the value and what is allowed.
        what: String,
    },
}

/// Why a node is needed where it is. Replication can't be lowered below 1.
fn too_few(left: usize, replicas: usize) -> String {
    let (nodes, are) = if left == 1 { ("node", "is") } else { ("nodes", "are") };
    match (left, replicas) {
        (0, _) => "it is the only node in use; add a node first".into(),
        _ => format!(
            "without it {left} {nodes} {are} left in use, and each shard has {replicas} replicas; add a \
             node first, or lower the replication"
        ),
    }
}

/// A group as people know it.
pub(super) fn name_of(group: u64) -> String {
    match group.checked_sub(1) {
        None => "the control group".into(),
        Some(shard) => format!("shard {shard}"),
    }
}
