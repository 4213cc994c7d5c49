//! The cluster in `taskyard.v1`.

use crate::cluster::{ClusterView, GroupView, NodeView, ReplicaView};
use taskyard_proto::v1;

pub(super) fn reply(view: ClusterView) -> v1::Cluster {
    v1::Cluster {
        cluster_id: view.cluster_id,
        seen_by: view.seen_by,
        replication: view.replication.into(),
        rules: view.rules.into(),
        nodes: view.nodes.into_iter().map(node).collect(),
        control: Some(group(view.control)),
        shards: view.shards.into_iter().map(group).collect(),
    }
}

fn node(view: NodeView) -> v1::ClusterNode {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    v1::ClusterNode {
        id: view.id,
        address: view.address,
        peer_address: view.peer_address,
        zone: view.zone,
        state: view.state.as_str().to_owned(),
        draining: view.drains,
        version: view.version,
        rules_max: view.rules_max.into(),
        clock_skew_ms: view.clock_skew_ms,
        leads: count(view.leads),
        replicas: count(view.replicas),
        disk_low: view.disk_low,
        problem: view.problem.unwrap_or_default(),
    }
}

fn group(view: GroupView) -> v1::Group {
    v1::Group {
        id: view.id.into(),
        leader: view.leader,
        term: view.term,
        replicas: view.replicas.into_iter().map(replica).collect(),
        moving_to: view.moves_to.unwrap_or_default(),
    }
}

fn replica(view: ReplicaView) -> v1::Replica {
    v1::Replica {
        node: view.node,
        replica: view.replica,
        role: view.role.as_str().to_owned(),
        r#match: view.matched,
        lag: view.lag,
        installing_bytes: view.installing,
    }
}
