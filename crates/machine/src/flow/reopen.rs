//! Reopen: a retried flow revives its failed nodes and blocks the nodes that failed because of
//! them.

use crate::flow::{NodeState, Verdict};
use crate::outbox::Message;
use crate::turn::Turn;
use crate::watch::End;
use crate::{FlowState, OnFailure, Outcome, Rejection, RetryFlow, TaskId};

/// The nodes below a revived node that are blocked again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    /// Nodes that failed because a parent failed.
    Doomed,
    /// All nodes that ended before they were released.
    All,
}

impl Turn<'_> {
    /// Runs failed nodes again, and then the nodes that wait for them.
    pub(crate) fn retry_flow(&mut self, retry: RetryFlow) -> Result<Outcome, Rejection> {
        let id = retry.flow;
        let found = self.flow(id)?;
        let hint = match (found.failed, found.state) {
            _ if found.cancel_requested => {
                Some("it is being cancelled, retry it when its running tasks have yielded")
            }
            (0, FlowState::Running) => Some("none of its nodes has failed"),
            (0, _) => Some("submit it again to run it once more"),
            _ => None,
        };
        if let Some(hint) = hint {
            return Err(Rejection::WrongFlowState {
                flow: id,
                state: found.state,
                hint: hint.into(),
            });
        }
        let again = self.shard.nodes_of(id).filter(|(_, node)| {
            // An ignored failure is no reason to run a node again, but a cancellation is.
            let minded = node.verdict.is_none()
                || node.culpable
                || node.state == NodeState::Ended(End::Cancelled);
            node.has_failed() && minded
        });
        let (released, blocked): (Vec<_>, Vec<_>) = again
            .map(|(number, node)| (number, node.released))
            .partition(|&(_, released)| released);
        // All nodes are reopened before any of them starts. A node that ran despite a failed
        // parent, and failed itself, then waits for that parent this time.
        let mut reopened = Vec::new();
        for &(number, _) in &released {
            reopened.extend(self.reopen(id, number));
            reopened.push(number);
        }
        let mut sent_back = Vec::new();
        self.free_below(id, reopened, Below::All, &mut sent_back);
        for (number, _) in blocked {
            self.block_again(id, number, &mut sent_back);
        }
        self.release_unblocked(id, &sent_back);
        for (number, _) in released {
            let pending = self.open_parents(id, number);
            if pending > 0 {
                self.send_back(id, number, pending);
                continue;
            }
            let run = self.shard.node(id, number).run + 1;
            let task = self.start_over(id, number, run);
            self.owe(task.home, &Message::Revive { task, run, flow: id, node: number });
        }
        Ok(Outcome::FlowState(self.flow(id)?.state))
    }

    /// Records that a node's task was retried by hand on its own shard.
    pub(crate) fn node_revived(&mut self, flow: TaskId, number: u32, run: u32) {
        let known = self.shard.find_flow(flow).is_some()
            && self.shard.nodes.get((flow, number)).is_some_and(|node| node.run < run);
        if known {
            let mut reopened = self.reopen(flow, number);
            self.start_over(flow, number, run);
            reopened.push(number);
            let mut sent_back = Vec::new();
            self.free_below(flow, reopened, Below::Doomed, &mut sent_back);
            self.release_unblocked(flow, &sent_back);
        }
    }

    /// Runs a reopened node once more.
    fn start_over(&mut self, flow: TaskId, number: u32, run: u32) -> TaskId {
        self.edit_node(flow, number, |node| {
            (node.state, node.run, node.released) = (NodeState::Live, run, true);
            (node.result, node.error, node.result_left_out) = (None, None, false);
            node.task
        })
    }

    /// Blocks a reopened node until its parents are done.
    fn send_back(&mut self, flow: TaskId, number: u32, pending: u32) {
        let (task, run) = self.edit_node(flow, number, |node| {
            node.run += 1;
            (node.state, node.pending, node.released) = (NodeState::Blocked, pending, false);
            (node.result, node.error, node.result_left_out) = (None, None, false);
            (node.task, node.run)
        });
        self.owe(task.home, &Message::BlockAgain { task, run, flow, node: number });
    }

    /// Blocks a node again that ended before its release, unless a parent still forbids it to run.
    fn block_again(&mut self, flow: TaskId, number: u32, sent_back: &mut Vec<u32>) {
        let mut reopened = Vec::new();
        if self.try_block(flow, number, Below::All, &mut reopened) {
            sent_back.push(number);
            self.free_below(flow, reopened, Below::All, sent_back);
        }
    }

    /// Blocks again all nodes below these ones, level by level.
    fn free_below(
        &mut self,
        flow: TaskId,
        mut reopened: Vec<u32>,
        below: Below,
        sent_back: &mut Vec<u32>,
    ) {
        while let Some(number) = reopened.pop() {
            let dependents = self.shard.node(flow, number).dependents.clone();
            for edge in dependents {
                if self.try_block(flow, edge.node, below, &mut reopened) {
                    sent_back.push(edge.node);
                }
            }
        }
    }

    /// Releases the blocked nodes without open parents. This step comes last, because a parent that
    /// is reopened after its child blocks the child too.
    fn release_unblocked(&mut self, flow: TaskId, sent_back: &[u32]) {
        for &number in sent_back {
            if self.shard.node(flow, number).pending == 0 {
                self.release_node(flow, number);
            }
        }
    }

    fn try_block(
        &mut self,
        flow: TaskId,
        number: u32,
        below: Below,
        reopened: &mut Vec<u32>,
    ) -> bool {
        let node = self.shard.node(flow, number);
        let fits = match node.state {
            NodeState::Ended(End::Failed) => !node.released,
            NodeState::Ended(End::Succeeded) => false,
            NodeState::Ended(_) => below == Below::All && !node.released,
            NodeState::Blocked | NodeState::Live => false,
        };
        if !fits || self.forbidding_parent(flow, number).is_some() {
            return false;
        }
        let pending = self.open_parents(flow, number);
        reopened.extend(self.reopen(flow, number));
        self.send_back(flow, number, pending);
        reopened.push(number);
        true
    }

    /// A settled parent whose failure forbids this node to run.
    pub(crate) fn forbidding_parent(&self, flow: TaskId, number: u32) -> Option<u32> {
        let parents = &self.shard.node(flow, number).parents;
        let forbids = parents.iter().find(|edge| {
            edge.on_failure == OnFailure::Fail
                && self.shard.node(flow, edge.node).verdict == Some(Verdict::Failed)
        });
        forbids.map(|edge| edge.node)
    }

    /// The number of a node's parents that are not settled.
    pub(crate) fn open_parents(&self, flow: TaskId, number: u32) -> u32 {
        let parents = self.shard.node(flow, number).parents.iter();
        parents.filter(|edge| self.shard.node(flow, edge.node).verdict.is_none()).count() as u32
    }

    /// Reopens a node that is to run again, and the nodes that wait for it because they added it.
    /// Returns these other nodes; the caller changes the node's own state next.
    fn reopen(&mut self, flow: TaskId, number: u32) -> Vec<u32> {
        self.reopen_flow(flow);
        let mut adders = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next.take() {
            let node = self.shard.node(flow, number);
            let Some(verdict) = node.verdict else { break };
            let (culpable, added_by) = (node.culpable, node.added_by);
            let dependents = node.dependents.clone();
            let failed = verdict == Verdict::Failed;
            self.edit_node(flow, number, |node| (node.verdict, node.culpable) = (None, false));
            self.edit_flow(flow, |flow| {
                flow.unsettled += 1;
                flow.failed -= u32::from(failed);
                flow.culpable -= u32::from(culpable);
            });
            for edge in dependents {
                if self.shard.node(flow, edge.node).state == NodeState::Blocked {
                    self.edit_node(flow, edge.node, |node| node.pending += 1);
                }
            }
            if let Some(edge) = added_by {
                let counted = failed && edge.on_failure == OnFailure::Fail;
                self.edit_node(flow, edge.node, |node| {
                    node.added_open += 1;
                    node.added_failed -= u32::from(counted);
                });
                adders.push(edge.node);
                next = Some(edge.node);
            }
        }
        adders
    }

    fn reopen_flow(&mut self, id: TaskId) {
        let found = self.shard.flows.get(id).expect("a node has its flow");
        if found.state == FlowState::Running {
            return;
        }
        self.shard.ended_nodes -= u64::from(found.nodes);
        self.edit_flow(id, |flow| {
            flow.state = FlowState::Running;
            (flow.ended_at, flow.forget_at) = (None, None);
        });
    }
}
