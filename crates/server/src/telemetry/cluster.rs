//! Gauges of the cluster as this node sees it: leaders, replicas, peers, snapshots.

use super::{Seconds, Text};
use std::collections::BTreeMap;
use taskyard_replica::NodeId;

/// The gauges, collected when metrics are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterGauges {
    pub(crate) nodes: u64,
    pub(crate) shards: u64,
    pub(crate) shards_without_leader: u64,
    pub(crate) control_without_leader: bool,
    pub(crate) shards_under_replicated: u64,
    pub(crate) leader_changes: u64,
    pub(crate) disk_low: bool,
    /// By node: the largest number of entries that one of its replicas lacks, of shards that this
    /// node leads.
    pub(crate) lags: BTreeMap<NodeId, u64>,
    pub(crate) peers: Vec<PeerGauges>,
    pub(crate) snapshot_bytes_sent: u64,
}

/// One peer, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerGauges {
    pub(crate) node: NodeId,
    pub(crate) connected: bool,
    pub(crate) heard: bool,
    pub(crate) clock_skew_ms: Option<i64>,
    pub(crate) round_trip_us: Option<u64>,
    pub(crate) raft_dropped: u64,
}

impl ClusterGauges {
    pub(super) fn render(&self, text: &mut Text, snapshot_bytes_fetched: u64) {
        for (name, value, about) in [
            ("nodes", self.nodes, "Nodes of the cluster, as this one knows it."),
            ("shards", self.shards, "Shards of the cluster."),
            (
                "shards_without_leader",
                self.shards_without_leader,
                "Shards for which this node knows no leader: it can't change their tasks.",
            ),
            (
                "control_without_leader",
                self.control_without_leader.into(),
                "1 while this node knows no leader of the control group: replicas and settings can't change.",
            ),
            (
                "shards_under_replicated",
                self.shards_under_replicated,
                "Shards that this node leads with fewer live replicas than the cluster wants.",
            ),
            (
                "disk_low",
                self.disk_low.into(),
                "1 while other nodes lead and this node gets no replicas, because its disk is close to full.",
            ),
        ] {
            let name = format!("taskyard_{name}");
            text.about(&name, "gauge", about);
            text.line(&name, &[], value);
        }
        let name = "taskyard_leader_changes_total";
        text.about(
            name,
            "counter",
            "New leaders of shards and of the control group that this node has seen.",
        );
        text.line(name, &[], self.leader_changes);
        let name = "taskyard_replica_lag_entries";
        let about = "The most entries that a replica on another node lacks, of shards that this node leads.";
        text.about(name, "gauge", about);
        for (node, lag) in &self.lags {
            text.line(name, &[("node", &node.to_string())], lag);
        }
        self.render_peers(text);
        let name = "taskyard_snapshot_bytes_total";
        text.about(
            name,
            "counter",
            "Bytes of shard snapshots that were sent to other nodes, or fetched from them.",
        );
        for (way, bytes) in
            [("sent", self.snapshot_bytes_sent), ("fetched", snapshot_bytes_fetched)]
        {
            text.line(name, &[("way", way)], bytes);
        }
    }

    fn render_peers(&self, text: &mut Text) {
        type Value = fn(&PeerGauges) -> Option<String>;
        let values: [(&str, &str, Value, &str); 5] = [
            (
                "connected",
                "gauge",
                |peer| Some(u64::from(peer.connected).to_string()),
                "1 while this node can send to another one.",
            ),
            (
                "heard",
                "gauge",
                |peer| Some(u64::from(peer.heard).to_string()),
                "1 while this node heard another one within about a second.",
            ),
            (
                "clock_skew_seconds",
                "gauge",
                |peer| peer.clock_skew_ms.map(signed_seconds),
                "How far the clock of another node is ahead of this one's, or behind if negative.",
            ),
            (
                "round_trip_seconds",
                "gauge",
                |peer| peer.round_trip_us.map(|us| Seconds(us).to_string()),
                "The round trip of the last ping to another node.",
            ),
            (
                "raft_dropped_total",
                "counter",
                |peer| Some(peer.raft_dropped.to_string()),
                "Messages between replicas that were dropped because another node was away or slow.",
            ),
        ];
        for (name, kind, value, about) in values {
            let name = format!("taskyard_peer_{name}");
            text.about(&name, kind, about);
            for peer in &self.peers {
                if let Some(value) = value(peer) {
                    text.line(&name, &[("node", &peer.node.to_string())], value);
                }
            }
        }
    }
}

fn signed_seconds(ms: i64) -> String {
    let sign = if ms < 0 { "-" } else { "" };
    format!("{sign}{}", Seconds::from_ms(ms.unsigned_abs()))
}
