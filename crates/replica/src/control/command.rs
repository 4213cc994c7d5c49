//! ControlCommand: what is asked of the control group, and how it is written into its log.

use super::codec::{Reader, Writer};
use super::{InvalidControlBytes, Node, NodeId, Placement, SetSpread, Start};

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
    /// Adds a node under a number that was never used.
    AddNode {
        /// Its number.
        id: NodeId,
        /// What is known.
        node: Node,
    },
    /// Changes what is known of a node, or adds it.
    SetNode {
        /// Its number.
        id: NodeId,
        /// What is known.
        node: Node,
    },
    /// Takes out a node that holds no shard any more: it is forgotten once the control group has let
    /// its replica go.
    RemoveNode {
        /// Its number.
        id: NodeId,
    },
    /// Takes a node out of use, so that its replicas are moved away, or back into use.
    Drain {
        /// Its number.
        id: NodeId,
        /// Whether it is to be emptied.
        drains: bool,
    },
    /// Says that a node is lost for good: what it held is placed anew where there is another node for
    /// it, and then it is removed.
    GiveUp {
        /// Its number.
        id: NodeId,
    },
    /// Says where a group's replicas are, and that they are to stay there.
    Place {
        /// The group: 0 is this one, `shard + 1` a shard's.
        group: u64,
        /// Its replicas; at least one.
        replicas: Vec<Placement>,
    },
    /// Says on which nodes a group's voters are to be.
    SetTarget {
        /// The group.
        group: u64,
        /// The nodes; at least one.
        nodes: Vec<NodeId>,
    },
    /// Gives a group a new replica on a node, under the next free id.
    Assign {
        /// The group.
        group: u64,
        /// The node that will hold it.
        node: NodeId,
    },
    /// Takes a replica out of the map that its group has let go.
    Unassign {
        /// The group.
        group: u64,
        /// The replica.
        replica: u64,
    },
    /// Says how many voters each group is to have where there are nodes enough.
    SetReplication {
        /// 1, 3 or 5.
        factor: u8,
    },
    /// Raises the rules to what every node knows.
    RaiseRules {
        /// The new rules.
        rules: u16,
    },
    /// Says how far a queue lies.
    SetSpread(SetSpread),
    /// Says that a node has started, or counts on.
    Start {
        /// Its number.
        id: NodeId,
        /// Which start it is.
        start: Start,
    },
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
            ControlCommand::Place { group, replicas } => {
                out.u8(4);
                out.u64(*group);
                out.placements(replicas);
            }
            ControlCommand::RaiseRules { rules } => {
                out.u8(5);
                out.u16(*rules);
            }
            ControlCommand::AddNode { id, node } => {
                out.u8(6);
                out.u64(*id);
                out.node(node);
            }
            ControlCommand::Drain { id, drains } => {
                out.u8(7);
                out.u64(*id);
                out.u8((*drains).into());
            }
            ControlCommand::SetTarget { group, nodes } => {
                out.u8(8);
                out.u64(*group);
                out.numbers(nodes.iter().copied());
            }
            ControlCommand::Assign { group, node } => {
                out.u8(9);
                out.u64(*group);
                out.u64(*node);
            }
            ControlCommand::Unassign { group, replica } => {
                out.u8(10);
                out.u64(*group);
                out.u64(*replica);
            }
            ControlCommand::SetReplication { factor } => {
                out.u8(11);
                out.u8(*factor);
            }
            ControlCommand::GiveUp { id } => {
                out.u8(12);
                out.u64(*id);
            }
            ControlCommand::SetSpread(set) => {
                out.u8(13);
                set.write(&mut out);
            }
            ControlCommand::Start { id, start } => {
                out.u8(14);
                out.u64(*id);
                start.write(&mut out);
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
            4 => ControlCommand::Place { group: input.u64()?, replicas: input.placements()? },
            5 => ControlCommand::RaiseRules { rules: input.u16()? },
            6 => ControlCommand::AddNode { id: input.u64()?, node: input.node()? },
            7 => ControlCommand::Drain { id: input.u64()?, drains: input.u8()? != 0 },
            8 => ControlCommand::SetTarget { group: input.u64()?, nodes: input.numbers()? },
            9 => ControlCommand::Assign { group: input.u64()?, node: input.u64()? },
            10 => ControlCommand::Unassign { group: input.u64()?, replica: input.u64()? },
            11 => ControlCommand::SetReplication { factor: input.u8()? },
            12 => ControlCommand::GiveUp { id: input.u64()? },
            13 => ControlCommand::SetSpread(SetSpread::read(&mut input)?),
            14 => ControlCommand::Start { id: input.u64()?, start: Start::read(&mut input)? },
            _ => return Err(input.invalid("unknown command")),
        };
        input.end()?;
        Ok(command)
    }
}
