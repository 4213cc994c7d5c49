//! JSON about the cluster: answers, and requests of operators.

use crate::cluster::{ClusterView, GroupView, NodeView, ReplicaView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The nodes and shards of this cluster.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Cluster {
    cluster_id: String,
    /// The node that answered.
    seen_by: u64,
    /// The replicas of each shard, once there are enough nodes.
    replication: u8,
    /// The rules that all shards follow.
    rules: u16,
    nodes: Vec<ClusterNode>,
    /// The group that decides on nodes and placement.
    control: Group,
    shards: Vec<Shard>,
}

/// One node.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ClusterNode {
    id: u64,
    /// Where clients reach the node; absent if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    address: String,
    /// Where other nodes reach the node; absent if they can't.
    #[serde(skip_serializing_if = "String::is_empty")]
    peer_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    zone: String,
    /// `up`, `down`, `draining`, `joining`, `stopping` or `removing`.
    state: &'static str,
    /// Whether the node is being drained, up or down.
    draining: bool,
    /// The version that the node runs; absent if it does not answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    /// The newest rules that the node knows.
    rules_max: u16,
    /// How far its clock is ahead of the clock of the node that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_skew_ms: Option<i64>,
    /// The number of shards that the node leads.
    leads: usize,
    /// The number of shards of which the node has a replica.
    replicas: usize,
    /// Whether its disk is full or nearly so: it gets neither leaders nor replicas.
    disk_low: bool,
    /// Why the node can't be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// One shard.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Shard {
    id: u16,
    #[serde(flatten)]
    group: Group,
}

/// The replicas of a shard, or of the control group.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Group {
    /// The node that leads the group; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    term: u64,
    replicas: Vec<ClusterReplica>,
    /// The nodes to which the voters move, while they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    moving_to: Option<Vec<u64>>,
}

/// One replica.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ClusterReplica {
    node: u64,
    /// The replica's id in the group.
    replica: u64,
    /// `voter`, `learner`, `placed` (not in the group yet) or `leaving`.
    role: &'static str,
    /// The index of the last entry that the replica is known to have on disk.
    #[serde(rename = "match")]
    matched: u64,
    /// The number of entries that it lacks; absent if it was not heard lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<u64>,
    /// The bytes of a snapshot that have arrived, while it gets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    installing_bytes: Option<u64>,
}

impl From<ClusterView> for Cluster {
    fn from(view: ClusterView) -> Cluster {
        let shard = |view: GroupView| Shard { id: view.id, group: view.into() };
        Cluster {
            cluster_id: view.cluster_id,
            seen_by: view.seen_by,
            replication: view.replication,
            rules: view.rules,
            nodes: view.nodes.into_iter().map(Into::into).collect(),
            control: view.control.into(),
            shards: view.shards.into_iter().map(shard).collect(),
        }
    }
}

impl From<NodeView> for ClusterNode {
    fn from(view: NodeView) -> ClusterNode {
        ClusterNode {
            id: view.id,
            address: view.address,
            peer_address: view.peer_address,
            zone: view.zone,
            state: view.state.as_str(),
            draining: view.drains,
            version: view.version,
            rules_max: view.rules_max,
            clock_skew_ms: view.clock_skew_ms,
            leads: view.leads,
            replicas: view.replicas,
            disk_low: view.disk_low,
            problem: view.problem,
        }
    }
}

impl From<GroupView> for Group {
    fn from(view: GroupView) -> Group {
        Group {
            leader: view.leader,
            term: view.term,
            replicas: view.replicas.into_iter().map(Into::into).collect(),
            moving_to: view.moves_to,
        }
    }
}

impl From<ReplicaView> for ClusterReplica {
    fn from(view: ReplicaView) -> ClusterReplica {
        ClusterReplica {
            node: view.node,
            replica: view.replica,
            role: view.role.as_str(),
            matched: view.matched,
            lag: view.lag,
            installing_bytes: view.installing,
        }
    }
}

/// How to remove a node.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct RemoveBody {
    /// Gives up a node that is lost with its data: other nodes get its replicas.
    #[serde(default)]
    pub(in crate::front) force: bool,
}

/// The node that is to lead a shard.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct TransferBody {
    pub(in crate::front) node: u64,
}

/// The number of replicas of each shard.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct ReplicationBody {
    /// 1, 3 or 5.
    pub(in crate::front) factor: u32,
}
