//! ControlCommand: a request to the control group, and its encoding in the group's log.

use super::codec::{Reader, Writer};
use super::{InvalidControlBytes, Node, NodeId, Placement, SetSpread, Start};

/// A request to the control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Founds the cluster; accepted once.
    Found {
        /// The cluster's id, for ever.
        cluster: u128,
        /// Part of every task id; renewed by a restore.
        incarnation: u32,
        /// The number of data shards, for ever.
        shards: u16,
        /// The first rules.
        rules: u16,
    },
    /// Adds a node under a number that was never used.
    AddNode {
        /// The node's number.
        id: NodeId,
        /// The facts about the node.
        node: Node,
    },
    /// Changes the facts about a node, or adds it.
    SetNode {
        /// The node's number.
        id: NodeId,
        /// The facts about the node.
        node: Node,
    },
    /// Removes a node that has no replica of a shard any more. The node is forgotten once the
    /// control group has removed its replica of the control group.
    RemoveNode {
        /// The node's number.
        id: NodeId,
    },
    /// Drains a node, so that its replicas move away, or puts it back into use.
    Drain {
        /// The node's number.
        id: NodeId,
        /// Whether to drain the node.
        drains: bool,
    },
    /// Gives up a node that is lost for good: its replicas are placed on other nodes where there
    /// are any, and then the node is removed.
    GiveUp {
        /// The node's number.
        id: NodeId,
    },
    /// Places a group's replicas, and makes their nodes its target.
    Place {
        /// The group: 0 is the control group, `shard + 1` a shard's.
        group: u64,
        /// The replicas, at least one.
        replicas: Vec<Placement>,
    },
    /// Sets the nodes for a group's voters.
    SetTarget {
        /// The group.
        group: u64,
        /// The nodes, at least one.
        nodes: Vec<NodeId>,
    },
    /// Gives a group a new replica on a node, under the next free id.
    Assign {
        /// The group.
        group: u64,
        /// The node of the new replica.
        node: NodeId,
    },
    /// Removes a replica from the map after its group has removed it.
    Unassign {
        /// The group.
        group: u64,
        /// The replica.
        replica: u64,
    },
    /// Sets the number of voters that each group gets if there are enough nodes.
    SetReplication {
        /// 1, 3 or 5.
        factor: u8,
    },
    /// Raises the rules to the newest version that every node knows.
    RaiseRules {
        /// The new rules.
        rules: u16,
    },
    /// Records the spread of a queue.
    SetSpread(SetSpread),
    /// Records that a node has started, or has raised its count since.
    Start {
        /// The node's number.
        id: NodeId,
        /// The start.
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

    /// Decodes the bytes of [`ControlCommand::encode`].
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
