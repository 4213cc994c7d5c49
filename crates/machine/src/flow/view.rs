//! Views of flows for fronts, dashboard and CLI. They take `&self` and decide nothing.

use crate::flow::{Flow, Node, NodeState};
use crate::limits::{FLOW_RESULT_BYTES_MAX, LOOK_TASKS_MAX, PAGE_TASKS_MAX};
use crate::watch::End;
use crate::wire::wire_struct;
use crate::{FlowState, Machine, OnFailure, QueueName, TaskId, TaskStateName, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// The result of a parent, as its dependents receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentResult {
    /// The name of the parent's node.
    pub name: Box<str>,
    /// The parent's task.
    pub task: TaskId,
    /// The final state of the parent. A purged parent counts as cancelled.
    pub state: TaskStateName,
    /// The result of the parent.
    pub result: Option<Box<[u8]>>,
    /// Whether the result is too large to travel along; the parent's own task has it.
    pub omitted: bool,
    /// Type and message of the last error of a parent that did not succeed.
    pub error: Option<(Box<str>, Box<str>)>,
}

wire_struct!(ParentResult { name, task, state, result, omitted, error });

impl ParentResult {
    pub(crate) fn bytes(&self) -> usize {
        size_of::<ParentResult>()
            + self.name.len()
            + self.result.as_ref().map_or(0, |result| result.len())
            + self.error.as_ref().map_or(0, |(kind, message)| kind.len() + message.len())
    }
}

/// A flow, with or without its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowView {
    /// The flow's id.
    pub id: TaskId,
    /// The flow's name; may be empty.
    pub name: String,
    /// The flow's state.
    pub state: FlowState,
    /// Whether the flow was cancelled, or is being cancelled while its running tasks are asked to
    /// stop.
    pub cancel_requested: bool,
    /// When the flow was submitted.
    pub created_at: Timestamp,
    /// When the flow ended.
    pub ended_at: Option<Timestamp>,
    /// The number of nodes.
    pub nodes_total: u32,
    /// The number of settled nodes: done, with all tasks that they added.
    pub nodes_done: u32,
    /// The number of settled nodes that did not succeed.
    pub nodes_failed: u32,
    /// The nodes, in the order in which they were given; empty in lists.
    pub nodes: Vec<NodeView>,
    /// Results of the nodes without dependents, by name, once the flow has ended; empty in lists.
    pub results: Vec<(String, Vec<u8>)>,
    /// Whether some results are too large to be shown here; their own tasks have them.
    pub results_omitted: bool,
}

/// One node of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node's name.
    pub name: String,
    /// The node's task.
    pub task: TaskId,
    /// The final state of a task that has ended; else `Blocked`, or `Ready` for a released task,
    /// whose own shard knows more.
    pub state: TaskStateName,
    /// The parents: their positions in the flow's nodes, and what their failure means.
    pub depends_on: Vec<(u32, OnFailure)>,
    /// The position of the node whose task added this one.
    pub added_by: Option<u32>,
    /// The number of unsettled tasks that this node's task added; the node is done after them.
    pub added_open: u32,
    /// Type and message of the error of a node that did not succeed.
    pub error: Option<(String, String)>,
}

/// A filter of flows; every given part must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The flow's name.
    pub name: Option<String>,
    /// The flow's state.
    pub state: Option<FlowState>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPage {
    /// The flows, in id order, without their nodes.
    pub flows: Vec<FlowView>,
    /// The id after which the next page starts; `None` is the end. A page may be short, even empty,
    /// and still have a next one.
    pub next: Option<TaskId>,
}

/// A few facts about one task, for lists of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSketch {
    /// The task's state.
    pub state: TaskStateName,
    /// The task's queue.
    pub queue: QueueName,
    /// The function's name.
    pub task_type: Arc<str>,
}

wire_struct!(FlowView {
    id,
    name,
    state,
    cancel_requested,
    created_at,
    ended_at,
    nodes_total,
    nodes_done,
    nodes_failed,
    nodes,
    results,
    results_omitted,
});
wire_struct!(NodeView { name, task, state, depends_on, added_by, added_open, error });
wire_struct!(FlowFilter { name, state });
wire_struct!(FlowPage { flows, next });
wire_struct!(TaskSketch { state, queue, task_type });

impl End {
    /// The state for readers. A task that was removed from the state counts as cancelled.
    pub(crate) fn state(self) -> TaskStateName {
        match self {
            End::Succeeded => TaskStateName::Succeeded,
            End::Failed => TaskStateName::Failed,
            End::Dead => TaskStateName::Dead,
            End::Cancelled | End::Removed => TaskStateName::Cancelled,
            End::Expired => TaskStateName::Expired,
        }
    }
}

impl Machine {
    /// One flow with its nodes.
    pub fn flow(&self, flow: TaskId) -> Option<FlowView> {
        let found = self.find_flow(flow)?;
        let mut view = flow_view(flow, found);
        let mut room = FLOW_RESULT_BYTES_MAX;
        for (_, node) in self.nodes_of(flow) {
            view.nodes.push(node_view(node));
            if found.state == FlowState::Running || !node.dependents.is_empty() {
                continue;
            }
            view.results_omitted |= node.result_left_out;
            let Some(result) = &node.result else { continue };
            match room.checked_sub(result.len()) {
                Some(left) => {
                    room = left;
                    view.results.push((node.name.to_string(), result.to_vec()));
                }
                None => view.results_omitted = true,
            }
        }
        Some(view)
    }

    /// A flow without its nodes.
    pub fn flow_summary(&self, flow: TaskId) -> Option<FlowView> {
        self.find_flow(flow).map(|found| flow_view(flow, found))
    }

    /// The task of the node with this name.
    pub fn task_of_node(&self, flow: TaskId, node: &str) -> Option<TaskId> {
        self.find_flow(flow)?;
        Some(self.node(flow, self.node_named(flow, node)?).task)
    }

    /// Flows that match, in id order after `after`, without their nodes.
    pub fn flows(&self, filter: &FlowFilter, after: Option<TaskId>, limit: usize) -> FlowPage {
        let limit = limit.clamp(1, PAGE_TASKS_MAX);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut flows = Vec::new();
        let mut last = None;
        for (looked_at, (id, flow)) in self.flows.range((start, Bound::Unbounded)).enumerate() {
            if looked_at == LOOK_TASKS_MAX || flows.len() == limit {
                return FlowPage { flows, next: last };
            }
            let named = filter.name.as_ref().is_none_or(|name| **name == *flow.name);
            if !flow.forgetting && named && filter.state.is_none_or(|state| state == flow.state) {
                flows.push(flow_view(id, flow));
            }
            last = Some(id);
        }
        FlowPage { flows, next: None }
    }

    /// The names of the nodes that a node still waits for, at most `limit`, and their full number:
    /// the unsettled parents, and the open tasks that an ended parent has added. `None` if there is
    /// no such node.
    pub fn unfinished_parents(
        &self,
        flow: TaskId,
        node: &str,
        limit: usize,
    ) -> Option<(Vec<String>, u32)> {
        self.find_flow(flow)?;
        let node = self.node(flow, self.node_named(flow, node)?);
        let has_ended = |number| matches!(self.node(flow, number).state, NodeState::Ended(_));
        let parents = node.parents.iter().map(|edge| edge.node);
        let mut work: Vec<u32> =
            parents.filter(|number| self.node(flow, *number).verdict.is_none()).rev().collect();
        let mut added: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        if work.iter().any(|number| has_ended(*number)) {
            for (number, node) in self.nodes_of(flow).filter(|(_, node)| node.verdict.is_none()) {
                if let Some(adder) = node.added_by {
                    added.entry(adder.node).or_default().push(number);
                }
            }
        }
        let mut found = BTreeSet::new();
        let mut names = Vec::new();
        while let Some(number) = work.pop() {
            if !found.insert(number) {
                continue;
            }
            if names.len() < limit {
                names.push(self.node(flow, number).name.to_string());
            }
            if has_ended(number) {
                work.extend(added.get(&number).into_iter().flatten().rev());
            }
        }
        Some((names, found.len() as u32))
    }

    /// A few facts about each of many tasks; `None` for tasks that this shard does not have.
    pub fn sketches(&self, tasks: &[TaskId]) -> Vec<Option<TaskSketch>> {
        let sketch = |&id: &TaskId| {
            let task = self.tasks.get(self.ids.get(id)?);
            Some(TaskSketch {
                state: task.state.name(),
                queue: self.queues.get(task.queue).name.clone(),
                task_type: self.names.get(task.task_type).clone(),
            })
        };
        tasks.iter().map(sketch).collect()
    }
}

fn flow_view(id: TaskId, flow: &Flow) -> FlowView {
    FlowView {
        id,
        name: flow.name.to_string(),
        state: flow.state,
        cancel_requested: flow.cancel_requested || flow.state == FlowState::Cancelled,
        created_at: flow.created_at,
        ended_at: flow.ended_at,
        nodes_total: flow.nodes,
        nodes_done: flow.nodes - flow.unsettled,
        nodes_failed: flow.failed,
        nodes: Vec::new(),
        results: Vec::new(),
        results_omitted: false,
    }
}

fn node_view(node: &Node) -> NodeView {
    NodeView {
        name: node.name.to_string(),
        task: node.task,
        state: match node.state {
            NodeState::Blocked => TaskStateName::Blocked,
            NodeState::Live => TaskStateName::Ready,
            NodeState::Ended(end) => end.state(),
        },
        depends_on: node.parents.iter().map(|edge| (edge.node, edge.on_failure)).collect(),
        added_by: node.added_by.map(|edge| edge.node),
        added_open: node.added_open,
        error: node.error.as_ref().map(|error| (error.0.to_string(), error.1.to_string())),
    }
}
