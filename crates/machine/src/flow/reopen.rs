//! A flow that runs again: failed nodes are revived, and what failed because of them waits again.

use crate::flow::{NodeState, Verdict};
use crate::outbox::Message;
use crate::turn::Turn;
use crate::watch::End;
use crate::{FlowState, OnFailure, Outcome, Rejection, RetryFlow, TaskId};

/// Which nodes, below a node that runs again, wait again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    /// Those that failed because a parent did.
    Doomed,
    /// All that ended before their parents let them go.
    All,
}

impl Turn<'_> {
    /// Runs what failed again, and then what waited for it.
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
            // A failure that nobody minds is no reason to run it again, a cancellation is.
            let minded = node.verdict.is_none()
                || node.culpable
                || node.state == NodeState::Ended(End::Cancelled);
            node.has_failed() && minded
        });
        let (released, blocked): (Vec<_>, Vec<_>) = again
            .map(|(number, node)| (number, node.released))
            .partition(|&(_, released)| released);
        // All that runs again is open before any of it starts: what ran although a parent had failed,
        // and failed itself, waits for that parent this time.
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
        self.let_go_of(id, &sent_back);
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

    /// A node's task was retried by hand, where it lives.
    pub(crate) fn node_revived(&mut self, flow: TaskId, number: u32, run: u32) {
        let known = self.shard.find_flow(flow).is_some()
            && self.shard.nodes.get((flow, number)).is_some_and(|node| node.run < run);
        if known {
            let mut reopened = self.reopen(flow, number);
            self.start_over(flow, number, run);
            reopened.push(number);
            let mut sent_back = Vec::new();
            self.free_below(flow, reopened, Below::Doomed, &mut sent_back);
            self.let_go_of(flow, &sent_back);
        }
    }

    /// A reopened node runs once more.
    fn start_over(&mut self, flow: TaskId, number: u32, run: u32) -> TaskId {
        self.edit_node(flow, number, |node| {
            (node.state, node.run, node.released) = (NodeState::Live, run, true);
            (node.result, node.error, node.result_left_out) = (None, None, false);
            node.task
        })
    }

    /// A reopened node waits for its parents again.
    fn send_back(&mut self, flow: TaskId, number: u32, pending: u32) {
        let (task, run) = self.edit_node(flow, number, |node| {
            node.run += 1;
            (node.state, node.pending, node.released) = (NodeState::Blocked, pending, false);
            (node.result, node.error, node.result_left_out) = (None, None, false);
            (node.task, node.run)
        });
        self.owe(task.home, &Message::BlockAgain { task, run, flow, node: number });
    }

    /// Lets a node that ended before it was let go wait again, unless a parent still forbids it.
    fn block_again(&mut self, flow: TaskId, number: u32, sent_back: &mut Vec<u32>) {
        let mut reopened = Vec::new();
        if self.try_block(flow, number, Below::All, &mut reopened) {
            sent_back.push(number);
            self.free_below(flow, reopened, Below::All, sent_back);
        }
    }

    /// The same for all that depends on these nodes, and so on down.
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

    /// Starts what waits for nothing, once all that is to run again is open: a parent that is opened
    /// after its child holds it back too.
    fn let_go_of(&mut self, flow: TaskId, sent_back: &[u32]) {
        for &number in sent_back {
            if self.shard.node(flow, number).pending == 0 {
                self.let_go(flow, number);
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

    /// A settled parent whose failure ends this node.
    pub(crate) fn forbidding_parent(&self, flow: TaskId, number: u32) -> Option<u32> {
        let parents = &self.shard.node(flow, number).parents;
        let forbids = parents.iter().find(|edge| {
            edge.on_failure == OnFailure::Fail
                && self.shard.node(flow, edge.node).verdict == Some(Verdict::Failed)
        });
        forbids.map(|edge| edge.node)
    }

    /// How many parents of a node are not settled.
    pub(crate) fn open_parents(&self, flow: TaskId, number: u32) -> u32 {
        let parents = self.shard.node(flow, number).parents.iter();
        parents.filter(|edge| self.shard.node(flow, edge.node).verdict.is_none()).count() as u32
    }

    /// Takes back what was settled of a node that is to run again, and of the nodes that wait for it
    /// because they added it. Gives those; the caller changes the node's own state next.
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
