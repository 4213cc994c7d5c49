//! SubmitFlow: creates a whole flow, from one command or from staged parts.

use crate::enqueue::at_most_bytes;
use crate::flow::graph::{Known, check_flow, check_name, check_node, resolve};
use crate::flow::{Edge, Flow, FlowTask, Node, NodeState, name_key};
use crate::kept::Keep;
use crate::limits::{
    BATCH_STAGED_FOR_MS, FLOW_BYTES_MAX, FLOW_NODES_MAX, FLOW_RETENTION_MS_DEFAULT,
    FLOWS_STAGED_MAX, HORIZON_MS_MAX,
};
use crate::outbox::Message;
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::wire::{Wire, decode, wire_struct};
use crate::{
    CommitFlow, Enqueued, EventKind, FlowNode, FlowState, Outcome, Rejection, StageFlow,
    SubmitFlow, TaskId, Timestamp,
};

/// A flow whose parts are still arriving.
#[derive(Debug, PartialEq)]
pub(crate) struct StagedFlow {
    /// The nodes of each part, encoded.
    parts: Vec<Box<[u8]>>,
    nodes: u32,
    expires_at: Timestamp,
}

wire_struct!(StagedFlow { parts, nodes, expires_at });

impl Keep for StagedFlow {
    type Key = u128;
    const KIND: u8 = 25;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }

    fn heap_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

/// The parts of a flow that do not depend on its nodes.
#[derive(Clone, Copy)]
struct Head<'a> {
    name: &'a str,
    retention_ms: Option<u64>,
    batch_id: Option<u128>,
}

impl Turn<'_> {
    /// A full queue does not reject a flow. The queue may be on another shard, which cannot be
    /// asked in this entry and must accept every message. The flow's tasks count in their queues
    /// all the same.
    pub(crate) fn submit_flow(&mut self, submit: &SubmitFlow<'_>) -> Result<Outcome, Rejection> {
        let SubmitFlow { name, retention_ms, batch_id, ref nodes } = *submit;
        self.make_flow(Head { name, retention_ms, batch_id }, nodes)
    }

    /// Keeps one part. A part that came before is ignored, because it is a repetition.
    pub(crate) fn stage_flow(&mut self, part: &StageFlow<'_>) -> Result<Outcome, Rejection> {
        if self.shard.batches.get(part.batch_id).is_some() {
            return Ok(Outcome::Staged);
        }
        let staged = self.shard.staged_flows.get(part.batch_id);
        let (parts, nodes, bytes) = staged.map_or((0, 0, 0), |staged| {
            (staged.parts.len(), staged.nodes as usize, staged.heap_bytes())
        });
        if (part.part as usize) < parts {
            return Ok(Outcome::Staged);
        }
        if part.part as usize != parts {
            return Err(Rejection::invalid(format!(
                "part {} of the flow came before part {parts}; send parts in order",
                part.part
            )));
        }
        if parts == 0 && self.shard.staged_flows.len() >= FLOWS_STAGED_MAX {
            return Err(Rejection::LimitExceeded {
                what: format!(
                    "this shard stages its limit of {FLOWS_STAGED_MAX} flows; \
                     send the flow again later"
                ),
            });
        }
        let nodes = nodes + part.nodes.len();
        at_most("the number of nodes in the flow", nodes as u64, FLOW_NODES_MAX as u64)?;
        part.nodes.iter().try_for_each(check_node)?;
        let mut encoded = Vec::new();
        part.nodes.write(&mut encoded);
        at_most_bytes("the flow", bytes + encoded.len(), FLOW_BYTES_MAX)?;
        let expires_at = self.now.plus_ms(BATCH_STAGED_FOR_MS);
        if parts == 0 {
            let first = StagedFlow { parts: vec![], nodes: 0, expires_at };
            self.shard.staged_flows.insert(part.batch_id, first);
        }
        self.shard.staged_flows.update(part.batch_id, |staged| {
            staged.parts.push(encoded.into_boxed_slice());
            (staged.nodes, staged.expires_at) = (nodes as u32, expires_at);
        });
        Ok(Outcome::Staged)
    }

    pub(crate) fn commit_flow(&mut self, commit: CommitFlow<'_>) -> Result<Outcome, Rejection> {
        let CommitFlow { batch_id, parts, name, retention_ms } = commit;
        if let Some(known) = self.known_flow(Some(batch_id))? {
            return Ok(known);
        }
        let Some(staged) = self.shard.staged_flows.get(batch_id) else {
            return Err(Rejection::BatchNotFound { batch: batch_id });
        };
        if staged.parts.len() != parts as usize {
            return Err(Rejection::invalid(format!(
                "the flow has {} parts staged; {parts} were to be committed",
                staged.parts.len()
            )));
        }
        // The nodes borrow from the staged flow, so that it is taken out, and put back on a
        // rejection.
        let staged = self.shard.staged_flows.remove(batch_id).expect("it was just found");
        let decode_part =
            |part| -> Vec<FlowNode<'_>> { decode(part).expect("a staged part was encoded here") };
        let nodes: Vec<FlowNode<'_>> =
            staged.parts.iter().flat_map(|part| decode_part(part)).collect();
        let head = Head { name, retention_ms, batch_id: Some(batch_id) };
        let outcome = self.make_flow(head, &nodes);
        drop(nodes);
        if outcome.is_err() {
            self.shard.staged_flows.insert(batch_id, staged);
        }
        outcome
    }

    fn make_flow(&mut self, head: Head<'_>, nodes: &[FlowNode<'_>]) -> Result<Outcome, Rejection> {
        if let Some(known) = self.known_flow(head.batch_id)? {
            return Ok(known);
        }
        check_name("the name of the flow", head.name)?;
        let retention_ms = head.retention_ms.unwrap_or(FLOW_RETENTION_MS_DEFAULT);
        at_most("retention_ms", retention_ms, HORIZON_MS_MAX)?;
        check_flow(nodes)?;
        self.check_nodes(nodes)?;
        let parents = resolve(nodes, &Known { existing: &|_| None, nodes: 0, edges: 0 })?;
        let flow = self.next_id(self.shard.identity.shard);
        self.remember_batch(
            head.batch_id,
            [Some(Enqueued { id: flow, duplicate: false })].into_iter(),
        );
        self.shard.flows.insert(
            flow,
            Flow {
                name: head.name.into(),
                state: FlowState::Running,
                cancel_requested: false,
                nodes: 0,
                edges: 0,
                unsettled: 0,
                failed: 0,
                culpable: 0,
                created_at: self.now,
                ended_at: None,
                retention_ms,
                forget_at: None,
                forgetting: false,
            },
        );
        self.emit(EventKind::FlowSubmitted(flow));
        let tasks = self.add_nodes(flow, nodes, &parents, None);
        Ok(Outcome::FlowSubmitted { flow, tasks, duplicate: false })
    }

    /// The answer that a flow with this id got before.
    fn known_flow(&self, batch_id: Option<u128>) -> Result<Option<Outcome>, Rejection> {
        let Some(answers) = self.batch_answers(batch_id, 1)? else { return Ok(None) };
        let flow = answers.into_iter().flatten().next().map(|answer| answer.id);
        let flow = flow.filter(|&id| self.shard.find_flow(id).is_some()).ok_or_else(|| {
            Rejection::invalid("the batch_id was used for something else; give the flow its own")
        })?;
        let tasks = self.shard.nodes_of(flow).map(|(_, node)| node.task).collect();
        Ok(Some(Outcome::FlowSubmitted { flow, tasks, duplicate: true }))
    }

    /// Checks the parts of nodes that depend on the time and on the cluster.
    pub(crate) fn check_nodes(&self, nodes: &[FlowNode<'_>]) -> Result<(), Rejection> {
        let shards = self.shard.identity.shards;
        for node in nodes {
            let checked = match node.home.0 < shards {
                true => node.enqueue.task.check_times(self.now),
                false => Err(Rejection::invalid(format!(
                    "shard {} does not exist; the cluster has {shards}",
                    node.home
                ))),
            };
            checked.map_err(|rejection| Rejection::InNode {
                node: node.name.into(),
                rejection: Box::new(rejection),
            })?;
        }
        Ok(())
    }

    /// Adds checked nodes to a flow and sends their tasks to the shards of their queues; returns
    /// the ids.
    pub(crate) fn add_nodes(
        &mut self,
        flow: TaskId,
        nodes: &[FlowNode<'_>],
        parents: &[Box<[Edge]>],
        adder: Option<u32>,
    ) -> Vec<TaskId> {
        let first = self.shard.flows.get(flow).expect("it was just found").nodes;
        let edges: usize = parents.iter().map(|edges| edges.len()).sum();
        let ids: Vec<TaskId> = nodes.iter().map(|node| self.next_id(node.home)).collect();
        for ((number, node), (parents, &task)) in (first..).zip(nodes).zip(parents.iter().zip(&ids))
        {
            let added_by = adder.map(|adder| Edge { node: adder, on_failure: node.on_failure });
            let record = Node {
                name: node.name.into(),
                task,
                state: NodeState::Blocked,
                run: 0,
                released: false,
                pending: 0,
                parents: parents.clone(),
                dependents: Vec::new(),
                added_by,
                added_open: 0,
                added_failed: 0,
                verdict: None,
                culpable: false,
                result: None,
                result_left_out: false,
                error: None,
            };
            self.shard.nodes.insert((flow, number), record);
            self.shard.node_names.insert(name_key(flow, node.name), number);
        }
        self.edit_flow(flow, |flow| {
            flow.nodes += nodes.len() as u32;
            flow.edges += edges as u32;
            flow.unsettled += nodes.len() as u32;
        });
        if let Some(adder) = adder {
            self.edit_node(flow, adder, |node| node.added_open += nodes.len() as u32);
        }
        for (number, edges) in (first..).zip(parents) {
            for edge in edges {
                let dependent = Edge { node: number, on_failure: edge.on_failure };
                self.edit_node(flow, edge.node, |node| node.dependents.push(dependent));
            }
        }
        let mut doomed = Vec::new();
        for ((number, node), &task) in (first..).zip(nodes).zip(&ids) {
            self.start_node(flow, number, node, task, &mut doomed);
        }
        if !doomed.is_empty() {
            self.settle_nodes(flow, doomed);
        }
        ids
    }

    /// Sends a new node's task to its shard, and releases, blocks or fails the node.
    fn start_node(
        &mut self,
        flow: TaskId,
        number: u32,
        node: &FlowNode<'_>,
        task: TaskId,
        doomed: &mut Vec<u32>,
    ) {
        let free = node.depends_on.is_empty();
        let enqueue = node.enqueue.clone();
        let sent =
            FlowTask { flow, node: number, name: node.name, id: task, blocked: !free, enqueue };
        self.owe(task.home, &Message::FlowTask(sent));
        if free {
            self.edit_node(flow, number, |node| {
                (node.state, node.released) = (NodeState::Live, true);
            });
            return;
        }
        if let Some(parent) = self.forbidding_parent(flow, number) {
            self.fail_blocked(flow, number, parent);
            doomed.push(number);
            return;
        }
        let pending = self.open_parents(flow, number);
        self.edit_node(flow, number, |node| node.pending = pending);
        if pending == 0 {
            self.release_node(flow, number);
        }
    }
}
