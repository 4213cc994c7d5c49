//! Plan: the next steps of the control group's leader: the placement of replicas, the leaders, the
//! rules.
//!
//! The plan is a pure function of the control state and of the facts about the groups, so that a
//! new leader continues where the last one stopped. A replica moves in steps. The plan sets a
//! target, assigns a replica, and adds it to its group as a learner. When all new replicas of a
//! group have caught up, one joint change swaps them for the leaving ones. Then the plan removes
//! the old replicas from the map.
//!
//! Invariants: only one group at a time begins to move, so that the cluster is never all in motion.
//! A voter is removed only in the change that adds its successors, or when its group has voters
//! enough. A node that stops gets no leaders, and a node that is low on disk gets neither leaders
//! nor replicas.

use super::{Control, ControlCommand, NodeId};
use crate::{CONTROL_GROUP, Change, Members};
use std::collections::{BTreeMap, BTreeSet};

/// The most entries that a learner may lack when it becomes a voter.
const LAG_MAX: u64 = 1_000;

/// The facts about one group, as its leader reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSeen {
    /// The replica that leads.
    pub leader: u64,
    /// The members of the group.
    pub members: Members,
    /// The number of entries that each active member lacks.
    pub lags: BTreeMap<u64, u64>,
}

/// The facts about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Groups that have a leader.
    pub groups: BTreeMap<u64, GroupSeen>,
    /// Nodes that answer.
    pub alive: BTreeSet<NodeId>,
    /// Nodes that have been silent for so long that they are to be replaced.
    pub gone: BTreeSet<NodeId>,
    /// Groups whose leader an operator has just pinned. The leader stays, even if the leaders are
    /// spread unevenly.
    pub pinned: BTreeSet<u64>,
    /// Nodes that stop, or have just failed to answer. They get no leaders, even if they are alive.
    pub away: BTreeSet<NodeId>,
    /// Nodes low on disk: they get no replicas, and lead only what no other node can lead.
    pub full: BTreeSet<NodeId>,
    /// Nodes whose messages reach the others too slowly. They should lead nothing.
    pub slow: BTreeSet<NodeId>,
    /// Whether nodes have just joined, left or begun to stop. Leaders are not balanced meanwhile.
    pub is_in_flux: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A command for the control group.
    Command(ControlCommand),
    /// A change of members for a group's leader.
    Change {
        /// The group.
        group: u64,
        /// The changes.
        changes: Vec<Change>,
    },
    /// A hand-over of leadership.
    Transfer {
        /// The group.
        group: u64,
        /// The heir.
        to: u64,
    },
}

impl Control {
    /// The next steps; empty if everything is in place, or if nothing can be done yet. Steps that
    /// fail or are lost come again.
    pub fn next_steps(&self, seen: &Seen) -> Vec<Step> {
        if self.shards == 0 {
            return Vec::new();
        }
        let mut steps: Vec<Step> = self.raise_to().into_iter().map(Step::Command).collect();
        steps.extend(self.leave().map(Step::Command));
        let moving = self.moving(seen);
        steps.extend(moving.iter().filter_map(|&group| self.advance(group, seen)));
        if moving.is_empty() {
            let begins = |(group, nodes)| Step::Command(ControlCommand::SetTarget { group, nodes });
            steps.extend(self.begin(seen).map(begins));
        }
        steps.extend(self.lead_elsewhere(&moving, seen));
        steps
    }

    /// The groups whose replicas are known not to be in place.
    pub fn moving(&self, seen: &Seen) -> Vec<u64> {
        self.groups().filter(|&group| !self.is_in_place(group, seen)).collect()
    }

    /// The targets of the groups that move, or else of the group that will move next, because
    /// groups begin one after the other and the work is not done between two of them. Empty if
    /// everything is known to be in place.
    pub fn moves(&self, seen: &Seen) -> BTreeMap<u64, Vec<NodeId>> {
        let moving = self.moving(seen);
        if moving.is_empty() {
            return self.begin(seen).into_iter().collect();
        }
        moving.into_iter().map(|group| (group, self.target(group).to_vec())).collect()
    }

    /// The command that removes the first node that was given up and has no duties left.
    fn leave(&self) -> Option<ControlCommand> {
        let is_free = |id: NodeId| {
            !self.target(CONTROL_GROUP).contains(&id)
                && self.groups().skip(1).all(|group| self.replica_on(group, id).is_none())
        };
        let id =
            self.given_up.iter().copied().find(|id| is_free(*id) && !self.leaving.contains(id))?;
        Some(ControlCommand::RemoveNode { id })
    }

    /// Whether the plan no longer waits for a node.
    fn is_gone(&self, node: NodeId, seen: &Seen) -> bool {
        self.given_up.contains(&node) || seen.gone.contains(&node)
    }

    /// The rules that every node knows, if they are newer.
    fn raise_to(&self) -> Option<ControlCommand> {
        let rules = self.nodes.values().map(|node| node.rules_max).min()?;
        (rules > self.rules).then_some(ControlCommand::RaiseRules { rules })
    }

    /// Whether a group's replicas are in place, as far as is known.
    fn is_in_place(&self, group: u64, seen: &Seen) -> bool {
        let Some(found) = seen.groups.get(&group) else {
            // The plan can do nothing for a group without a leader, and other groups need not wait
            // for it.
            return true;
        };
        let target = self.target(group);
        let ids = |nodes: &mut dyn Iterator<Item = NodeId>| {
            let mut ids: Vec<u64> = nodes.filter_map(|node| self.replica_on(group, node)).collect();
            ids.sort_unstable();
            ids
        };
        let voters = ids(&mut target.iter().copied());
        let learners = ids(&mut self.followers(group).into_iter());
        let placed = target.len() + self.followers(group).len();
        voters.len() + learners.len() == placed
            && self.replicas(group).len() == placed
            && found.members == Members { voters, learners, outgoing: Vec::new() }
    }

    /// The nodes that follow a group without a vote. All other nodes follow the control group,
    /// because they need the map.
    fn followers(&self, group: u64) -> Vec<NodeId> {
        if group != CONTROL_GROUP {
            return Vec::new();
        }
        let target = self.target(group);
        let follows = |node: &NodeId| !target.contains(node) && !self.leaving.contains(node);
        self.nodes.keys().copied().filter(follows).collect()
    }

    /// The next step of a moving group.
    fn advance(&self, group: u64, seen: &Seen) -> Option<Step> {
        let found = seen.groups.get(&group)?;
        if !found.members.outgoing.is_empty() {
            return None;
        }
        if let Some(target) = self.retarget(group, seen) {
            return Some(Step::Command(target));
        }
        if self.target(group).iter().any(|&node| self.lacks_room(group, node, seen)) {
            return None;
        }
        let wanted = self.target(group).iter().copied().chain(self.followers(group));
        if let Some(node) = wanted.clone().find(|&node| self.replica_on(group, node).is_none()) {
            return Some(Step::Command(ControlCommand::Assign { group, node }));
        }
        let known = |replica: &u64| {
            found.members.voters.contains(replica) || found.members.learners.contains(replica)
        };
        let replicas: Vec<u64> = wanted.filter_map(|node| self.replica_on(group, node)).collect();
        if let Some(&replica) = replicas.iter().find(|replica| !known(replica)) {
            return Some(Step::Change { group, changes: vec![Change::AddLearner(replica)] });
        }
        self.swap(group, found, seen).or_else(|| self.remove_unwanted(group, found))
    }

    /// A new target, if a node of the target is gone or low on disk before its replica got a vote.
    fn retarget(&self, group: u64, seen: &Seen) -> Option<ControlCommand> {
        let target = self.target(group);
        let lost = |node: &NodeId| {
            self.is_gone(*node, seen)
                || self.draining.contains(node)
                || self.lacks_room(group, *node, seen)
        };
        if !target.is_empty() && !target.iter().any(lost) {
            return None;
        }
        let nodes = self.goal(group, seen, &self.loads());
        (!nodes.is_empty() && nodes != target).then_some(ControlCommand::SetTarget { group, nodes })
    }

    /// Swaps voters in one change, once the new ones have caught up: all new voters are added, and
    /// all leaving ones are removed.
    fn swap(&self, group: u64, found: &GroupSeen, seen: &Seen) -> Option<Step> {
        let is_voter = |node: NodeId| self.target(group).contains(&node);
        let target = self.target(group).iter();
        let target: Vec<u64> = target.filter_map(|&node| self.replica_on(group, node)).collect();
        let caught_up = |replica: &u64| found.lags.get(replica).is_some_and(|&lag| lag <= LAG_MAX);
        let incoming = target.iter().filter(|replica| !found.members.voters.contains(replica));
        let incoming: Vec<u64> = incoming.copied().collect();
        let ready = target.iter().filter(|replica| caught_up(replica)).count();
        // The new voters must form a majority without the leaving ones.
        if !incoming.iter().all(caught_up) || ready * 2 <= target.len() {
            return None;
        }
        let leaving = |replica: &&u64| !self.node_of(group, **replica).is_some_and(is_voter);
        let leaving: Vec<u64> = found.members.voters.iter().filter(leaving).copied().collect();
        if incoming.is_empty() && leaving.is_empty() {
            return None;
        }
        if leaving.contains(&found.leader) {
            let stays = |replica: &&u64| !leaving.contains(*replica) && caught_up(replica);
            let is_in = |nodes: &BTreeSet<NodeId>, replica: &u64| {
                self.node_of(group, *replica).is_none_or(|node| nodes.contains(&node))
            };
            let away_or_full = |heir: &&u64| (is_in(&seen.away, heir), is_in(&seen.full, heir));
            let heirs = found.members.voters.iter().filter(stays);
            // If no voter stays, the change itself ends the leadership.
            if let Some(&to) = heirs.min_by_key(away_or_full) {
                return (!is_in(&seen.away, &to)).then_some(Step::Transfer { group, to });
            }
        }
        let follows = |replica: u64| {
            let node = self.node_of(group, replica);
            node.is_some_and(|node| self.followers(group).contains(&node))
        };
        let go = |&replica: &u64| match follows(replica) {
            true => Change::AddLearner(replica),
            false => Change::Remove(replica),
        };
        let changes = incoming.iter().map(|&replica| Change::AddVoter(replica));
        Some(Step::Change { group, changes: changes.chain(leaving.iter().map(go)).collect() })
    }

    /// Removes unwanted learners from the group, and removed replicas from the map.
    fn remove_unwanted(&self, group: u64, found: &GroupSeen) -> Option<Step> {
        let wanted = |replica: u64| {
            let node = self.node_of(group, replica);
            node.is_some_and(|node| {
                self.target(group).contains(&node) || self.followers(group).contains(&node)
            })
        };
        let learners = found.members.learners.iter();
        let unwanted: Vec<Change> = learners
            .filter(|&&replica| !wanted(replica))
            .map(|&replica| Change::Remove(replica))
            .collect();
        if !unwanted.is_empty() {
            return Some(Step::Change { group, changes: unwanted });
        }
        let is_member = |replica: u64| {
            found.members.voters.contains(&replica) || found.members.learners.contains(&replica)
        };
        let mut replicas = self.replicas(group).iter().map(|at| at.replica);
        let replica = replicas.find(|&replica| !wanted(replica) && !is_member(replica))?;
        Some(Step::Command(ControlCommand::Unassign { group, replica }))
    }

    /// The next group that should move, and its new target.
    fn begin(&self, seen: &Seen) -> Option<(u64, Vec<NodeId>)> {
        // Counted once for all groups, because a cluster at rest checks every one of them.
        let loads = self.loads();
        self.groups().filter(|group| seen.groups.contains_key(group)).find_map(|group| {
            let nodes = self.goal(group, seen, &loads);
            (!nodes.is_empty() && nodes != self.target(group)).then_some((group, nodes))
        })
    }

    /// The best nodes for a group's voters, in ascending order; none if there is no room for them
    /// now. Present voters stay, unless they must go or the load is uneven by more than one. Load
    /// does not count for the control group, so that it does not move with every shard.
    fn goal(&self, group: u64, seen: &Seen, loads: &BTreeMap<NodeId, usize>) -> Vec<NodeId> {
        let candidates: Vec<NodeId> =
            self.nodes.keys().copied().filter(|node| !self.draining.contains(node)).collect();
        let count = self.voters_on(candidates.len());
        let load = |node: &NodeId| match group {
            CONTROL_GROUP => 0,
            _ => loads.get(node).copied().unwrap_or(0),
        };
        let current = self.target(group);
        let lacks_room = |node: &NodeId| self.lacks_room(group, *node, seen);
        let stays = |node: &NodeId| {
            candidates.contains(node) && !self.is_gone(*node, seen) && !lacks_room(node)
        };
        let mut chosen: Vec<NodeId> = current.iter().copied().filter(stays).collect();
        while chosen.len() > count {
            let worst = (0..chosen.len()).max_by_key(|&at| {
                let node = chosen[at];
                let (silent, full) = (!seen.alive.contains(&node), seen.full.contains(&node));
                (silent, full, self.shares_zone(node, &chosen), load(&node), node)
            });
            chosen.remove(worst.expect("there is one"));
        }
        while chosen.len() < count {
            let is_free = |node: &&NodeId| !chosen.contains(node) && !lacks_room(node);
            let free = candidates.iter().filter(is_free);
            // A silent node would only delay the move. A silent node with a replica stays in the
            // target, so that the group does not become smaller.
            let best = free.min_by_key(|&node| {
                let silent = !seen.alive.contains(node) || self.is_gone(*node, seen);
                let new = !current.contains(node);
                (silent, silent && new, self.shares_zone(*node, &chosen), load(node), *node)
            });
            match best {
                Some(best) => chosen.push(*best),
                // The group waits for room, because a smaller group would be worse.
                None => return Vec::new(),
            }
        }
        if let Some((out, into)) = self.better(&chosen, &candidates, seen, &load) {
            chosen.retain(|node| *node != out);
            chosen.push(into);
        }
        chosen.sort_unstable();
        chosen
    }

    /// Whether a group cannot come to a node because the node is low on disk. A present voter
    /// stays, and the control group needs hardly any space.
    fn lacks_room(&self, group: u64, node: NodeId, seen: &Seen) -> bool {
        let votes = || {
            let replica = self.replica_on(group, node)?;
            Some(seen.groups.get(&group)?.members.voters.contains(&replica))
        };
        group != CONTROL_GROUP && seen.full.contains(&node) && votes() != Some(true)
    }

    /// A swap that puts voters into more zones, or evens out the load.
    fn better(
        &self,
        chosen: &[NodeId],
        candidates: &[NodeId],
        seen: &Seen,
        load: &impl Fn(&NodeId) -> usize,
    ) -> Option<(NodeId, NodeId)> {
        let out = chosen
            .iter()
            .max_by_key(|&node| (self.shares_zone(*node, chosen), load(node), *node))?;
        let rest: Vec<NodeId> = chosen.iter().copied().filter(|node| node != out).collect();
        let free = candidates.iter().filter(|node| !chosen.contains(node));
        let into = free
            .filter(|node| seen.alive.contains(node) && !self.is_gone(**node, seen))
            .filter(|node| !seen.away.contains(node) && !seen.full.contains(node))
            .min_by_key(|&node| (self.shares_zone(*node, &rest), load(node), *node))?;
        let (zone_out, zone_in) = (self.shares_zone(*out, chosen), self.shares_zone(*into, &rest));
        let spreads = zone_out && !zone_in;
        let evens = zone_out >= zone_in && load(out) > load(into) + 1;
        (spreads || evens).then_some((*out, *into))
    }

    /// Whether another of these nodes is in the same zone. A node without a zone shares none.
    fn shares_zone(&self, node: NodeId, nodes: &[NodeId]) -> bool {
        let zone = |node: &NodeId| self.nodes.get(node).map(|node| node.zone.as_str());
        let own = zone(&node).filter(|zone| !zone.is_empty());
        own.is_some() && nodes.iter().any(|other| *other != node && zone(other) == own)
    }

    /// The number of shards with a voter on each node, by their targets.
    fn loads(&self) -> BTreeMap<NodeId, usize> {
        let mut loads = BTreeMap::new();
        for shard in self.groups().skip(1) {
            for &node in self.target(shard) {
                *loads.entry(node).or_default() += 1;
            }
        }
        loads
    }

    /// Hands over the leaders of nodes that are drained or low on disk. Otherwise hands over one
    /// leader from the node that leads most to the node that leads least.
    fn lead_elsewhere(&self, moving: &[u64], seen: &Seen) -> Vec<Step> {
        let mut leads: BTreeMap<NodeId, usize> = BTreeMap::new();
        let may_lead = |node: &&NodeId| {
            let is_fit = !seen.full.contains(node) && !seen.slow.contains(node);
            seen.alive.contains(node) && !seen.away.contains(node) && is_fit
        };
        for node in self.nodes.keys().filter(may_lead) {
            leads.insert(*node, 0);
        }
        let leader = |group: u64, found: &GroupSeen| self.node_of(group, found.leader);
        let settled = || seen.groups.iter().filter(|(group, _)| !moving.contains(group));
        for (&group, found) in &seen.groups {
            if let Some(count) = leader(group, found).and_then(|node| leads.get_mut(&node)) {
                *count += 1;
            }
        }
        let mut steps = Vec::new();
        for (&group, found) in settled() {
            let is_unfit = |node: &NodeId| seen.full.contains(node) || seen.slow.contains(node);
            let must_go = |node| self.draining.contains(&node) || is_unfit(&node);
            if leader(group, found).is_some_and(must_go)
                && let Some((to, node)) = self.successor(group, found, &leads)
            {
                *leads.entry(node).or_default() += 1;
                steps.push(Step::Transfer { group, to });
            }
        }
        if steps.is_empty() && !seen.is_in_flux {
            let mut free = settled().filter(|(group, _)| !seen.pinned.contains(group));
            let eased = free.find_map(|(&group, found)| {
                let from = leader(group, found)?;
                let (to, node) = self.successor(group, found, &leads)?;
                (leads.get(&from)? > &(leads.get(&node)? + 1))
                    .then_some(Step::Transfer { group, to })
            });
            steps.extend(eased);
        }
        steps
    }

    /// The voter that can take over a group and whose node leads least.
    fn successor(
        &self,
        group: u64,
        found: &GroupSeen,
        leads: &BTreeMap<NodeId, usize>,
    ) -> Option<(u64, NodeId)> {
        let voters = found.members.voters.iter().filter(|&&replica| {
            replica != found.leader && found.lags.get(&replica).is_some_and(|&lag| lag <= LAG_MAX)
        });
        let usable = voters.filter_map(|&replica| {
            let node = self.node_of(group, replica)?;
            let count = leads.get(&node).filter(|_| !self.draining.contains(&node))?;
            Some((*count, node, replica))
        });
        usable.min().map(|(_, node, replica)| (replica, node))
    }
}

#[cfg(test)]
mod tests;
