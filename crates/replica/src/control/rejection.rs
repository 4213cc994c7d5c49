//! ControlRejection: every "no" of the control group, with what the operator can do next.

use super::{NodeId, Start};

/// The control group's answer "no". Every replica gives the same answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlRejection {
    /// The cluster exists already.
    #[error("cluster {cluster:032x} is already founded")]
    AlreadyFounded {
        /// The id of the existing cluster.
        cluster: u128,
    },
    /// No command is accepted before the cluster is founded.
    #[error("the cluster is not founded yet")]
    NotFounded,
    /// The node is unknown.
    #[error("node {node} is not known; add it first")]
    UnknownNode {
        /// The requested number.
        node: NodeId,
    },
    /// The number was given to a node before.
    #[error("node {node} was known before; numbers are not given twice")]
    NodeTaken {
        /// The number.
        node: NodeId,
    },
    /// Another node has the address.
    #[error(
        "node {node} is at {address} already; remove it first with `taskyard cluster remove {node}`, \
         or give this one another address"
    )]
    AddressTaken {
        /// The node with the address.
        node: NodeId,
        /// The address.
        address: String,
    },
    /// The same data directory has joined before.
    #[error("this node has joined before, as node {node}")]
    AlreadyJoined {
        /// The node's number.
        node: NodeId,
    },
    /// The node has the last replica of a group.
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
    /// The node was given up, so that the cluster no longer expects it.
    #[error(
        "node {node} was given up and is being removed; to use its machine again, start it with a \
         new data directory and --join"
    )]
    GivenUp {
        /// The node.
        node: NodeId,
    },
    /// The node still has replicas.
    #[error("node {node} still holds a replica of {}; drain it first", name_of(*group))]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// One of its groups.
        group: u64,
    },
    /// Without the node there would be fewer replicas than now.
    #[error("node {node} can't be drained: {}", too_few(*left, *replicas))]
    TooFewNodes {
        /// The node.
        node: NodeId,
        /// The number of nodes in use without it.
        left: usize,
        /// The number of voters of each group now.
        replicas: usize,
    },
    /// The node's data is older than its last known start.
    #[error("{}", start.is_outdated(*node, *known))]
    Outdated {
        /// The node.
        node: NodeId,
        /// The start that the node reports.
        start: Start,
        /// The last known start.
        known: Start,
    },
    /// A value is outside its bounds.
    #[error("{what}")]
    Invalid {
        /// Lower case, no full stop: the value and the bound.
        what: String,
    },
}

/// Why the node is needed. Replication cannot go below 1.
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

/// The name of a group for people.
pub(super) fn name_of(group: u64) -> String {
    match group.checked_sub(1) {
        None => "the control group".into(),
        Some(shard) => format!("shard {shard}"),
    }
}
