//! FlowHandle: a submitted flow, to read, await, cancel and retry it.

use super::{
    Flow, FlowDetails, FlowId, FlowResults, FlowState, IntoFlow, Node, Reading, node::Draft,
};
use crate::{Client, Error, TaskId, TaskState, connection::Repeat, random, timestamp::millis};
use serde::de::DeserializeOwned;
use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    time::Duration,
};
use taskyard_proto::v1;
use tokio::time::Instant;

/// The longest wait of one call on the broker.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Client {
    /// Submits a flow: all of its tasks exist once this has returned, or none.
    ///
    /// A call without an answer is repeated, on other servers too, until the client's timeout. The
    /// repetition never submits the flow twice.
    pub async fn submit<F: IntoFlow>(&self, flow: F) -> Result<FlowHandle<F::Output>, Error> {
        let (flow, reading) = flow.into_flow();
        let request = submission(flow)?;
        // Its batch id makes a repetition safe.
        let reply = self
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.submit_flow(request).await
            })
            .await?;
        let tasks = reply.tasks.into_iter().map(|(name, id)| (name, id.into())).collect();
        Ok(FlowHandle { client: self.clone(), id: reply.id.into(), tasks, reading })
    }

    /// A flow that was submitted before. The handle makes no call before it is used.
    pub fn flow(&self, flow: impl Into<FlowId>) -> FlowHandle {
        let (tasks, reading) = (BTreeMap::new(), Reading::of_all());
        FlowHandle { client: self.clone(), id: flow.into(), tasks, reading }
    }
}

fn submission(flow: Flow) -> Result<v1::SubmitFlowRequest, Error> {
    Ok(v1::SubmitFlowRequest {
        name: flow.name.clone(),
        retention_ms: flow.retention.map(millis),
        batch_id: random::identity().to_vec(),
        nodes: into_wire(flow.into_drafts())?,
    })
}

pub(super) fn into_wire(drafts: Vec<Draft>) -> Result<Vec<v1::FlowNode>, Error> {
    let dependency = |(name, on_failure): (String, super::OnFailure)| v1::Dependency {
        name,
        on_failure: on_failure.into_wire(),
    };
    let node = |draft: Draft| {
        let task = draft.task.into_wire().map_err(|problem| {
            Error::Invalid(format!("node {}: {problem}; nothing was enqueued", draft.name))
        })?;
        Ok(v1::FlowNode {
            name: draft.name,
            task: Some(task),
            depends_on: draft.depends_on.into_iter().map(dependency).collect(),
            on_failure: draft.on_failure.into_wire(),
        })
    };
    drafts.into_iter().map(node).collect()
}

/// A flow on the broker. Made by [`Client::submit`] and [`Client::flow`].
pub struct FlowHandle<Output = FlowResults> {
    client: Client,
    id: FlowId,
    /// The tasks that are known without a call.
    tasks: BTreeMap<String, TaskId>,
    reading: Reading<Output>,
}

impl<Output> FlowHandle<Output> {
    /// The flow's id.
    pub fn id(&self) -> &FlowId {
        &self.id
    }

    /// The task of a node. Known for a flow that was submitted through this handle; otherwise use
    /// [`status`](FlowHandle::status).
    pub fn task_id(&self, node: &str) -> Option<&TaskId> {
        self.tasks.get(node)
    }

    /// The details of the flow, with all its nodes.
    pub async fn status(&self) -> Result<FlowDetails, Error> {
        self.look(Duration::ZERO, false).await
    }

    /// The details of the flow without its nodes. Waits up to `wait` for its end.
    pub async fn progress(&self, wait: Duration) -> Result<FlowDetails, Error> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let details = self.look(left.min(WAIT_MAX), true).await?;
            if details.state.is_finished() || Instant::now() >= until {
                return Ok(details);
            }
        }
    }

    /// Waits until the flow has ended, with or without success, and returns its details. Put a
    /// timeout around the call to wait for less time.
    pub async fn wait(&self) -> Result<FlowDetails, Error> {
        let patience = self.client.patience();
        loop {
            let details = self.progress(patience.unwrap_or(WAIT_MAX)).await?;
            if details.state.is_finished() {
                return self.status().await;
            }
            if let Some(waited) = patience {
                let (flow, state) = (self.id.clone(), details.state);
                return Err(Error::FlowNotFinished { flow, state, waited });
            }
        }
    }

    /// The result of the flow, once it has ended; an error if it does not succeed.
    pub async fn result(&self) -> Result<Output, Error> {
        let ended = self.wait().await?;
        if ended.state != FlowState::Succeeded {
            return Err(not_succeeded(ended));
        }
        let names = match &self.reading.nodes {
            Some(names) => names.clone(),
            None => last_nodes(&ended),
        };
        let tasks: BTreeMap<&str, &TaskId> =
            ended.nodes.iter().map(|node| (node.name.as_str(), &node.task_id)).collect();
        let mut results = Vec::with_capacity(names.len());
        for name in names {
            let result = match (ended.results.get(&name), tasks.get(name.as_str())) {
                (Some(result), _) => Some(result.clone()),
                (None, Some(task)) if ended.results_omitted => {
                    self.client.outcome(*task, Duration::ZERO).await?.result
                }
                (None, _) => None,
            };
            results.push((name, result));
        }
        (self.reading.read)(&FlowResults { flow: self.id.clone(), results })
    }

    /// What one of its nodes returns, once the node's task has ended: any node, while the flow
    /// still runs.
    pub async fn result_of<T: DeserializeOwned + 'static>(
        &self,
        node: &Node<T>,
    ) -> Result<T, Error> {
        let task = self.find_task(node.name()).await?;
        self.client.result(task).await
    }

    /// Cancels the flow: waiting tasks end at once, running tasks when their workers yield. Returns
    /// the state of the flow: `Cancelled`, or `Running` until the last worker has yielded.
    pub async fn cancel(&self) -> Result<FlowState, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::IfNotTaken, |mut wire, request| async move {
                wire.cancel_flow(request).await
            })
            .await?;
        Ok(FlowState::from_wire(&reply.state))
    }

    /// Runs the failed tasks again, and then the tasks that wait for them. Succeeded tasks stay as
    /// they are.
    pub async fn retry(&self) -> Result<FlowState, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::IfNotTaken, |mut wire, request| async move {
                wire.retry_flow(request).await
            })
            .await?;
        Ok(FlowState::from_wire(&reply.state))
    }

    async fn find_task(&self, node: &str) -> Result<TaskId, Error> {
        if let Some(task) = self.tasks.get(node) {
            return Ok(task.clone());
        }
        let found = self.status().await?.node(node).map(|node| node.task_id.clone());
        found.ok_or_else(|| Error::Invalid(format!("flow {} has no node {node}", self.id)))
    }

    fn request(&self) -> v1::FlowRequest {
        v1::FlowRequest { id: self.id.to_string() }
    }

    async fn look(&self, wait: Duration, without_nodes: bool) -> Result<FlowDetails, Error> {
        let (id, wait_ms) = (self.id.to_string(), millis(wait));
        let request = v1::GetFlowRequest { id, wait_ms, without_nodes };
        let deadline = self.client.deadline_after(wait);
        let reply = self
            .client
            .connection()
            .call(request, Repeat::Read, deadline, |mut wire, request| async move {
                wire.get_flow(request).await
            })
            .await?;
        Ok(reply.into())
    }
}

/// The nodes without dependents.
fn last_nodes(flow: &FlowDetails) -> Vec<String> {
    let parents = flow.nodes.iter().flat_map(|node| &node.depends_on);
    let parents: HashSet<&str> = parents.map(|parent| parent.name.as_str()).collect();
    let last = flow.nodes.iter().filter(|node| !parents.contains(node.name.as_str()));
    last.map(|node| node.name.clone()).collect()
}

/// Names the first failure in the flow, not the failures that followed from it.
fn not_succeeded(flow: FlowDetails) -> Error {
    let by_itself = |state: TaskState| matches!(state, TaskState::Dead | TaskState::Expired);
    let mut nodes = flow.nodes;
    nodes.retain(|node| node.state.is_finished() && node.state != TaskState::Succeeded);
    let first = nodes.iter().position(|node| by_itself(node.state)).unwrap_or(0);
    let cause = nodes.into_iter().nth(first);
    let (node, error) = cause.map(|node| (node.name, node.error)).unzip();
    Error::FlowNotSucceeded {
        flow: flow.id,
        state: flow.state,
        node,
        error: error.flatten().map(Box::new),
    }
}

impl<Output> From<FlowHandle<Output>> for FlowId {
    fn from(handle: FlowHandle<Output>) -> FlowId {
        handle.id
    }
}

impl<Output> fmt::Debug for FlowHandle<Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowHandle").field("id", &self.id).finish_non_exhaustive()
    }
}
