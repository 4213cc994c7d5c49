//! Operating a cluster: its state, its nodes, its leaders.

use crate::{Client, Error, connection::Repeat};
use serde::{Serialize, Serializer, ser::SerializeMap};
use taskyard_proto::v1;

impl Client {
    /// The nodes and shards of the cluster, as the broker that answers sees them.
    pub async fn cluster(&self) -> Result<ClusterDetails, Error> {
        let reply = self
            .call(v1::GetClusterRequest {}, Repeat::Read, |mut wire, request| async move {
                wire.get_cluster(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Drains a node: its replicas and leaders move to others. [`Client::cluster`] shows the
    /// progress.
    pub async fn drain_node(&self, node: u64) -> Result<(), Error> {
        self.set_draining(v1::DrainNodeRequest { node, undo: false }).await
    }

    /// Puts a drained node back into use.
    pub async fn undrain_node(&self, node: u64) -> Result<(), Error> {
        self.set_draining(v1::DrainNodeRequest { node, undo: true }).await
    }

    async fn set_draining(&self, request: v1::DrainNodeRequest) -> Result<(), Error> {
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.drain_node(request).await
        })
        .await?;
        Ok(())
    }

    /// Removes a node that has no replicas any more. With `force`, removes a node that is down for
    /// good: its replicas are placed on other nodes where there are any, and then it is removed.
    pub async fn remove_node(&self, node: u64, force: bool) -> Result<(), Error> {
        let request = v1::RemoveNodeRequest { node, force };
        self.call(request, Repeat::IfNotTaken, |mut wire, request| async move {
            wire.remove_node(request).await
        })
        .await?;
        Ok(())
    }

    /// Hands over a shard to a node that has a replica of it.
    pub async fn transfer_shard(&self, shard: u32, node: u64) -> Result<(), Error> {
        let request = v1::TransferShardRequest { shard, node };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.transfer_shard(request).await
        })
        .await?;
        Ok(())
    }

    /// Sets the number of replicas that each shard gets if there are enough nodes: 1, 3 or 5.
    pub async fn set_replication(&self, factor: u32) -> Result<(), Error> {
        let request = v1::SetReplicationRequest { factor };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.set_replication(request).await
        })
        .await?;
        Ok(())
    }
}

/// A cluster, as one of its nodes sees it. Serialized as on the HTTP front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClusterDetails {
    /// The cluster's permanent id.
    pub cluster_id: String,
    /// The node that answered.
    pub seen_by: u64,
    /// The number of replicas that each shard gets if there are enough nodes.
    pub replication: u32,
    /// The rules that all shards follow.
    pub rules: u32,
    /// All nodes, by number.
    pub nodes: Vec<ClusterNode>,
    /// The control group, which has this map.
    #[serde(serialize_with = "without_id")]
    pub control: ShardDetails,
    /// All shards, in order.
    pub shards: Vec<ShardDetails>,
}

/// One node of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClusterNode {
    /// The node's number.
    pub id: u64,
    /// The address for clients; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The address for other nodes; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer_address: String,
    /// The rack or zone with which the node fails together; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// `up`, `down`, `draining`, `joining`, `stopping` or `removing`.
    pub state: String,
    /// Whether the node is being drained, up or down.
    pub draining: bool,
    /// The version that the node runs; empty if it does not answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The newest rules that it knows.
    pub rules_max: u32,
    /// How far the node's clock is ahead of the answering node's clock, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<i64>,
    /// The number of shards that the node leads.
    pub leads: u32,
    /// The number of shards that the node has a replica of.
    pub replicas: u32,
    /// Whether the node is low on disk, so that it gets neither leaders nor replicas.
    pub disk_low: bool,
    /// Why the node cannot be reached; empty if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// One shard of a cluster and its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardDetails {
    /// The shard's number, from 0.
    pub id: u32,
    /// The node that leads the shard.
    pub leader: Option<u64>,
    /// The newest known term.
    pub term: u64,
    /// The replicas, by node.
    pub replicas: Vec<ReplicaDetails>,
    /// The target nodes of the shard's voters while the shard moves; else empty.
    pub moving_to: Vec<u64>,
}

/// One copy of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReplicaDetails {
    /// The node of the replica.
    pub node: u64,
    /// The replica's id in the shard's group.
    pub replica: u64,
    /// `voter`, `learner`, `placed` (not in the group yet) or `leaving`.
    pub role: String,
    /// Index of the last entry that the replica is known to have on disk.
    #[serde(rename = "match")]
    pub matched: u64,
    /// The number of entries that the replica lacks; `None` if it was not heard lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// The bytes of a snapshot that have arrived, while one is being installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installing_bytes: Option<u64>,
}

impl ShardDetails {
    fn serialize_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        if let Some(leader) = &self.leader {
            map.serialize_entry("leader", leader)?;
        }
        map.serialize_entry("term", &self.term)?;
        map.serialize_entry("replicas", &self.replicas)?;
        if !self.moving_to.is_empty() {
            map.serialize_entry("moving_to", &self.moving_to)?;
        }
        Ok(())
    }
}

impl Serialize for ShardDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        self.serialize_fields(&mut map)?;
        map.end()
    }
}

/// Leaves out the id, because the control group has no number among shards.
fn without_id<S: Serializer>(group: &ShardDetails, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    group.serialize_fields(&mut map)?;
    map.end()
}

impl From<v1::Cluster> for ClusterDetails {
    fn from(wire: v1::Cluster) -> ClusterDetails {
        ClusterDetails {
            cluster_id: wire.cluster_id,
            seen_by: wire.seen_by,
            replication: wire.replication,
            rules: wire.rules,
            nodes: wire.nodes.into_iter().map(ClusterNode::from).collect(),
            control: wire.control.unwrap_or_default().into(),
            shards: wire.shards.into_iter().map(ShardDetails::from).collect(),
        }
    }
}

impl From<v1::ClusterNode> for ClusterNode {
    fn from(wire: v1::ClusterNode) -> ClusterNode {
        ClusterNode {
            id: wire.id,
            address: wire.address,
            peer_address: wire.peer_address,
            zone: wire.zone,
            state: wire.state,
            draining: wire.draining,
            version: wire.version,
            rules_max: wire.rules_max,
            clock_skew_ms: wire.clock_skew_ms,
            leads: wire.leads,
            replicas: wire.replicas,
            disk_low: wire.disk_low,
            problem: wire.problem,
        }
    }
}

impl From<v1::Group> for ShardDetails {
    fn from(wire: v1::Group) -> ShardDetails {
        ShardDetails {
            id: wire.id,
            leader: wire.leader,
            term: wire.term,
            replicas: wire.replicas.into_iter().map(ReplicaDetails::from).collect(),
            moving_to: wire.moving_to,
        }
    }
}

impl From<v1::Replica> for ReplicaDetails {
    fn from(wire: v1::Replica) -> ReplicaDetails {
        ReplicaDetails {
            node: wire.node,
            replica: wire.replica,
            role: wire.role,
            matched: wire.r#match,
            lag: wire.lag,
            installing_bytes: wire.installing_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_shown_as_on_the_http_front() {
        let replica =
            v1::Replica { node: 1, replica: 1, role: "voter".into(), ..Default::default() };
        let group =
            v1::Group { leader: Some(1), term: 3, replicas: vec![replica], ..Default::default() };
        let cluster = v1::Cluster {
            control: Some(group.clone()),
            shards: vec![v1::Group { moving_to: vec![1, 2], ..group }],
            nodes: vec![v1::ClusterNode { id: 1, state: "up".into(), ..Default::default() }],
            ..Default::default()
        };
        let json = serde_json::to_value(ClusterDetails::from(cluster)).unwrap();
        let replicas = serde_json::json!([{"node": 1, "replica": 1, "role": "voter", "match": 0}]);
        let control = serde_json::json!({"leader": 1, "term": 3, "replicas": replicas});
        assert_eq!(json["control"], control);
        let shard = serde_json::json!(
            {"id": 0, "leader": 1, "term": 3, "replicas": replicas, "moving_to": [1, 2]}
        );
        assert_eq!(json["shards"][0], shard);
        for absent in ["zone", "problem", "clock_skew_ms", "address"] {
            assert!(json["nodes"][0].get(absent).is_none(), "{absent} in {json}");
        }
    }
}
