//! AddFlowTasks: a running task adds tasks to its own flow. Its node is settled after all of them.

use crate::flow::graph::{Known, check_node, resolve};
use crate::flow::{Edge, NodeState};
use crate::limits::FLOW_ADD_NODES_MAX;
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::{AddFlowTasks, Enqueued, FlowNode, FlowState, Outcome, Rejection, TaskId};
use std::collections::BTreeSet;

impl Turn<'_> {
    /// Adds the nodes that are new. A name that the same node added before stands for the same
    /// task, so that a retried attempt adds nothing twice.
    pub(crate) fn add_flow_tasks(&mut self, add: &AddFlowTasks<'_>) -> Result<Outcome, Rejection> {
        let AddFlowTasks { flow, parent, ref nodes } = *add;
        let state = self.flow(flow)?.state;
        at_most("the number of added tasks", nodes.len() as u64, FLOW_ADD_NODES_MAX as u64)?;
        let Some(adder) = self.shard.node_named(flow, parent) else {
            let text = format!("flow {flow} has no node {parent:?}");
            return Err(Rejection::invalid(text));
        };
        nodes.iter().try_for_each(check_node)?;
        let known = |name: &str| {
            let number = self.shard.node_named(flow, name)?;
            let found = self.shard.node(flow, number);
            (found.added_by?.node == adder).then_some(found.task)
        };
        let old: Vec<Option<TaskId>> = nodes.iter().map(|node| known(node.name)).collect();
        let new = nodes.iter().zip(&old).filter(|(_, old)| old.is_none());
        let new: Vec<FlowNode<'_>> = new.map(|(node, _)| node.clone()).collect();
        let mut made = Vec::new();
        if !new.is_empty() {
            self.check_adder(flow, adder, state)?;
            self.check_nodes(&new)?;
            let parents = self.resolve_added(flow, adder, &new)?;
            made = self.add_nodes(flow, &new, &parents, Some(adder));
        }
        let mut made = made.into_iter();
        let answer = |old: Option<TaskId>| match old {
            Some(id) => Enqueued { id, duplicate: true },
            None => Enqueued { id: made.next().expect("each new one was made"), duplicate: false },
        };
        Ok(Outcome::FlowTasksAdded(old.into_iter().map(answer).collect()))
    }

    /// Checks that the flow counts this node's task as waiting or running, and not as ended. The
    /// task's own shard knows who holds the claim, and was asked before.
    fn check_adder(&self, flow: TaskId, adder: u32, state: FlowState) -> Result<(), Rejection> {
        if state != FlowState::Running {
            return Err(Rejection::FlowEnded { flow, state });
        }
        if self.flow(flow)?.cancel_requested {
            let hint = "it is being cancelled and takes no more tasks";
            return Err(Rejection::WrongFlowState { flow, state, hint: hint.into() });
        }
        let node = self.shard.node(flow, adder);
        if node.state != NodeState::Live {
            return Err(Rejection::ClaimLost { task: node.task });
        }
        Ok(())
    }

    /// The parents of new nodes. No parent may wait for the node that adds them.
    fn resolve_added(
        &self,
        flow: TaskId,
        adder: u32,
        new: &[FlowNode<'_>],
    ) -> Result<Vec<Box<[Edge]>>, Rejection> {
        let found = self.flow(flow)?;
        let existing = |name: &str| self.shard.node_named(flow, name);
        let known = Known { existing: &existing, nodes: found.nodes, edges: found.edges };
        let first = found.nodes;
        let parents = resolve(new, &known)?;
        if parents.iter().flatten().all(|edge| edge.node >= first) {
            return Ok(parents);
        }
        let waiting = self.waiting_for(flow, adder);
        for (node, edges) in new.iter().zip(&parents) {
            if let Some(edge) = edges.iter().find(|edge| waiting.contains(&edge.node)) {
                return Err(Rejection::invalid(format!(
                    "node {:?} depends on {:?}, which waits for it; depend on something else",
                    node.name,
                    self.shard.node(flow, edge.node).name
                )));
            }
        }
        Ok(parents)
    }

    /// A node and all nodes that wait for it: its dependents, and each node that added a waiting
    /// one.
    fn waiting_for(&self, flow: TaskId, number: u32) -> BTreeSet<u32> {
        let mut waiting = BTreeSet::from([number]);
        let mut work = vec![number];
        while let Some(number) = work.pop() {
            let node = self.shard.node(flow, number);
            for edge in node.dependents.iter().chain(&node.added_by) {
                if waiting.insert(edge.node) {
                    work.push(edge.node);
                }
            }
        }
        waiting
    }
}
