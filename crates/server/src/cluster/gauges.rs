//! Gauges: this node's view of its cluster, in numbers, for metrics.
//!
//! No other node is asked, because metrics are read most when other nodes are away.

use super::GroupStatus;
use crate::{
    Error,
    shard::Shards,
    telemetry::{ClusterGauges, PeerGauges},
};
use std::collections::BTreeMap;
use taskyard_replica::{CONTROL_GROUP, Control, NodeId};

impl Shards {
    pub(crate) async fn cluster_gauges(&self) -> Result<ClusterGauges, Error> {
        let routes = self.routes();
        let control = routes.control();
        let groups = self.groups().await?;
        let led: Vec<&GroupStatus> =
            groups.iter().filter(|status| status.serves && status.group != CONTROL_GROUP).collect();
        let wanted = control.voters_wanted();
        let unled =
            (1..=u64::from(self.count())).filter(|group| routes.leader_of(*group).is_none());
        Ok(ClusterGauges {
            nodes: control.nodes().len() as u64,
            shards: self.count().into(),
            shards_without_leader: unled.count() as u64,
            control_without_leader: routes.control_leader().is_none(),
            shards_under_replicated: led
                .iter()
                .filter(|status| live_voters(status) < wanted)
                .count() as u64,
            leader_changes: routes.leader_changes(),
            disk_low: routes.is_disk_low(),
            lags: lags(&control, &led, routes.me()),
            peers: self.peer_gauges(),
            snapshot_bytes_sent: self.snapshots().bytes_sent(),
        })
    }

    fn peer_gauges(&self) -> Vec<PeerGauges> {
        let Some(network) = self.network() else { return Vec::new() };
        let peers = network.status().into_iter().map(|peer| PeerGauges {
            node: peer.node,
            connected: peer.connected_since_ms.is_some(),
            heard: network.is_heard(peer.node),
            clock_skew_ms: peer.clock_skew_ms,
            round_trip_us: peer.round_trip.map(|took| took.as_micros() as u64),
            raft_dropped: peer.raft_dropped,
        });
        peers.collect()
    }
}

/// The number of voters that their leader heard lately.
fn live_voters(status: &GroupStatus) -> usize {
    let live = status.members.iter().filter(|member| member.active);
    live.filter(|member| status.voters.contains(&member.replica)).count()
}

/// The most entries that a replica lacks, for each other node.
fn lags(control: &Control, led: &[&GroupStatus], me: NodeId) -> BTreeMap<NodeId, u64> {
    let mut lags = BTreeMap::new();
    for status in led {
        for member in &status.members {
            if let Some(node) =
                control.node_of(status.group, member.replica).filter(|node| *node != me)
            {
                let most: &mut u64 = lags.entry(node).or_default();
                *most = member.lag.max(*most);
            }
        }
    }
    lags
}
