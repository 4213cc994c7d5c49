//! The operator of the cluster: nodes join, are drained and removed, the replication changes, and
//! lost nodes are replaced, all while things fail. A command may get lost; it is sent again.

use super::{Happening, Options, World};
use crate::network::Party;
use crate::node::{Node, NodeConfig};
use taskyard_replica::{ControlCommand, NodeId};

impl World {
    /// Adds a machine, which will ask to join.
    pub(super) fn add_node(&mut self, after_ms: u64) {
        let node = self.nodes.len();
        let Options { seed, shards, sabotage, .. } = self.options;
        let config = NodeConfig { id: node, shards, seed, sabotage };
        let rng = self.rng.fork();
        let mut new = Node::new(config, rng);
        // A node may join only if it knows the rules, which may be raised before it asks.
        new.rules_max = new.rules_max.max(self.oracle.control.newest().rules());
        if self.healing {
            let known = self.nodes.iter().map(|node| node.rules_max).max();
            new.rules_max = new.rules_max.max(known.unwrap_or_default());
        }
        self.nodes.push(new);
        self.lost.push(false);
        let places_max = self.nodes.len();
        self.workload.nodes = places_max;
        self.nodes.iter_mut().for_each(|node| node.places_max = places_max);
        self.at(after_ms, Happening::Restart { node });
    }

    /// Makes one decision of the operator.
    pub(super) fn operate(&mut self) {
        if self.take_out_lost() {
            return;
        }
        if self.options.faults && !self.healing && self.rng.chance(200) {
            return self.upgrade();
        }
        let control = self.oracle.control.newest();
        let known: Vec<NodeId> = control.nodes().keys().copied().collect();
        let draining: Vec<NodeId> =
            known.iter().copied().filter(|&id| control.is_draining(id)).collect();
        let in_use = (0..self.nodes.len()).filter(|&place| self.is_in_use(place)).count();
        let waits = known.iter().any(|id| control.has_given_up(*id));
        let lacks = in_use.saturating_sub(draining.len()) < usize::from(control.factor());
        if self.healing && waits && lacks {
            // A given-up node is removed only after other nodes have its replicas, so that there
            // must be other nodes.
            return self.add_node(1);
        }
        if known.is_empty() || self.healing || !self.options.churn {
            return;
        }
        let full = in_use >= self.options.nodes + 2;
        let id = *self.rng.pick(&known);
        let command = match self.rng.below(100) {
            0..30 if !full => return self.add_node(1),
            0..40 => ControlCommand::Drain { id, drains: true },
            40..75 if !draining.is_empty() => {
                ControlCommand::RemoveNode { id: *self.rng.pick(&draining) }
            }
            75..85 if !draining.is_empty() => {
                ControlCommand::Drain { id: *self.rng.pick(&draining), drains: false }
            }
            85..90 => return self.give_up_by_mistake(id),
            90.. => ControlCommand::SetReplication { factor: *self.rng.pick(&[1, 3, 3, 3, 5]) },
            _ => return,
        };
        self.order(&command);
    }

    /// Gives up or drains and removes a node that never comes; returns whether there was one. Its
    /// disk was lost, or it was removed and a late request of it to join got it another number.
    fn take_out_lost(&mut self) -> bool {
        let control = self.oracle.control.newest();
        let never_comes = |place: usize| self.lost[place] || self.nodes[place].retired;
        let is_lost = |place: &str| place.parse().is_ok_and(never_comes);
        let lost = control.nodes().iter().find(|(_, node)| is_lost(&node.address));
        let Some((&id, _)) = lost else { return false };
        let drains = control.is_draining(id);
        let gives_up = self.rng.chance(600);
        self.order(&match drains {
            _ if gives_up => ControlCommand::GiveUp { id },
            true => ControlCommand::RemoveNode { id },
            false => ControlCommand::Drain { id, drains: true },
        });
        true
    }

    /// Starts a newer build on the node with the oldest one. The new build knows the rules of the
    /// cluster and the next ones. No node gets a still newer build before all nodes know those
    /// rules.
    fn upgrade(&mut self) {
        let in_use = (0..self.nodes.len()).filter(|&place| self.is_in_use(place));
        let Some(oldest) = in_use.min_by_key(|&place| self.nodes[place].rules_max) else { return };
        if self.nodes[oldest].rules_max <= self.oracle.control.newest().rules() {
            self.note("upgrade", [oldest as u64, 0, 0]);
            self.crash(oldest);
            self.nodes[oldest].rules_max += 1;
        }
    }

    /// Gives up a node that is down but may come back; it must then find that it was removed.
    fn give_up_by_mistake(&mut self, id: NodeId) {
        let node = self.oracle.control.newest().nodes().get(&id);
        let place: Option<usize> = node.and_then(|node| node.address.parse().ok());
        if let Some(place) = place
            && !self.nodes[place].is_up()
            && self.may_lose(place)
        {
            self.mistaken.insert(id);
            self.order(&ControlCommand::GiveUp { id });
        }
    }

    /// Sends a command to the node that seems to lead the control group.
    fn order(&mut self, command: &ControlCommand) {
        let leaders: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].group_report(0).is_some())
            .collect();
        let Some(&to) = leaders.first() else { return };
        let to = if leaders.len() > 1 { *self.rng.pick(&leaders) } else { to };
        self.note("order", [to as u64, u64::from(command.encode()[1]), 0]);
        let operator = Party::Client(self.wakes.len());
        for delay in self.network.send(operator, Party::Node(to)) {
            self.at(delay, Happening::Ordered { to, command: Box::new(command.clone()) });
        }
    }
}
