//! Facts about a cluster in one node's view of it: leaders, and entries that replicas lack.

use taskyard::{ClusterDetails, ShardDetails};

/// The number of shards that have a leader and all their voters.
pub(crate) fn formed(view: &ClusterDetails) -> usize {
    let wanted = view.nodes.len().min(view.replication as usize);
    let is_formed = |shard: &&ShardDetails| {
        let voters = shard.replicas.iter().filter(|replica| replica.role == "voter").count();
        shard.leader.is_some() && shard.moving_to.is_empty() && voters == wanted
    };
    view.shards.iter().filter(is_formed).count()
}

/// The number of shards that a node leads.
pub(crate) fn leads(view: &ClusterDetails, node: u64) -> usize {
    view.shards.iter().filter(|shard| shard.leader == Some(node)).count()
}

/// Whether every node leads its share of the shards, plus or minus one. The control group has a
/// leader too, so that shares can't be exact.
pub(crate) fn is_even(view: &ClusterDetails) -> bool {
    let least = (view.shards.len() / view.nodes.len().max(1)).saturating_sub(1);
    view.nodes.iter().all(|node| leads(view, node.id) >= least)
}

/// Whether a node answers the node of this view.
pub(crate) fn is_up(view: &ClusterDetails, node: u64) -> bool {
    view.nodes.iter().any(|found| found.id == node && found.state == "up")
}

/// The entries that a node's replicas lack, by shard; `None` where the replica was not heard
/// lately.
pub(crate) fn lags(view: &ClusterDetails, node: u64) -> impl Iterator<Item = (u32, Option<u64>)> {
    view.shards.iter().flat_map(move |shard| {
        let held = shard.replicas.iter().filter(move |replica| replica.node == node);
        held.map(|replica| (shard.id, replica.lag))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard::{ClusterNode, ReplicaDetails};

    /// A cluster of nodes 1 to 3 with a voter of every shard on each, and these leaders.
    fn led_by(leaders: &[u64]) -> ClusterDetails {
        let mut view = ClusterDetails::default();
        view.replication = 3;
        for id in 1..=3 {
            let mut node = ClusterNode::default();
            (node.id, node.state) = (id, "up".to_owned());
            view.nodes.push(node);
        }
        for leader in leaders {
            let mut shard = ShardDetails::default();
            shard.leader = Some(*leader);
            for node in 1..=3 {
                let mut replica = ReplicaDetails::default();
                (replica.node, replica.role) = (node, "voter".to_owned());
                shard.replicas.push(replica);
            }
            view.shards.push(shard);
        }
        view
    }

    #[test]
    fn leaders_are_even_when_no_node_leads_much_less_than_its_share() {
        assert!(is_even(&led_by(&[1, 1, 2, 2, 3, 3])));
        assert!(is_even(&led_by(&[1, 1, 1, 2, 2, 3])));
        assert!(!is_even(&led_by(&[1, 1, 1, 2, 2, 2])));
    }

    #[test]
    fn a_shard_is_formed_when_all_its_voters_are_there_and_one_leads() {
        let mut view = led_by(&[1, 2, 3]);
        assert_eq!(formed(&view), 3);
        view.shards[0].leader = None;
        view.shards[1].replicas[2].role = "learner".to_owned();
        assert_eq!(formed(&view), 1);
        // One node can only form a cluster of one.
        view.nodes.truncate(1);
        view.shards[2].replicas.truncate(1);
        assert_eq!(formed(&view), 1);
    }
}
