//! Nodes: how they join the cluster, are drained, and leave it.
//!
//! Invariant: a number is given once; a node leaves only when no replica is placed on it.

use super::{Control, ControlOutcome, ControlRejection, GroupPlacement, Node, NodeId, invalid};
use taskyard_machine::limits::NODE_TEXT_BYTES_MAX;

impl Control {
    pub(super) fn add_node(&mut self, id: NodeId, node: Node) -> ControlOutcome {
        let same = |known: &Node| node.instance != 0 && known.instance == node.instance;
        if let Some((&node, _)) = self.nodes.iter().find(|(_, known)| same(known)) {
            return Err(ControlRejection::AlreadyJoined { node });
        }
        if id <= self.node_last {
            return Err(ControlRejection::NodeTaken { node: id });
        }
        self.set_node(id, node)
    }

    pub(super) fn set_node(&mut self, id: NodeId, mut node: Node) -> ControlOutcome {
        if id == 0 {
            return Err(invalid("nodes are numbered from 1, not 0"));
        }
        for text in [&node.address, &node.serves, &node.zone] {
            if text.len() > NODE_TEXT_BYTES_MAX {
                let bytes = text.len();
                return Err(invalid(format!(
                    "an address or a zone of node {id} has {bytes} bytes, {NODE_TEXT_BYTES_MAX} are allowed"
                )));
            }
        }
        if self.was_removed(id) {
            return Err(ControlRejection::NodeTaken { node: id });
        }
        if self.given_up.contains(&id) {
            return Err(ControlRejection::GivenUp { node: id });
        }
        let is_there = |known: &Node| !known.address.is_empty() && known.address == node.address;
        let others = self.nodes.iter().filter(|(other, _)| **other != id);
        if let Some((&other, _)) = others.clone().find(|(_, known)| is_there(known)) {
            let address = node.address;
            return Err(ControlRejection::AddressTaken { node: other, address });
        }
        if node.instance == 0 {
            node.instance = self.nodes.get(&id).map_or(0, |known| known.instance);
        }
        if node.rules_max < self.rules {
            return Err(invalid(format!(
                "node {id} knows rules up to {}, the cluster runs on {}; upgrade it",
                node.rules_max, self.rules
            )));
        }
        self.nodes.insert(id, node);
        self.node_last = self.node_last.max(id);
        Ok(())
    }

    pub(super) fn remove_node(&mut self, id: NodeId) -> ControlOutcome {
        self.check_known(id)?;
        let holds = |(&group, placement): (&u64, &GroupPlacement)| {
            placement.replicas.iter().any(|at| at.node == id).then_some(group)
        };
        // Every node has a replica of the control group, perhaps with a vote. The group removes it
        // first.
        if let Some(group) = self.placements.iter().filter_map(holds).find(|&group| group > 0) {
            return Err(ControlRejection::NodeInUse { node: id, group });
        }
        let control = self.placements.entry(0).or_default();
        if control.target.contains(&id) {
            return Err(ControlRejection::NodeInUse { node: id, group: 0 });
        }
        if control.replicas.iter().any(|at| at.node == id) {
            self.draining.insert(id);
            self.leaving.insert(id);
        } else {
            self.forget(id);
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, id: NodeId) {
        self.draining.remove(&id);
        self.leaving.remove(&id);
        self.given_up.remove(&id);
        self.starts.remove(&id);
        self.nodes.remove(&id);
    }

    /// Gives up a node. Its address is free from now on, so that a new node on the same machine may
    /// use it.
    pub(super) fn give_up(&mut self, id: NodeId) -> ControlOutcome {
        self.check_known(id)?;
        let is_alone =
            |placement: &GroupPlacement| placement.replicas.iter().all(|at| at.node == id);
        let last = self.placements.iter().find(|(_, placement)| is_alone(placement));
        if let Some((&group, _)) = last {
            return Err(ControlRejection::LastReplica { node: id, group });
        }
        self.draining.remove(&id);
        self.given_up.insert(id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.address.clear();
            node.serves.clear();
        }
        Ok(())
    }

    pub(super) fn drain(&mut self, id: NodeId, drains: bool) -> ControlOutcome {
        self.check_known(id)?;
        if self.given_up.contains(&id) {
            return Err(ControlRejection::GivenUp { node: id });
        }
        if !drains {
            self.draining.remove(&id);
            self.leaving.remove(&id);
            return Ok(());
        }
        let left = self.in_use().filter(|node| *node != id).count();
        let replicas = self.voters_wanted();
        if left < replicas || left == 0 {
            return Err(ControlRejection::TooFewNodes { node: id, left, replicas });
        }
        self.draining.insert(id);
        Ok(())
    }

    pub(super) fn check_known(&self, node: NodeId) -> ControlOutcome {
        match self.nodes.contains_key(&node) {
            true => Ok(()),
            false => Err(ControlRejection::UnknownNode { node }),
        }
    }
}
