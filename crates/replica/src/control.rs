//! Control: the control group's own state: the cluster's identity, its nodes, where each shard's
//! replicas are, and the rules that all of them know. Nothing about a task.
//!
//! Invariants: the cluster is founded once, and nothing is accepted before; a placement names known
//! nodes and replica ids that were never used before in its group; rules only rise.

mod codec;

use crate::StateMachine;
use codec::{Reader, Writer};
use std::collections::BTreeMap;

/// A node's number in its cluster, from 1.
pub type NodeId = u64;

/// A machine of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where its peers reach it, as host:port.
    pub address: String,
    /// What it fails together with: a rack, a zone; empty if unknown.
    pub zone: String,
    /// The newest rules its build knows.
    pub rules_max: u16,
}

/// One replica of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placement {
    /// The node that holds it.
    pub node: NodeId,
    /// Its id in the shard's group, never reused after a disk is lost.
    pub replica: u64,
}

/// What is asked of the control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Begins the cluster; once.
    Found {
        /// Names the cluster for ever.
        cluster: u128,
        /// Part of every task id; renewed by a restore.
        incarnation: u32,
        /// How many data shards there are, for ever.
        shards: u16,
        /// The rules to begin with.
        rules: u16,
    },
    /// Adds a node, or changes what is known of it.
    SetNode {
        /// Its number.
        id: NodeId,
        /// What is known.
        node: Node,
    },
    /// Forgets a node that holds no replica any more.
    RemoveNode {
        /// Its number.
        id: NodeId,
    },
    /// Says where a shard's replicas are.
    Place {
        /// The shard, from 0.
        shard: u16,
        /// Its replicas; at least one.
        replicas: Vec<Placement>,
    },
    /// Raises the rules to what every node knows.
    RaiseRules {
        /// The new rules.
        rules: u16,
    },
}

/// The control group says no; every replica says the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlRejection {
    /// The cluster exists already.
    #[error("cluster {cluster:032x} is already founded")]
    AlreadyFounded {
        /// Which one.
        cluster: u128,
    },
    /// Nothing can be set before the cluster is founded.
    #[error("the cluster is not founded yet")]
    NotFounded,
    /// No such node.
    #[error("node {node} is not known; add it first")]
    UnknownNode {
        /// The number that was asked for.
        node: NodeId,
    },
    /// The node still holds replicas.
    #[error("node {node} still holds a replica of shard {shard}; move it first")]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// One of its shards.
        shard: u16,
    },
    /// A value is outside its bounds.
    #[error("{what}")]
    Invalid {
        /// Lower case, no full stop: the value and what is allowed.
        what: String,
    },
}

/// The answer to one entry of the control group.
pub type ControlOutcome = Result<(), ControlRejection>;

/// The bytes are not a command or a state of the control group.
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
    /// 0 until the cluster is founded.
    shards: u16,
    rules: u16,
    nodes: BTreeMap<NodeId, Node>,
    placements: BTreeMap<u16, ShardPlacement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ShardPlacement {
    replicas: Vec<Placement>,
    /// The highest replica id ever given out, so that none comes twice.
    replica_last: u64,
}

impl StateMachine for Control {
    type Outcome = ControlOutcome;

    fn apply(&mut self, index: u64, data: &[u8]) -> ControlOutcome {
        match ControlCommand::decode(data) {
            Ok(command) => self.decide(command),
            // Another build wrote it: going on without it would diverge.
            Err(error) => panic!("control entry {index}: {error}"),
        }
    }
}

impl Control {
    /// The cluster's name and its incarnation, once founded.
    pub fn cluster(&self) -> Option<(u128, u32)> {
        (self.shards > 0).then_some((self.cluster, self.incarnation))
    }

    /// How many data shards there are; 0 until founded.
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

    /// Where a shard's replicas are; empty if it was not placed.
    pub fn replicas(&self, shard: u16) -> &[Placement] {
        self.placements.get(&shard).map_or(&[], |placement| &placement.replicas)
    }

    /// The next free replica id of a shard.
    pub fn replica_next(&self, shard: u16) -> u64 {
        self.placements.get(&shard).map_or(1, |placement| placement.replica_last + 1)
    }

    fn decide(&mut self, command: ControlCommand) -> ControlOutcome {
        match command {
            ControlCommand::Found { cluster, incarnation, shards, rules } => {
                self.found(cluster, incarnation, shards, rules)
            }
            _ if self.shards == 0 => Err(ControlRejection::NotFounded),
            ControlCommand::SetNode { id, node } => self.set_node(id, node),
            ControlCommand::RemoveNode { id } => self.remove_node(id),
            ControlCommand::Place { shard, replicas } => self.place(shard, replicas),
            ControlCommand::RaiseRules { rules } => self.raise_rules(rules),
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

    fn set_node(&mut self, id: NodeId, node: Node) -> ControlOutcome {
        if id == 0 {
            return Err(invalid("nodes are numbered from 1, not 0"));
        }
        if node.rules_max < self.rules {
            return Err(invalid(format!(
                "node {id} knows rules up to {}, the cluster runs on {}; upgrade it",
                node.rules_max, self.rules
            )));
        }
        self.nodes.insert(id, node);
        Ok(())
    }

    fn remove_node(&mut self, id: NodeId) -> ControlOutcome {
        let holds = |placement: &ShardPlacement| placement.replicas.iter().any(|at| at.node == id);
        if let Some((&shard, _)) = self.placements.iter().find(|(_, placement)| holds(placement)) {
            return Err(ControlRejection::NodeInUse { node: id, shard });
        }
        match self.nodes.remove(&id) {
            Some(_) => Ok(()),
            None => Err(ControlRejection::UnknownNode { node: id }),
        }
    }

    fn place(&mut self, shard: u16, mut replicas: Vec<Placement>) -> ControlOutcome {
        if shard >= self.shards {
            return Err(invalid(format!("shard {shard} is not one of {} from 0", self.shards)));
        }
        replicas.sort_unstable();
        if replicas.is_empty() || replicas.windows(2).any(|pair| pair[0].node == pair[1].node) {
            return Err(invalid(format!(
                "shard {shard} needs replicas, each on a node of its own"
            )));
        }
        if let Some(at) = replicas.iter().find(|at| !self.nodes.contains_key(&at.node)) {
            return Err(ControlRejection::UnknownNode { node: at.node });
        }
        let before = self.placements.get(&shard).cloned().unwrap_or_default();
        let mut ids: Vec<u64> = replicas.iter().map(|at| at.replica).collect();
        ids.sort_unstable();
        let twice = ids.windows(2).any(|pair| pair[0] == pair[1]) || ids[0] == 0;
        let reused =
            |at: &Placement| at.replica <= before.replica_last && !before.replicas.contains(at);
        if twice || replicas.iter().any(reused) {
            return Err(invalid(format!(
                "shard {shard}: replica ids {ids:?} are not all new and from 1"
            )));
        }
        let replica_last = before.replica_last.max(*ids.last().expect("not empty"));
        self.placements.insert(shard, ShardPlacement { replicas, replica_last });
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

    /// The state as bytes, for checkpoints and snapshots: equal for equal states.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u128(self.cluster);
        out.u32(self.incarnation);
        out.u16(self.shards);
        out.u16(self.rules);
        out.u32(self.nodes.len() as u32);
        for (&id, node) in &self.nodes {
            out.u64(id);
            out.node(node);
        }
        out.u32(self.placements.len() as u32);
        for (&shard, placement) in &self.placements {
            out.u16(shard);
            out.u64(placement.replica_last);
            out.placements(&placement.replicas);
        }
        out.0
    }

    /// The reverse of [`Control::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Control, InvalidControlBytes> {
        let mut input = Reader::new(bytes)?;
        let mut control = Control {
            cluster: input.u128()?,
            incarnation: input.u32()?,
            shards: input.u16()?,
            rules: input.u16()?,
            ..Control::default()
        };
        for _ in 0..input.u32()? {
            control.nodes.insert(input.u64()?, input.node()?);
        }
        for _ in 0..input.u32()? {
            let shard = input.u16()?;
            let replica_last = input.u64()?;
            let replicas = input.placements()?;
            control.placements.insert(shard, ShardPlacement { replicas, replica_last });
        }
        input.end()?;
        Ok(control)
    }
}

impl ControlCommand {
    /// The command as an entry's data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            ControlCommand::Found { cluster, incarnation, shards, rules } => {
                out.u8(1);
                out.u128(*cluster);
                out.u32(*incarnation);
                out.u16(*shards);
                out.u16(*rules);
            }
            ControlCommand::SetNode { id, node } => {
                out.u8(2);
                out.u64(*id);
                out.node(node);
            }
            ControlCommand::RemoveNode { id } => {
                out.u8(3);
                out.u64(*id);
            }
            ControlCommand::Place { shard, replicas } => {
                out.u8(4);
                out.u16(*shard);
                out.placements(replicas);
            }
            ControlCommand::RaiseRules { rules } => {
                out.u8(5);
                out.u16(*rules);
            }
        }
        out.0
    }

    /// The reverse of [`ControlCommand::encode`].
    pub fn decode(bytes: &[u8]) -> Result<ControlCommand, InvalidControlBytes> {
        let mut input = Reader::new(bytes)?;
        let command = match input.u8()? {
            1 => ControlCommand::Found {
                cluster: input.u128()?,
                incarnation: input.u32()?,
                shards: input.u16()?,
                rules: input.u16()?,
            },
            2 => ControlCommand::SetNode { id: input.u64()?, node: input.node()? },
            3 => ControlCommand::RemoveNode { id: input.u64()? },
            4 => ControlCommand::Place { shard: input.u16()?, replicas: input.placements()? },
            5 => ControlCommand::RaiseRules { rules: input.u16()? },
            _ => return Err(input.invalid("unknown command")),
        };
        input.end()?;
        Ok(command)
    }
}

fn invalid(what: impl Into<String>) -> ControlRejection {
    ControlRejection::Invalid { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::FORMAT;

    fn node(rules_max: u16) -> Node {
        Node { address: "10.0.0.1:7401".into(), zone: "a".into(), rules_max }
    }

    fn at(node: NodeId, replica: u64) -> Placement {
        Placement { node, replica }
    }

    fn check(control: &mut Control, command: ControlCommand) -> Result<(), String> {
        let before = control.clone();
        let bytes = command.encode();
        assert_eq!(ControlCommand::decode(&bytes), Ok(command));
        let outcome = control.apply(2, &bytes);
        if outcome.is_err() {
            assert_eq!(*control, before, "a rejected command changes nothing");
        }
        assert_eq!(Control::decode(&control.encode()).as_ref(), Ok(&*control));
        outcome.map_err(|rejection| rejection.to_string())
    }

    fn founded() -> Control {
        let mut control = Control::default();
        let found = ControlCommand::Found { cluster: 0xabc, incarnation: 7, shards: 2, rules: 1 };
        assert_eq!(check(&mut control, found), Ok(()));
        for id in 1..=3 {
            assert_eq!(check(&mut control, ControlCommand::SetNode { id, node: node(2) }), Ok(()));
        }
        control
    }

    #[test]
    fn a_cluster_is_founded_once_and_before_all_else() {
        let mut control = Control::default();
        assert_eq!(control.cluster(), None);
        let early = ControlCommand::SetNode { id: 1, node: node(1) };
        assert_eq!(check(&mut control, early), Err("the cluster is not founded yet".into()));
        let mut control = founded();
        assert_eq!(control.cluster(), Some((0xabc, 7)));
        let again = ControlCommand::Found { cluster: 1, incarnation: 1, shards: 1, rules: 1 };
        let rejection = check(&mut control, again).unwrap_err();
        assert_eq!(rejection, format!("cluster {:032x} is already founded", 0xabc));
    }

    #[test]
    fn replica_ids_are_never_used_twice() {
        let mut control = founded();
        let place =
            |replicas: &[Placement]| ControlCommand::Place { shard: 0, replicas: replicas.into() };
        assert!(check(&mut control, place(&[at(1, 0)])).is_err());
        assert_eq!(check(&mut control, place(&[at(1, 1), at(2, 2)])), Ok(()));
        assert_eq!(control.replicas(0), [at(1, 1), at(2, 2)]);
        assert_eq!(control.replica_next(0), 3);
        assert_eq!(check(&mut control, place(&[at(1, 1), at(3, 3)])), Ok(()));
        for bad in [
            vec![at(1, 1), at(2, 2)],
            vec![at(1, 1), at(2, 3)],
            vec![at(1, 0)],
            vec![at(1, 4), at(2, 4)],
            vec![at(1, 4), at(1, 5)],
            vec![at(9, 4)],
            vec![],
        ] {
            assert!(check(&mut control, place(&bad)).is_err(), "{bad:?}");
        }
        assert_eq!(control.replicas(0), [at(1, 1), at(3, 3)]);
        let far = ControlCommand::Place { shard: 2, replicas: vec![at(1, 1)] };
        assert_eq!(check(&mut control, far), Err("shard 2 is not one of 2 from 0".into()));
    }

    #[test]
    fn a_node_leaves_only_when_it_holds_nothing() {
        let mut control = founded();
        let placed = ControlCommand::Place { shard: 1, replicas: vec![at(2, 1)] };
        assert_eq!(check(&mut control, placed), Ok(()));
        let remove = |id| ControlCommand::RemoveNode { id };
        let in_use = "node 2 still holds a replica of shard 1; move it first";
        assert_eq!(check(&mut control, remove(2)), Err(in_use.into()));
        assert_eq!(check(&mut control, remove(3)), Ok(()));
        assert_eq!(check(&mut control, remove(3)), Err("node 3 is not known; add it first".into()));
        assert_eq!(control.nodes().keys().copied().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn rules_rise_to_what_every_node_knows() {
        let mut control = founded();
        assert_eq!(check(&mut control, ControlCommand::RaiseRules { rules: 2 }), Ok(()));
        for rules in [1, 3] {
            assert!(check(&mut control, ControlCommand::RaiseRules { rules }).is_err(), "{rules}");
        }
        assert_eq!(control.rules(), 2);
        let old = ControlCommand::SetNode { id: 4, node: node(1) };
        assert!(
            check(&mut control, old).is_err(),
            "a node that does not know the rules can't join"
        );
    }

    #[test]
    fn broken_bytes_are_told_apart() {
        let bytes = founded().encode();
        for length in 0..bytes.len() {
            assert!(Control::decode(&bytes[..length]).is_err(), "cut to {length}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(Control::decode(&longer).is_err());
        assert!(ControlCommand::decode(&[FORMAT, 99]).is_err());
        assert!(ControlCommand::decode(&[9, 1]).is_err());
    }
}
