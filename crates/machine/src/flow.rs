//! Flows: DAGs of tasks. A flow's counters are on the shard that its id names, its tasks on the
//! shards of their queues; messages between the shards connect them.
//!
//! A node is *settled* when its task has ended, and all tasks that this task added. From then on
//! the node counts for its dependents. Invariant: a blocked node's `pending` is the number of its
//! parents that are not settled, and no settled parent forbids it to run.
//!
//! `submit.rs` makes flows, `add.rs` adds nodes, `graph.rs` checks the shape, `progress.rs` settles
//! and releases nodes, `reopen.rs` runs nodes again, `member.rs` is the side of the tasks, and
//! `view.rs` serves readers.

mod add;
mod forget;
mod graph;
mod member;
mod progress;
mod reopen;
mod submit;
#[cfg(test)]
mod tests;
mod view;

pub use graph::check_flow;
pub(crate) use member::{FlowTask, Membership};
pub(crate) use submit::StagedFlow;
pub use view::{FlowFilter, FlowPage, FlowView, NodeView, ParentResult, TaskSketch};

use crate::kept::Keep;
use crate::turn::Turn;
use crate::watch::End;
use crate::wire::{wire_struct, wire_words};
use crate::{FlowState, ImageError, Machine, OnFailure, Rejection, TaskId, Timestamp};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;

/// The record of a flow as a whole.
#[derive(Debug, PartialEq)]
pub(crate) struct Flow {
    pub(crate) name: Box<str>,
    pub(crate) state: FlowState,
    pub(crate) cancel_requested: bool,
    pub(crate) nodes: u32,
    pub(crate) edges: u32,
    /// The number of nodes that are not settled.
    pub(crate) unsettled: u32,
    /// The number of nodes that are settled and did not succeed.
    pub(crate) failed: u32,
    /// The number of failed nodes that make the flow fail.
    pub(crate) culpable: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) retention_ms: u64,
    /// When an ended flow is forgotten.
    pub(crate) forget_at: Option<Timestamp>,
    /// Whether the nodes are being forgotten, a bounded number at a time. Readers no longer see the
    /// flow.
    pub(crate) forgetting: bool,
}

/// One task of a flow, as the flow's shard knows it.
#[derive(Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) name: Box<str>,
    pub(crate) task: TaskId,
    pub(crate) state: NodeState,
    /// The number of the current run; each retry of the node raises it.
    pub(crate) run: u32,
    /// Whether the node was released in this run because its parents were done.
    pub(crate) released: bool,
    /// While the node is blocked: the number of its parents that are not settled.
    pub(crate) pending: u32,
    pub(crate) parents: Box<[Edge]>,
    pub(crate) dependents: Vec<Edge>,
    /// The node whose task added this one, and what a failure of this one means to it.
    pub(crate) added_by: Option<Edge>,
    /// The number of unsettled nodes that this node's task added.
    pub(crate) added_open: u32,
    /// The number of added nodes whose failure makes this node fail.
    pub(crate) added_failed: u32,
    /// How the node counts for others, once it is settled.
    pub(crate) verdict: Option<Verdict>,
    /// Whether the node is settled and its failure makes the flow fail.
    pub(crate) culpable: bool,
    pub(crate) result: Option<Box<[u8]>>,
    pub(crate) result_left_out: bool,
    /// Type and message of the error.
    pub(crate) error: Option<Box<(Box<str>, Box<str>)>>,
}

/// Another node of the same flow, and what a failure of the earlier of the two means to the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) node: u32,
    pub(crate) on_failure: OnFailure,
}

/// The state of a node, as far as its flow needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// The node waits for its parents.
    Blocked,
    /// The node's task waits or runs.
    Live,
    /// The node's task has ended.
    Ended(End),
}

/// How a settled node counts for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Succeeded,
    Failed,
}

wire_words!(FlowState { 1 => Running, 2 => Succeeded, 3 => Failed, 4 => Cancelled });
wire_words!(OnFailure { 1 => Fail, 2 => Ignore, 3 => Run });
wire_words!(Verdict { 1 => Succeeded, 2 => Failed });
wire_struct!(Edge { node, on_failure });
wire_struct!(Flow {
    name,
    state,
    cancel_requested,
    nodes,
    edges,
    unsettled,
    failed,
    culpable,
    created_at,
    ended_at,
    retention_ms,
    forget_at,
    forgetting,
});
wire_struct!(Node {
    name,
    task,
    state,
    run,
    released,
    pending,
    parents,
    dependents,
    added_by,
    added_open,
    added_failed,
    verdict,
    culpable,
    result,
    result_left_out,
    error,
});

impl<'a> crate::wire::Wire<'a> for NodeState {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            NodeState::Blocked => out.push(1),
            NodeState::Live => out.push(2),
            NodeState::Ended(end) => {
                out.push(3);
                end.write(out);
            }
        }
    }

    fn read(reader: &mut crate::wire::Reader<'a>) -> Result<NodeState, crate::DecodeError> {
        match reader.byte()? {
            1 => Ok(NodeState::Blocked),
            2 => Ok(NodeState::Live),
            3 => Ok(NodeState::Ended(reader.read()?)),
            other => Err(reader.error(format_args!("unknown state of a node {other}"))),
        }
    }
}

impl Keep for Flow {
    type Key = TaskId;
    const KIND: u8 = 23;

    fn expires_at(&self) -> Option<Timestamp> {
        self.forget_at
    }

    fn heap_bytes(&self) -> usize {
        self.name.len()
    }
}

impl Keep for Node {
    type Key = (TaskId, u32);
    const KIND: u8 = 24;

    fn heap_bytes(&self) -> usize {
        self.name.len()
            + (self.parents.len() + self.dependents.len()) * size_of::<Edge>()
            + self.result.as_ref().map_or(0, |result| result.len())
            + self.error.as_ref().map_or(0, |error| {
                size_of::<(Box<str>, Box<str>)>() + error.0.len() + error.1.len()
            })
            + NODE_NAME_BYTES
    }
}

/// Bytes that one node takes in the index of names.
const NODE_NAME_BYTES: usize = size_of::<((TaskId, u128), u32)>() * 3 / 2;

/// Nodes by flow and the hash of their name.
pub(crate) type NodeNames = BTreeMap<(TaskId, u128), u32>;

/// The index key of a node's name.
pub(crate) fn name_key(flow: TaskId, name: &str) -> (TaskId, u128) {
    (flow, xxh3_128(name.as_bytes()))
}

impl Machine {
    /// A flow that is not being forgotten.
    pub(crate) fn find_flow(&self, flow: TaskId) -> Option<&Flow> {
        self.flows.get(flow).filter(|found| !found.forgetting)
    }

    pub(crate) fn node(&self, flow: TaskId, node: u32) -> &Node {
        let found = self.nodes.get((flow, node));
        found.unwrap_or_else(|| panic!("flow {flow} has no node {node}"))
    }

    /// All nodes of a flow, ordered by number.
    pub(crate) fn nodes_of(&self, flow: TaskId) -> impl Iterator<Item = (u32, &Node)> {
        let nodes = self.nodes.range((flow, 0)..=(flow, u32::MAX));
        nodes.map(|((_, number), node)| (number, node))
    }

    /// The number of the node with this name.
    pub(crate) fn node_named(&self, flow: TaskId, name: &str) -> Option<u32> {
        self.node_names.get(&name_key(flow, name)).copied()
    }
}

/// Checkpoints and checks.
impl Machine {
    /// The indexes that are derived from the nodes of flows: their names, and how many have ended.
    fn flow_indexes(&self) -> Result<(NodeNames, u64), String> {
        let mut names = NodeNames::new();
        let mut ended = 0;
        for ((id, number), node) in self.nodes.iter() {
            let Some(flow) = self.flows.get(id) else {
                return Err(format!("the flow {id} of node {} is missing", node.name));
            };
            let edges = node.parents.iter().chain(&node.dependents).chain(&node.added_by);
            for edge in edges.filter(|_| !flow.forgetting) {
                if self.nodes.get((id, edge.node)).is_none() {
                    return Err(format!("node {} of flow {id} is missing", edge.node));
                }
            }
            names.insert(name_key(id, &node.name), number);
            ended += u64::from(flow.state != FlowState::Running);
        }
        Ok((names, ended))
    }

    pub(crate) fn index_flows(&mut self) -> Result<(), ImageError> {
        let indexes = self.flow_indexes().map_err(|what| ImageError { what })?;
        (self.node_names, self.ended_nodes) = indexes;
        Ok(())
    }

    /// Compares the counters of flows with their nodes.
    pub(crate) fn check_flows(&self) -> Result<(), String> {
        let indexes = self.flow_indexes()?;
        if indexes != (self.node_names.clone(), self.ended_nodes) {
            return Err("the indexes of flows disagree with their nodes".into());
        }
        for (id, flow) in self.flows.iter().filter(|(_, flow)| !flow.forgetting) {
            let counted = self.count_flow(id)?;
            let known = [flow.nodes, flow.edges, flow.unsettled, flow.failed, flow.culpable];
            if counted != known {
                return Err(format!("flow {id} is miscounted: {known:?} and not {counted:?}"));
            }
            if (flow.state == FlowState::Running) != (flow.unsettled > 0) {
                let (state, open) = (flow.state, flow.unsettled);
                return Err(format!("flow {id} is {state} with {open} nodes open"));
            }
        }
        Ok(())
    }

    fn count_flow(&self, id: TaskId) -> Result<[u32; 5], String> {
        let mut counts = [0; 5];
        let mut added: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for (_, node) in self.nodes_of(id) {
            let failed = node.verdict == Some(Verdict::Failed);
            let one = [
                1,
                node.parents.len() as u32,
                u32::from(node.verdict.is_none()),
                u32::from(failed),
                u32::from(node.culpable),
            ];
            counts.iter_mut().zip(one).for_each(|(count, one)| *count += one);
            if let Some(edge) = node.added_by {
                let (open, bad) = added.entry(edge.node).or_default();
                *open += u32::from(node.verdict.is_none());
                *bad += u32::from(failed && edge.on_failure == OnFailure::Fail);
            }
        }
        for (number, node) in self.nodes_of(id) {
            let at = format!("node {} of flow {id}", node.name);
            let added = added.get(&number).copied().unwrap_or_default();
            if added != (node.added_open, node.added_failed) {
                return Err(format!("{at} miscounts what it added"));
            }
            let ended = matches!(node.state, NodeState::Ended(_));
            if node.verdict.is_some() != (ended && node.added_open == 0) {
                return Err(format!("{at} is settled too early or too late"));
            }
            let parents = node.parents.iter().map(|edge| (edge, self.node(id, edge.node)));
            let open = parents.clone().filter(|(_, parent)| parent.verdict.is_none()).count();
            let forbidden = parents.clone().any(|(edge, parent)| {
                edge.on_failure == OnFailure::Fail && parent.verdict == Some(Verdict::Failed)
            });
            let blocked = node.state == NodeState::Blocked;
            if blocked && (forbidden || open == 0 || node.pending as usize != open) {
                return Err(format!("{at} waits for {} parents of {open}", node.pending));
            }
            for (edge, parent) in parents {
                let back = Edge { node: number, on_failure: edge.on_failure };
                if !parent.dependents.contains(&back) {
                    return Err(format!("{at} is unknown to its parent {}", parent.name));
                }
            }
        }
        Ok(counts)
    }
}

impl Turn<'_> {
    pub(crate) fn flow(&self, flow: TaskId) -> Result<&Flow, Rejection> {
        self.shard.find_flow(flow).ok_or(Rejection::FlowNotFound { flow })
    }

    pub(crate) fn edit_node<R>(
        &mut self,
        flow: TaskId,
        node: u32,
        change: impl FnOnce(&mut Node) -> R,
    ) -> R {
        self.shard.nodes.update((flow, node), change)
    }

    pub(crate) fn edit_flow<R>(&mut self, flow: TaskId, change: impl FnOnce(&mut Flow) -> R) -> R {
        self.shard.flows.update(flow, change)
    }
}
