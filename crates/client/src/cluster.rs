//! Operating a cluster: how it stands, which nodes are used, who leads.

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

    /// Empties a node: its replicas and leaders move to others. [`Client::cluster`] says how far it is.
    pub async fn drain_node(&self, node: u64) -> Result<(), Error> {
        self.set_draining(v1::DrainNodeRequest { node, undo: false }).await
    }

    /// Uses a node again that was to be emptied.
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

    /// Forgets a node that holds nothing any more. With `force` one that is down for good: what it held
    /// is placed anew where there is another node for it, and then it goes.
    pub async fn remove_node(&self, node: u64, force: bool) -> Result<(), Error> {
        let request = v1::RemoveNodeRequest { node, force };
        self.call(request, Repeat::IfNotTaken, |mut wire, request| async move {
            wire.remove_node(request).await
        })
        .await?;
        Ok(())
    }

    /// Has a shard led by a node that holds a replica of it.
    pub async fn transfer_shard(&self, shard: u32, node: u64) -> Result<(), Error> {
        let request = v1::TransferShardRequest { shard, node };
        self.call(request, Repeat::Always, |mut wire, request| async move {
            wire.transfer_shard(request).await
        })
        .await?;
        Ok(())
    }

    /// Says how many replicas each shard is to have, where there are nodes enough: 1, 3 or 5.
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
    /// Names the cluster for ever.
    pub cluster_id: String,
    /// The node that answered.
    pub seen_by: u64,
    /// Replicas that each shard is to have, where there are nodes enough.
    pub replication: u32,
    /// The rules that all shards follow.
    pub rules: u32,
    /// All nodes, by number.
    pub nodes: Vec<ClusterNode>,
    /// The group that holds this map.
    #[serde(serialize_with = "without_id")]
    pub control: ShardDetails,
    /// All shards, in order.
    pub shards: Vec<ShardDetails>,
}

/// One node of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClusterNode {
    /// Its number.
    pub id: u64,
    /// Where clients reach it; empty if nobody said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Where other nodes reach it; empty if they can't.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer_address: String,
    /// What it fails together with; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub zone: String,
    /// `up`, `down`, `draining`, `joining`, `stopping` or `removing`.
    pub state: String,
    /// It is being emptied, whether it is up or down.
    pub draining: bool,
    /// What it runs; empty if it does not answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The newest rules it knows.
    pub rules_max: u32,
    /// How far its clock is ahead of the one of the node that answered, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<i64>,
    /// Shards that it leads.
    pub leads: u32,
    /// Shards that it has a replica of.
    pub replicas: u32,
    /// Its disk has no room, or soon none: it gets neither leaders nor replicas.
    pub disk_low: bool,
    /// Why it can't be reached; empty if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// One shard of a cluster and its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardDetails {
    /// Its number, from 0.
    pub id: u32,
    /// The node that leads it.
    pub leader: Option<u64>,
    /// The newest term that was heard of.
    pub term: u64,
    /// Its replicas, by node.
    pub replicas: Vec<ReplicaDetails>,
    /// The nodes that its voters are to be on, while they are not; else empty.
    pub moving_to: Vec<u64>,
}

/// One copy of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReplicaDetails {
    /// The node that holds it.
    pub node: u64,
    /// Its id in the shard's group.
    pub replica: u64,
    /// `voter`, `learner`, `placed` (not in the group yet) or `leaving`.
    pub role: String,
    /// Index of the last entry that it is known to have on disk.
    #[serde(rename = "match")]
    pub matched: u64,
    /// Entries that it lacks; `None` if it was not heard of lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// It is being sent the whole state: bytes that have arrived.
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

/// The control group has no number among shards.
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
