//! Flows: submit, read, cancel, retry, add tasks.
//!
//! A flow's record is on the shard that its id names, drawn when the flow is submitted. Its tasks
//! are on the shards of their queues, and a view collects from all of them.

use super::{
    Broker,
    cursor::{Cursor, page_limit},
    inspect::LOOKS_MAX,
    staging::Staging,
    unexpected,
};
use crate::{Error, random::random_u128};
use futures_util::future::try_join_all;
use std::{collections::BTreeMap, future::Future, time::Duration};
use taskyard_machine::{
    AddFlowTasks, CancelFlow, ClaimToken, Command, CommitFlow, Dependency, EncodedCommand, Enqueue,
    FlowFilter, FlowNode, FlowState, FlowView, OnFailure, Outcome, Rejection, RetryFlow, ShardId,
    StageFlow, SubmitFlow, TaskId, TaskSketch, ask, check_flow, limits,
};

/// A flow that was accepted.
#[derive(Clone, Debug)]
pub struct SubmittedFlow {
    /// The flow's id.
    pub id: TaskId,
    /// The flow's tasks, by the names of their nodes.
    pub tasks: BTreeMap<String, TaskId>,
    /// Whether the batch_id was known; this is then the flow that it made before.
    pub duplicate: bool,
}

/// A flow, and facts that only the shards of its tasks know.
#[derive(Clone, Debug)]
pub struct FoundFlow {
    /// The flow.
    pub flow: FlowView,
    /// One entry per node, in order; `None` for a task that is no longer kept.
    pub tasks: Vec<Option<TaskSketch>>,
}

/// A request for one page of the list of flows.
#[derive(Clone, Debug, Default)]
pub struct FlowsAsked {
    /// The filter.
    pub filter: FlowFilter,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
    /// The most flows on the page.
    pub limit: u32,
}

impl Broker {
    /// Checks a node of a flow, and finds the shard of its queue.
    pub fn flow_node<'a>(
        &self,
        name: &'a str,
        enqueue: Enqueue<'a>,
        depends_on: Vec<Dependency<'a>>,
        on_failure: OnFailure,
    ) -> Result<FlowNode<'a>, Error> {
        self.check_enqueue(&enqueue).map_err(|error| in_node(name, error))?;
        let home = self.shards().home(enqueue.queue);
        Ok(FlowNode { name, home, enqueue, depends_on, on_failure })
    }

    /// Makes a whole flow or nothing. A flow larger than one log entry is staged in parts,
    /// invisible until its commit. With a `batch_id`, the flow always goes to the same shard, which
    /// recognises a repetition.
    pub fn submit_flow(
        &self,
        name: &str,
        nodes: Vec<FlowNode<'_>>,
        retention_ms: Option<u64>,
        batch_id: Option<u128>,
    ) -> Result<impl Future<Output = Result<SubmittedFlow, Error>> + Send + use<>, Error> {
        check_flow(&nodes)?;
        // `on_failure` stands between a task and the task that adds it, and these nodes are not
        // added.
        if let Some(node) = nodes.iter().find(|node| node.on_failure != OnFailure::Fail) {
            return Err(not_added(node.name));
        }
        let bytes: usize = nodes.iter().map(node_bytes).sum();
        let bytes_max = limits::FLOW_BYTES_MAX;
        if bytes > bytes_max {
            return Err(Error::Invalid(format!(
                "the flow has {bytes} bytes, at most {bytes_max} are allowed; keep large inputs elsewhere and send references"
            )));
        }
        let names: Vec<String> = nodes.iter().map(|node| node.name.to_owned()).collect();
        let identity = batch_id.unwrap_or_else(random_u128);
        let shard = ShardId((identity % u128::from(self.shards().count())) as u16);
        let mut staging = None;
        let commands = if bytes <= limits::ENTRY_BYTES_MAX {
            let submit = SubmitFlow { batch_id, name, retention_ms, nodes };
            vec![EncodedCommand::new(&Command::SubmitFlow(submit))]
        } else {
            let under = staging.insert(Staging::new(self.shards(), shard, batch_id));
            staged(under.batch_id, name, retention_ms, nodes)
        };
        let shards = self.shards().clone();
        Ok(async move {
            match shards.propose_in_turn(shard, commands, true).await? {
                Outcome::FlowSubmitted { flow, tasks, duplicate } => {
                    if let Some(staging) = staging {
                        staging.committed();
                    }
                    let tasks = names.into_iter().zip(tasks).collect();
                    Ok(SubmittedFlow { id: flow, tasks, duplicate })
                }
                other => unexpected(&other),
            }
        })
    }

    /// One flow; waits up to `wait` for its end.
    pub async fn flow(
        &self,
        flow: TaskId,
        wait: Duration,
        with_nodes: bool,
    ) -> Result<FoundFlow, Error> {
        let shard = self.shard_of_flow(flow)?;
        if !wait.is_zero() {
            tokio::select! {
                ended = self.shards().finished(flow, wait) => {
                    ended.map_err(|error| flow_not_found(error, flow))?;
                }
                () = self.stopping() => {}
            }
        }
        let view = self.shards().ask(shard, ask::Flow { flow, with_nodes }).await?;
        let view = view.ok_or(Rejection::FlowNotFound { flow })?;
        let tasks = view.nodes.iter().map(|node| node.task).collect();
        let tasks = self.sketches(tasks).await?;
        Ok(FoundFlow { flow: view, tasks })
    }

    /// A few facts about each task, from the shards of the tasks.
    async fn sketches(&self, tasks: Vec<TaskId>) -> Result<Vec<Option<TaskSketch>>, Error> {
        let mut found = vec![None; tasks.len()];
        let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<TaskId>)> = BTreeMap::new();
        for (position, task) in tasks.into_iter().enumerate() {
            let share = by_shard.entry(task.home).or_default();
            share.0.push(position);
            share.1.push(task);
        }
        let reads = by_shard.into_iter().map(|(shard, (positions, tasks))| async move {
            let sketches = self.shards().ask(shard, ask::Sketches { tasks }).await?;
            Ok::<_, Error>((positions, sketches))
        });
        for (positions, sketches) in try_join_all(reads).await? {
            positions.into_iter().zip(sketches).for_each(|(at, sketch)| found[at] = sketch);
        }
        Ok(found)
    }

    /// A page of flows without their nodes: shard after shard, each in id order.
    pub async fn flows(&self, asked: FlowsAsked) -> Result<(Vec<FlowView>, Option<String>), Error> {
        let limit = page_limit(asked.limit)?;
        let shards = self.shards().count();
        let mut next = Some(match &asked.cursor {
            Some(text) => Cursor::decode(text, shards)?,
            None => Cursor::default(),
        });
        let (mut flows, mut looks) = (Vec::new(), 0);
        while let Some(at) = next {
            let wanted = limit - flows.len();
            let (filter, after) = (asked.filter.clone(), at.after);
            let question = ask::Flows { filter, after, limit: wanted as u32 };
            let page = self.shards().ask(at.shard, question).await?;
            let found = page.flows.len();
            flows.extend(page.flows);
            let following = ShardId(at.shard.0 + 1);
            next = match page.next {
                Some(after) => Some(Cursor { shard: at.shard, after: Some(after) }),
                None => (following.0 < shards).then_some(Cursor { shard: following, after: None }),
            };
            looks += usize::from(page.next.is_some() && found < wanted);
            if flows.len() >= limit || looks == LOOKS_MAX {
                break;
            }
        }
        Ok((flows, next.map(Cursor::encode)))
    }

    /// Cancels a flow; returns its new state.
    pub async fn cancel_flow(&self, flow: TaskId) -> Result<FlowState, Error> {
        self.change_flow(flow, &Command::CancelFlow(CancelFlow { flow })).await
    }

    /// Runs the failed tasks of a flow again; returns its new state.
    pub async fn retry_flow(&self, flow: TaskId) -> Result<FlowState, Error> {
        self.change_flow(flow, &Command::RetryFlow(RetryFlow { flow })).await
    }

    async fn change_flow(&self, flow: TaskId, command: &Command<'_>) -> Result<FlowState, Error> {
        match self.propose(self.shard_of_flow(flow)?, command).await? {
            Outcome::FlowState(state) => Ok(state),
            other => unexpected(&other),
        }
    }

    /// Adds tasks to the flow of a running task; returns their ids by name. The token must be that
    /// of the task's claim.
    ///
    /// The claim is checked on the task's shard, and the tasks are added on the flow's. The token
    /// therefore stops a worker that lost its claim before the call. A claim that is lost between
    /// the two steps still adds its tasks, unless the task has ended by then. The next attempt
    /// finds these tasks.
    pub async fn add_flow_tasks(
        &self,
        flow: TaskId,
        parent: &str,
        token: ClaimToken,
        nodes: Vec<FlowNode<'_>>,
    ) -> Result<BTreeMap<String, TaskId>, Error> {
        let shard = self.shard_of_flow(flow)?;
        let bytes: usize = nodes.iter().map(node_bytes).sum();
        let bytes_max = limits::FLOW_BYTES_MAX;
        if bytes > bytes_max {
            return Err(Error::Invalid(format!(
                "the added tasks have {bytes} bytes, at most {bytes_max} are allowed; split them"
            )));
        }
        let names: Vec<String> = nodes.iter().map(|node| node.name.to_owned()).collect();
        let command =
            EncodedCommand::new(&Command::AddFlowTasks(AddFlowTasks { flow, parent, nodes }));
        self.check_adder(flow, parent, token).await?;
        match self.shards().propose(shard, command, true).await? {
            Outcome::FlowTasksAdded(made) => {
                Ok(names.into_iter().zip(made.into_iter().map(|made| made.id)).collect())
            }
            other => unexpected(&other),
        }
    }

    /// Checks that the claim of a node's task has this token.
    async fn check_adder(
        &self,
        flow: TaskId,
        parent: &str,
        token: ClaimToken,
    ) -> Result<(), Error> {
        let asked = ask::TaskOfNode { flow, node: parent.to_owned() };
        let task = self.shards().ask(self.shard_of_flow(flow)?, asked).await?;
        let task =
            task.ok_or_else(|| Error::Invalid(format!("flow {flow} has no node {parent:?}")))?;
        let claim = self.shards().ask(task.home, ask::Holder { task }).await?;
        match claim.is_some_and(|claim| claim.token == token) {
            true => Ok(()),
            false => Err(Rejection::ClaimLost { task }.into()),
        }
    }

    /// The shard that a flow's id names, if this cluster has it.
    fn shard_of_flow(&self, flow: TaskId) -> Result<ShardId, Error> {
        match flow.home.0 < self.shards().count() {
            true => Ok(flow.home),
            false => Err(Rejection::FlowNotFound { flow }.into()),
        }
    }
}

/// Names the flow in the error, because the caller waits for a flow and not for a task.
fn flow_not_found(error: Error, flow: TaskId) -> Error {
    match error {
        Error::Rejected(Rejection::TaskNotFound { .. }) => Rejection::FlowNotFound { flow }.into(),
        other => other,
    }
}

/// Rejects an option that only added nodes have, because it would be ignored here.
pub(crate) fn not_added(node: &str) -> Error {
    let text = "on_failure is for a dependency, or for a task that a running one adds; say it in depends_on";
    in_node(node, Error::Invalid(text.into()))
}

/// Adds the node's name to an error.
pub(crate) fn in_node(node: &str, error: Error) -> Error {
    Error::Node {
        node: node.chars().take(limits::FLOW_NAME_BYTES_MAX).collect(),
        error: Box::new(error),
    }
}

/// The approximate length of a node's encoding.
fn node_bytes(node: &FlowNode<'_>) -> usize {
    let names: usize = node.depends_on.iter().map(|dependency| dependency.name.len() + 2).sum();
    super::enqueue::task_bytes(&node.enqueue.task)
        + node.name.len()
        + node.enqueue.queue.len()
        + names
}

/// The parts of a flow and their commit, in the order in which they must be applied.
fn staged(
    batch_id: u128,
    name: &str,
    retention_ms: Option<u64>,
    nodes: Vec<FlowNode<'_>>,
) -> Vec<EncodedCommand> {
    let mut parts: Vec<Vec<FlowNode<'_>>> = vec![Vec::new()];
    let mut part_bytes = 0;
    for node in nodes {
        let bytes = node_bytes(&node);
        if part_bytes > 0 && part_bytes + bytes > limits::ENTRY_BYTES_MAX {
            parts.push(Vec::new());
            part_bytes = 0;
        }
        part_bytes += bytes;
        parts.last_mut().expect("there is always one").push(node);
    }
    let count = parts.len() as u32;
    let stage = |(part, nodes)| Command::StageFlow(StageFlow { batch_id, part, nodes });
    let commit = CommitFlow { batch_id, parts: count, name, retention_ms };
    let commands = (0..).zip(parts).map(stage).chain([Command::CommitFlow(commit)]);
    commands.map(|command| EncodedCommand::new(&command)).collect()
}
