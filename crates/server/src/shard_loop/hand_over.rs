//! HandOver: a node that stops first hands over leadership of everything that it leads.
//!
//! Each group is offered to its possible heirs one by one, the least lagging first, until one
//! leads. An heir that does not take over says so at once (`Replica::decline`); a node that can't
//! be reached is skipped. From the start of a hand-over, this node accepts no leadership.

use super::{ShardLoop, peers::Led};
use crate::{cluster::name_of, shard::inbox::Answer};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use taskyard_replica::{CONTROL_GROUP, NodeId, Replica, Role, StateMachine};

/// How long after a round of refusals all heirs are asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Voters that lag at most this many entries behind the best are equally good heirs.
const LAG_MAX: u64 = 64;

/// A hand-over under way.
pub(super) struct HandOver {
    until: Instant,
    /// When the offers made so far are forgotten.
    again_at: Instant,
    /// By group: the replicas that were asked.
    offered: BTreeMap<u64, BTreeSet<u64>>,
    /// By node: how many groups it was asked to lead.
    given: BTreeMap<NodeId, usize>,
    answer: Answer<()>,
}

impl ShardLoop {
    /// Hands over all groups that this node leads and another node could lead.
    pub(super) fn accept_hand_over(&mut self, until: Instant, answer: Answer<()>) {
        self.routes.set_stopping();
        if let Some(control) = &mut self.control {
            control.replica.decline();
        }
        for shard in self.shards.iter_mut() {
            shard.replica.decline();
        }
        let again_at = self.real + AGAIN_AFTER;
        let (offered, given) = (BTreeMap::new(), BTreeMap::new());
        self.hand_over = Some(HandOver { until, again_at, offered, given, answer });
        self.look_at_hand_over();
    }

    /// Offers the groups that no other node leads yet. Answers once all have other leaders, or time
    /// is up.
    pub(super) fn look_at_hand_over(&mut self) {
        let Some(mut hand_over) = self.hand_over.take() else { return };
        if self.real >= hand_over.again_at {
            hand_over.again_at = self.real + AGAIN_AFTER;
            hand_over.offered.clear();
        }
        let left = self.control.as_ref().is_some_and(|control| is_left(&control.replica))
            || self.shards.iter().any(|shard| is_left(&shard.replica));
        if !left || self.real >= hand_over.until {
            if left {
                tracing::warn!(
                    "this node stops although not all groups that it led have another leader yet"
                );
            } else if !hand_over.given.is_empty() {
                tracing::info!("other nodes lead all groups that this node led");
            }
            let _ = hand_over.answer.send(Ok(()));
            return;
        }
        let groups = std::iter::once(CONTROL_GROUP).chain(self.shards.iter().map(|s| s.group));
        for group in groups.collect::<Vec<_>>() {
            self.offer(group, &mut hand_over);
        }
        self.hand_over = Some(hand_over);
    }

    /// Offers a group that this node leads to the next heir, unless an heir is taking over.
    fn offer(&mut self, group: u64, hand_over: &mut HandOver) {
        let lags = match self.leader_of_group(group) {
            Some(Led::Control(control)) => heirs(&control.replica),
            Some(Led::Shard(number)) => heirs(&self.shards[number].replica),
            None => None,
        };
        let Some(lags) = lags else { return };
        let offered = hand_over.offered.entry(group).or_default();
        let is_reached = |node| self.network.get().is_some_and(|network| network.is_reached(node));
        let heirs = lags.into_iter().filter(|(heir, _)| !offered.contains(heir));
        let heirs = heirs.filter_map(|(heir, lag)| {
            Some((self.node_of(group, heir).filter(|node| is_reached(*node))?, heir, lag))
        });
        let next = choose(&heirs.collect::<Vec<_>>(), &hand_over.given);
        let Some((node, heir)) = next else { return };
        tracing::debug!("{} is handed over to node {node}", name_of(group));
        offered.insert(heir);
        *hand_over.given.entry(node).or_default() += 1;
        match self.leader_of_group(group) {
            Some(Led::Control(control)) => control.replica.transfer_leader(heir),
            Some(Led::Shard(number)) => {
                self.shards[number].replica.transfer_leader(heir);
                self.activate(number);
            }
            None => {}
        }
    }
}

/// Whether this node must stay for the group. Until another leader is heard, its election may need
/// this node's vote. A group without other voters can't be handed over.
fn is_left<M: StateMachine>(replica: &Replica<M>) -> bool {
    let is_led = matches!(replica.role(), Role::Follower { leader: Some(_), .. });
    !is_led && replica.members().voters.iter().any(|voter| *voter != replica.id())
}

/// The voters that could lead instead of this replica, with the entries that each lacks. `None`
/// while a voter is taking over.
fn heirs<M: StateMachine>(replica: &Replica<M>) -> Option<Vec<(u64, u64)>> {
    if replica.heir().is_some() {
        return None;
    }
    let voters = replica.members().voters;
    let peers = replica.peers().into_iter();
    let peers = peers.filter(|peer| peer.id != replica.id() && voters.contains(&peer.id));
    Some(peers.map(|peer| (peer.id, peer.lag)).collect())
}

/// Of the heirs `(node, replica, lag)` that are about as far as the best: the one on the node that
/// was asked to lead least.
pub(super) fn choose(
    heirs: &[(NodeId, u64, u64)],
    given: &BTreeMap<NodeId, usize>,
) -> Option<(NodeId, u64)> {
    let least = heirs.iter().map(|(_, _, lag)| *lag).min()?;
    let near = heirs.iter().filter(|(_, _, lag)| *lag <= least.saturating_add(LAG_MAX));
    let next = near.min_by_key(|(node, _, lag)| (given.get(node).copied().unwrap_or(0), *lag));
    next.map(|(node, heir, _)| (*node, *heir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heir_is_one_that_has_nearly_everything_and_was_given_least() {
        let none = BTreeMap::new();
        assert_eq!(choose(&[], &none), None);
        assert_eq!(choose(&[(2, 12, 5), (3, 13, 0)], &none), Some((3, 13)), "it lacks least");
        let given = BTreeMap::from([(3, 1)]);
        assert_eq!(choose(&[(2, 12, 5), (3, 13, 0)], &given), Some((2, 12)));
        assert_eq!(choose(&[(2, 12, 65), (3, 13, 0)], &given), Some((3, 13)), "2 is far behind");
        assert_eq!(choose(&[(2, 12, 64 + 700), (3, 13, 700)], &given), Some((2, 12)));
    }
}
