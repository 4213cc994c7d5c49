//! Progress: a node ends, is settled, and then releases its dependents or fails them.
//!
//! The cost of each step depends on the edges of its node, not on the size of the flow. A cascade
//! is a work list, not a recursion, because a flow can be deeper than the stack.

use crate::flow::{Node, NodeState, ParentResult, Verdict};
use crate::limits::{FLOW_NODES_KEPT_MAX, PARENTS_BYTES_MAX};
use crate::outbox::Message;
use crate::turn::Turn;
use crate::watch::{End, TaskEnded};
use crate::{CancelFlow, EventKind, FlowState, OnFailure, Outcome, Rejection, TaskId};

impl Node {
    /// Whether the node's task has ended without success.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state, NodeState::Ended(end) if end != End::Succeeded)
    }

    /// Whether all nodes that depend on this node, or added it, ignore its failure.
    fn is_excused(&self) -> bool {
        let mut edges = self.dependents.iter().chain(&self.added_by).peekable();
        edges.peek().is_some() && edges.all(|edge| edge.on_failure == OnFailure::Ignore)
    }
}

impl Turn<'_> {
    /// Records that a node's task has ended. A message about an earlier run, or about a node that
    /// the flow itself has ended, changes nothing.
    pub(crate) fn node_ended(
        &mut self,
        flow: TaskId,
        number: u32,
        run: u32,
        ended: &TaskEnded<'_>,
    ) {
        let Some(node) = self.shard.nodes.get((flow, number)) else { return };
        let is_news = node.task == ended.task
            && node.run == run
            && !matches!(node.state, NodeState::Ended(_))
            && self.shard.find_flow(flow).is_some();
        if !is_news {
            return;
        }
        self.edit_node(flow, number, |node| {
            node.state = NodeState::Ended(ended.end);
            (node.pending, node.result_left_out) = (0, ended.result_left_out);
            node.result = ended.result.map(Box::from);
            let error = ended.error.map(|e| Box::new((e.error_type.into(), e.message.into())));
            node.error = error;
        });
        self.settle_nodes(flow, vec![number]);
    }

    /// Settles all of these nodes that can be settled, and then their dependents. The flow ends
    /// with its last node.
    pub(crate) fn settle_nodes(&mut self, flow: TaskId, mut work: Vec<u32>) {
        while let Some(number) = work.pop() {
            let node = self.shard.node(flow, number);
            let NodeState::Ended(end) = node.state else { continue };
            if node.verdict.is_some() || node.added_open > 0 {
                continue;
            }
            let verdict = match end == End::Succeeded && node.added_failed == 0 {
                true => Verdict::Succeeded,
                false => Verdict::Failed,
            };
            let failed = verdict == Verdict::Failed;
            let culpable = failed && !node.is_excused();
            self.edit_node(flow, number, |node| {
                (node.verdict, node.culpable) = (Some(verdict), culpable);
            });
            self.edit_flow(flow, |flow| {
                flow.unsettled -= 1;
                flow.failed += u32::from(failed);
                flow.culpable += u32::from(culpable);
            });
            self.tell_dependents(flow, number, failed, &mut work);
            self.tell_adder(flow, number, failed, &mut work);
        }
        self.end_flow(flow);
    }

    fn tell_dependents(&mut self, flow: TaskId, number: u32, failed: bool, work: &mut Vec<u32>) {
        let dependents = self.shard.node(flow, number).dependents.clone();
        for edge in dependents {
            if self.shard.node(flow, edge.node).state != NodeState::Blocked {
                continue;
            }
            if failed && edge.on_failure == OnFailure::Fail {
                self.fail_blocked(flow, edge.node, number);
                work.push(edge.node);
                continue;
            }
            let pending = self.edit_node(flow, edge.node, |node| {
                node.pending -= 1;
                node.pending
            });
            if pending == 0 {
                self.release_node(flow, edge.node);
            }
        }
    }

    fn tell_adder(&mut self, flow: TaskId, number: u32, failed: bool, work: &mut Vec<u32>) {
        let Some(edge) = self.shard.node(flow, number).added_by else { return };
        let counts = failed && edge.on_failure == OnFailure::Fail;
        self.edit_node(flow, edge.node, |node| {
            node.added_open -= 1;
            node.added_failed += u32::from(counts);
        });
        work.push(edge.node);
    }

    /// Ends a blocked node because a parent failed. The caller settles the node next.
    pub(crate) fn fail_blocked(&mut self, flow: TaskId, number: u32, parent: u32) {
        let parent = self.shard.node(flow, parent).name.clone();
        let (task, run) = self.edit_node(flow, number, |node| {
            (node.state, node.pending) = (NodeState::Ended(End::Failed), 0);
            let message = format!("parent {parent} failed");
            node.error = Some(Box::new(("parent_failed".into(), message.into())));
            (node.task, node.run)
        });
        self.owe(task.home, &Message::FailBlocked { task, run, parent: &parent });
    }

    /// Releases a blocked node, with the results of its parents.
    pub(crate) fn release_node(&mut self, flow: TaskId, number: u32) {
        let parents = self.parent_results(flow, number);
        let (task, run) = self.edit_node(flow, number, |node| {
            (node.state, node.released) = (NodeState::Live, true);
            (node.task, node.run)
        });
        self.owe(task.home, &Message::Release { task, run, parents });
    }

    /// The results that a node gets from its parents, as far as they fit.
    fn parent_results(&self, flow: TaskId, number: u32) -> Vec<ParentResult> {
        let mut room = PARENTS_BYTES_MAX;
        let parents = self.shard.node(flow, number).parents.iter();
        let told = parents.map(|edge| {
            let parent = self.shard.node(flow, edge.node);
            let NodeState::Ended(end) = parent.state else {
                panic!("flow {flow}: node {} is settled and has not ended", parent.name)
            };
            let result = parent.result.as_ref().filter(|result| result.len() <= room);
            room -= result.map_or(0, |result| result.len());
            let bytes = |error: &(Box<str>, Box<str>)| error.0.len() + error.1.len();
            let error = parent.error.as_deref().filter(|error| bytes(error) <= room);
            room -= error.map_or(0, bytes);
            ParentResult {
                name: parent.name.clone(),
                task: parent.task,
                state: end.state(),
                omitted: parent.result_left_out || result.is_none() && parent.result.is_some(),
                result: result.cloned(),
                error: error.cloned(),
            }
        });
        told.collect()
    }

    /// Ends a flow if all its nodes are settled.
    fn end_flow(&mut self, id: TaskId) {
        let now = self.now;
        let found = self.shard.flows.get(id).expect("a node has its flow");
        if found.unsettled > 0 || found.state != FlowState::Running {
            return;
        }
        let state = match (found.failed, found.culpable) {
            (1.., _) if found.cancel_requested => FlowState::Cancelled,
            (_, 1..) => FlowState::Failed,
            _ => FlowState::Succeeded,
        };
        let nodes = self.edit_flow(id, |flow| {
            (flow.state, flow.cancel_requested) = (state, false);
            flow.ended_at = Some(now);
            flow.forget_at = Some(now.plus_ms(flow.retention_ms));
            flow.nodes
        });
        self.shard.ended_nodes += u64::from(nodes);
        self.emit(EventKind::FlowEnded(id, state));
        self.trim_flows();
    }

    /// Makes the oldest ended flow due for removal if more nodes are kept than the limit allows.
    fn trim_flows(&mut self) {
        if self.shard.ended_nodes <= FLOW_NODES_KEPT_MAX as u64 {
            return;
        }
        let now = self.now;
        let due = self.shard.flows.first_to_expire();
        if let Some(oldest) = due.filter(|&(at, _)| at > now).map(|(_, flow)| flow) {
            self.edit_flow(oldest, |flow| flow.forget_at = Some(now));
        }
    }

    /// Cancels a flow: waiting tasks end at once, running tasks when their workers yield.
    pub(crate) fn cancel_flow(&mut self, cancel: CancelFlow) -> Result<Outcome, Rejection> {
        let id = cancel.flow;
        let found = self.flow(id)?;
        match found.state {
            FlowState::Running => {}
            FlowState::Cancelled => return Ok(Outcome::FlowState(FlowState::Cancelled)),
            state => return Err(Rejection::FlowEnded { flow: id, state }),
        }
        self.edit_flow(id, |flow| flow.cancel_requested = true);
        let open =
            self.shard.nodes_of(id).filter(|(_, node)| !matches!(node.state, NodeState::Ended(_)));
        let open: Vec<(u32, TaskId, bool)> = open
            .map(|(number, node)| (number, node.task, node.state == NodeState::Blocked))
            .collect();
        let mut ended = Vec::new();
        for (number, task, blocked) in open {
            self.owe(task.home, &Message::Cancel { task });
            if blocked {
                self.edit_node(id, number, |node| {
                    (node.state, node.pending) = (NodeState::Ended(End::Cancelled), 0);
                });
                ended.push(number);
            }
        }
        self.settle_nodes(id, ended);
        Ok(Outcome::FlowState(self.flow(id)?.state))
    }
}
