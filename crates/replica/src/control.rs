//! Control: the state of the control group: the cluster's identity, its nodes, the placement of
//! each group's replicas, the rules that all nodes know, and the queues that are spread over
//! several shards. It knows nothing about tasks.
//!
//! Invariants: the cluster is founded once, and no other command is accepted before. A placement
//! names known nodes, and replica ids that its group never used before. A node's number is never
//! given to another node, and the node stays known as long as it has a replica of any group. Rules
//! are never lowered.

mod codec;
mod command;
mod nodes;
mod plan;
mod rejection;
mod spread;
mod starts;

pub use command::ControlCommand;
pub use plan::{GroupSeen, Seen, Step};
pub use rejection::ControlRejection;
pub use spread::{SetSpread, Spread, SpreadBefore};
pub use starts::Start;

use crate::{CONTROL_GROUP, StateMachine};
use codec::{Reader, Writer};
use rejection::name_of;
use std::collections::{BTreeMap, BTreeSet};

/// A node's number in its cluster, from 1.
pub type NodeId = u64;

/// A machine of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// A random number, drawn once for the data directory, so that a repeated request to join is
    /// recognised. 0 means unknown, and leaves the known number as it is.
    pub instance: u128,
    /// The address for peers, as host:port; empty if there is none.
    pub address: String,
    /// The address for clients, as host:port; empty if the node serves none.
    pub serves: String,
    /// The rack or zone with which the node fails together; empty if unknown.
    pub zone: String,
    /// The newest rules that its build knows.
    pub rules_max: u16,
}

/// One replica of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placement {
    /// The node of the replica.
    pub node: NodeId,
    /// The replica's id in the shard's group, never used again after a disk is lost.
    pub replica: u64,
}

/// The answer to one entry of the control group.
pub type ControlOutcome = Result<(), ControlRejection>;

/// The error of bytes that are not a command or a state of the control group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("control group's bytes can't be read at offset {at}: {what}")]
pub struct InvalidControlBytes {
    at: usize,
    what: &'static str,
}

/// The state of the control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    cluster: u128,
    incarnation: u32,
    /// The number of data shards; 0 until the cluster is founded.
    shards: u16,
    rules: u16,
    /// The wanted number of voters per group; 0 stands for the default.
    factor: u8,
    nodes: BTreeMap<NodeId, Node>,
    /// The highest number ever given to a node.
    node_last: NodeId,
    /// Nodes that are being drained.
    draining: BTreeSet<NodeId>,
    /// Nodes that are lost for good: their replicas are placed anew, then the nodes are removed.
    given_up: BTreeSet<NodeId>,
    /// Removed nodes that are forgotten as soon as the control group has removed their replica of
    /// it.
    leaving: BTreeSet<NodeId>,
    placements: BTreeMap<u64, GroupPlacement>,
    /// Queues that are spread over several shards.
    spreads: BTreeMap<String, Spread>,
    /// The last start of each node.
    starts: BTreeMap<NodeId, Start>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupPlacement {
    replicas: Vec<Placement>,
    /// The nodes for the group's voters, in ascending order.
    target: Vec<NodeId>,
    /// The highest replica id ever given out, so that no id is used twice.
    replica_last: u64,
}

/// The default number of voters per group.
const FACTOR_DEFAULT: u8 = 3;

impl StateMachine for Control {
    type Outcome = ControlOutcome;

    fn apply(&mut self, index: u64, data: &[u8]) -> ControlOutcome {
        match ControlCommand::decode(data) {
            Ok(command) => self.decide(command),
            // Another build wrote the entry, so that going on without it would diverge.
            Err(error) => panic!("control entry {index}: {error}"),
        }
    }
}

impl Control {
    /// The cluster's id and incarnation, once it is founded.
    pub fn cluster(&self) -> Option<(u128, u32)> {
        (self.shards > 0).then_some((self.cluster, self.incarnation))
    }

    /// The number of data shards; 0 until the cluster is founded.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// The rules that leaders propose under.
    pub fn rules(&self) -> u16 {
        self.rules
    }

    /// All nodes by number.
    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// The next number for a node.
    pub fn node_next(&self) -> NodeId {
        self.node_last + 1
    }

    /// Whether a node was removed, and is forgotten as soon as the control group has removed its
    /// replica.
    pub fn is_leaving(&self, id: NodeId) -> bool {
        self.leaving.contains(&id)
    }

    /// Whether a node with this number was removed and forgotten. Its process can end, because the
    /// cluster no longer counts on it.
    pub fn was_removed(&self, id: NodeId) -> bool {
        id <= self.node_last && !self.nodes.contains_key(&id)
    }

    /// Whether a node is being drained.
    pub fn is_draining(&self, id: NodeId) -> bool {
        self.draining.contains(&id)
    }

    /// Whether a node is lost for good, and is removed once other nodes have its replicas.
    pub fn has_given_up(&self, id: NodeId) -> bool {
        self.given_up.contains(&id)
    }

    /// The wanted number of voters per group, if there are enough nodes.
    pub fn factor(&self) -> u8 {
        if self.factor == 0 { FACTOR_DEFAULT } else { self.factor }
    }

    /// All groups: the control group, and one per shard.
    pub fn groups(&self) -> std::ops::RangeInclusive<u64> {
        0..=u64::from(self.shards)
    }

    /// The replicas of a group; empty if the group was not placed.
    pub fn replicas(&self, group: u64) -> &[Placement] {
        self.placements.get(&group).map_or(&[], |placement| &placement.replicas)
    }

    /// The nodes for a group's voters.
    pub fn target(&self, group: u64) -> &[NodeId] {
        self.placements.get(&group).map_or(&[], |placement| &placement.target)
    }

    /// The node of a replica.
    pub fn node_of(&self, group: u64, replica: u64) -> Option<NodeId> {
        self.replicas(group).iter().find(|at| at.replica == replica).map(|at| at.node)
    }

    /// The replica of a group on a node.
    pub fn replica_on(&self, group: u64, node: NodeId) -> Option<u64> {
        self.replicas(group).iter().find(|at| at.node == node).map(|at| at.replica)
    }

    /// The next free replica id of a group.
    pub fn replica_next(&self, group: u64) -> u64 {
        self.placements.get(&group).map_or(1, |placement| placement.replica_last + 1)
    }

    /// The number of voters that each group can have with the nodes in use.
    pub fn voters_wanted(&self) -> usize {
        self.voters_on(self.in_use().count())
    }

    /// The nodes that may get replicas.
    pub fn in_use(&self) -> impl Iterator<Item = NodeId> {
        let is_in_use =
            |node: &NodeId| !self.draining.contains(node) && !self.given_up.contains(node);
        self.nodes.keys().copied().filter(is_in_use)
    }

    /// The number of voters for this many nodes, which is always odd.
    fn voters_on(&self, nodes: usize) -> usize {
        let voters = nodes.min(self.factor().into());
        voters - usize::from(voters > 0 && voters.is_multiple_of(2))
    }

    fn decide(&mut self, command: ControlCommand) -> ControlOutcome {
        match command {
            ControlCommand::Found { cluster, incarnation, shards, rules } => {
                self.found(cluster, incarnation, shards, rules)
            }
            _ if self.shards == 0 => Err(ControlRejection::NotFounded),
            ControlCommand::AddNode { id, node } => self.add_node(id, node),
            ControlCommand::SetNode { id, node } => self.set_node(id, node),
            ControlCommand::RemoveNode { id } => self.remove_node(id),
            ControlCommand::Drain { id, drains } => self.drain(id, drains),
            ControlCommand::GiveUp { id } => self.give_up(id),
            ControlCommand::Place { group, replicas } => self.place(group, replicas),
            ControlCommand::SetTarget { group, nodes } => self.set_target(group, nodes),
            ControlCommand::Assign { group, node } => self.assign(group, node),
            ControlCommand::Unassign { group, replica } => self.unassign(group, replica),
            ControlCommand::SetReplication { factor } => self.set_replication(factor),
            ControlCommand::RaiseRules { rules } => self.raise_rules(rules),
            ControlCommand::SetSpread(set) => self.set_spread(set),
            ControlCommand::Start { id, start } => self.start(id, start),
        }
    }

    fn found(
        &mut self,
        cluster: u128,
        incarnation: u32,
        shards: u16,
        rules: u16,
    ) -> ControlOutcome {
        if self.shards > 0 {
            return Err(ControlRejection::AlreadyFounded { cluster: self.cluster });
        }
        if shards == 0 {
            return Err(invalid("a cluster has at least 1 shard, not 0"));
        }
        (self.cluster, self.incarnation) = (cluster, incarnation);
        (self.shards, self.rules) = (shards, rules);
        Ok(())
    }

    fn check_group(&self, group: u64) -> ControlOutcome {
        match self.groups().contains(&group) {
            true => Ok(()),
            false => Err(invalid(format!("group {group} is not one of 0 to {}", self.shards))),
        }
    }

    fn place(&mut self, group: u64, mut replicas: Vec<Placement>) -> ControlOutcome {
        self.check_group(group)?;
        replicas.sort_unstable();
        let name = name_of(group);
        if replicas.is_empty() || replicas.windows(2).any(|pair| pair[0].node == pair[1].node) {
            return Err(invalid(format!("{name} needs replicas, each on a node of its own")));
        }
        replicas.iter().try_for_each(|at| self.check_known(at.node))?;
        let before = self.placements.get(&group).cloned().unwrap_or_default();
        let mut ids: Vec<u64> = replicas.iter().map(|at| at.replica).collect();
        ids.sort_unstable();
        let twice = ids.windows(2).any(|pair| pair[0] == pair[1]) || ids[0] == 0;
        let reused =
            |at: &Placement| at.replica <= before.replica_last && !before.replicas.contains(at);
        if twice || replicas.iter().any(reused) {
            return Err(invalid(format!("{name}: replica ids {ids:?} are not all new and from 1")));
        }
        let replica_last = before.replica_last.max(*ids.last().expect("not empty"));
        let target = replicas.iter().map(|at| at.node).collect();
        self.placements.insert(group, GroupPlacement { replicas, target, replica_last });
        Ok(())
    }

    fn set_target(&mut self, group: u64, mut nodes: Vec<NodeId>) -> ControlOutcome {
        self.check_group(group)?;
        nodes.sort_unstable();
        if nodes.is_empty() || nodes.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(invalid(format!("{} needs nodes, each once", name_of(group))));
        }
        nodes.iter().try_for_each(|&node| self.check_known(node))?;
        self.placements.entry(group).or_default().target = nodes;
        Ok(())
    }

    fn assign(&mut self, group: u64, node: NodeId) -> ControlOutcome {
        self.check_group(group)?;
        self.check_known(node)?;
        if self.replica_on(group, node).is_some() {
            return Err(invalid(format!("node {node} has a replica of {}", name_of(group))));
        }
        let placement = self.placements.entry(group).or_default();
        placement.replica_last += 1;
        placement.replicas.push(Placement { node, replica: placement.replica_last });
        placement.replicas.sort_unstable();
        Ok(())
    }

    fn unassign(&mut self, group: u64, replica: u64) -> ControlOutcome {
        self.check_group(group)?;
        let name = name_of(group);
        let Some(node) = self.node_of(group, replica) else {
            return Err(invalid(format!("{name} has no replica {replica}")));
        };
        let placement = self.placements.entry(group).or_default();
        if placement.replicas.len() == 1 {
            return Err(invalid(format!("replica {replica} is the last one of {name}")));
        }
        if placement.target.contains(&node) {
            return Err(invalid(format!("{name} is to have a replica on node {node}")));
        }
        if group == CONTROL_GROUP && self.nodes.contains_key(&node) && !self.leaving.contains(&node)
        {
            return Err(invalid(format!("node {node} stays, and follows {name}")));
        }
        placement.replicas.retain(|at| at.replica != replica);
        if group == CONTROL_GROUP {
            self.forget(node);
        }
        Ok(())
    }

    fn set_replication(&mut self, factor: u8) -> ControlOutcome {
        if ![1, 3, 5].contains(&factor) {
            return Err(invalid(format!("a shard has 1, 3 or 5 replicas, not {factor}")));
        }
        self.factor = factor;
        Ok(())
    }

    fn raise_rules(&mut self, rules: u16) -> ControlOutcome {
        if rules < self.rules {
            return Err(invalid(format!("rules never fall: {rules} is below {}", self.rules)));
        }
        if let Some((id, node)) = self.nodes.iter().find(|(_, node)| node.rules_max < rules) {
            let known = node.rules_max;
            return Err(invalid(format!(
                "node {id} knows rules up to {known}, not {rules}; upgrade it"
            )));
        }
        self.rules = rules;
        Ok(())
    }

    /// The state as bytes, for checkpoints and snapshots. Equal states have equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u128(self.cluster);
        out.u32(self.incarnation);
        out.u16(self.shards);
        out.u16(self.rules);
        out.u8(self.factor);
        out.u64(self.node_last);
        out.u32(self.nodes.len() as u32);
        for (&id, node) in &self.nodes {
            out.u64(id);
            out.node(node);
        }
        out.numbers(self.draining.iter().copied());
        out.numbers(self.given_up.iter().copied());
        out.numbers(self.leaving.iter().copied());
        out.u32(self.placements.len() as u32);
        for (&group, placement) in &self.placements {
            out.u64(group);
            out.u64(placement.replica_last);
            out.numbers(placement.target.iter().copied());
            out.placements(&placement.replicas);
        }
        self.write_spreads(&mut out);
        self.write_starts(&mut out);
        out.0
    }

    /// Decodes the bytes of [`Control::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Control, InvalidControlBytes> {
        let mut input = Reader::new(bytes)?;
        let mut control = Control {
            cluster: input.u128()?,
            incarnation: input.u32()?,
            shards: input.u16()?,
            rules: input.u16()?,
            factor: input.u8()?,
            node_last: input.u64()?,
            ..Control::default()
        };
        for _ in 0..input.u32()? {
            control.nodes.insert(input.u64()?, input.node()?);
        }
        control.draining = input.numbers()?.into_iter().collect();
        control.given_up = input.numbers()?.into_iter().collect();
        control.leaving = input.numbers()?.into_iter().collect();
        for _ in 0..input.u32()? {
            let group = input.u64()?;
            let replica_last = input.u64()?;
            let target = input.numbers()?;
            let replicas = input.placements()?;
            control.placements.insert(group, GroupPlacement { replicas, target, replica_last });
        }
        control.read_spreads(&mut input)?;
        control.read_starts(&mut input)?;
        input.end()?;
        Ok(control)
    }
}

fn invalid(what: impl Into<String>) -> ControlRejection {
    ControlRejection::Invalid { what: what.into() }
}

#[cfg(test)]
mod tests;
