//! A running task as a member of its flow: the results of its parents, and tasks that it adds.

use super::{
    Flow, FlowHandle, IntoNode,
    handle::into_wire,
    node::{Draft, Drafts},
};
use crate::{
    ClaimedTask, Client, Error, TaskContext, TaskError, TaskId, TaskState,
    connection::Repeat,
    inspect::{decode, result_bytes},
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};
use taskyard_proto::v1;

/// The most nodes that the broker accepts in one call.
const ADDED_PER_CALL_MAX: usize = 1_000;

/// The result of a parent.
#[derive(Clone, Debug)]
pub struct Parent {
    client: Client,
    name: String,
    task: TaskId,
    state: TaskState,
    result: Option<Bytes>,
    omitted: bool,
    error: Option<TaskError>,
}

impl Parent {
    fn new(client: Client, wire: v1::ParentResult) -> Parent {
        Parent {
            client,
            name: wire.name,
            task: wire.task_id.into(),
            state: TaskState::from_wire(&wire.state),
            result: wire.result.map(Bytes::from),
            omitted: wire.omitted,
            error: wire.error.map(TaskError::from).filter(|error| *error != TaskError::default()),
        }
    }

    /// The name of the parent's node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parent's id.
    pub fn task_id(&self) -> &TaskId {
        &self.task
    }

    /// The parent's final state.
    pub fn state(&self) -> TaskState {
        self.state
    }

    /// Whether the parent succeeded; if not, this task runs because its flow ignores the failure.
    pub fn is_success(&self) -> bool {
        self.state == TaskState::Succeeded
    }

    /// The parent's error, if it failed.
    pub fn error(&self) -> Option<&TaskError> {
        self.error.as_ref()
    }

    /// The parent's result; [`Error::NotSucceeded`] if it failed. A result that is too large to
    /// travel along is fetched from the broker.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let what = || format!("the result of task {} (node {})", self.task, self.name);
        decode(result_bytes(Some(&self.raw_result().await?)), what)
    }

    /// The parent's result, as bytes; empty if there is none.
    pub async fn raw_result(&self) -> Result<Bytes, Error> {
        if !self.is_success() {
            let (task, error) = (self.task.clone(), self.error.clone());
            return Err(Error::NotSucceeded { task, state: self.state, error });
        }
        let result = match self.omitted {
            true => self.client.outcome(&self.task, Duration::ZERO).await?.result,
            false => self.result.clone(),
        };
        Ok(result.unwrap_or_default())
    }
}

fn parents_of(client: &Client, task: &v1::ClaimedTask) -> Vec<Parent> {
    task.parents.iter().map(|parent| Parent::new(client.clone(), parent.clone())).collect()
}

impl ClaimedTask {
    /// The results of the task's parents, in the order in which the flow names them.
    pub fn parents(&self) -> Vec<Parent> {
        parents_of(self.client(), self.wire())
    }
}

impl TaskContext {
    /// The flow that the task belongs to.
    pub fn flow(&self) -> Option<FlowHandle> {
        self.wire().flow.as_ref().map(|flow| self.client().flow(flow.id.as_str()))
    }

    /// The name of the task's node in its flow.
    pub fn node(&self) -> Option<&str> {
        self.wire().flow.as_ref().map(|flow| flow.node.as_str())
    }

    /// The results of the task's parents, in the order in which the flow names them. A failed
    /// parent whose failure does not stop this task comes with its error.
    pub fn parents(&self) -> Vec<Parent> {
        parents_of(self.client(), self.wire())
    }

    /// The result of the parent with this name.
    pub fn parent(&self, name: &str) -> Option<Parent> {
        let found = self.wire().parents.iter().find(|parent| parent.name == name)?;
        Some(Parent::new(self.client().clone(), found.clone()))
    }

    /// The result of the parent with this name. A result that is too large to travel along is
    /// fetched from the broker.
    ///
    /// ```
    /// use taskyard::{Fail, TaskContext};
    ///
    /// async fn publish(context: TaskContext) -> Result<(), Fail> {
    ///     let page: String = context.parent_result("render").await?;
    ///     println!("{page}");
    ///     Ok(())
    /// }
    /// ```
    pub async fn parent_result<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        match self.parent(name) {
            Some(parent) => parent.result().await,
            None => {
                let names: Vec<&str> =
                    self.wire().parents.iter().map(|parent| parent.name.as_str()).collect();
                let (task, names) = (self.id(), names.join(", "));
                let message = format!("task {task} has no parent {name}; it has [{names}]");
                Err(Error::Invalid(message))
            }
        }
    }

    /// The results of all parents that succeeded, in the order in which the flow names them.
    pub async fn parent_results<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let mut results = Vec::with_capacity(self.wire().parents.len());
        for parent in self.parents().iter().filter(|parent| parent.is_success()) {
            results.push(parent.result().await?);
        }
        Ok(results)
    }

    /// Adds tasks to the flow, each under a name. The dependents of this task's node then also wait
    /// for the new tasks, while this task need not wait and may return. Returns their ids.
    ///
    /// The tasks exist once this has returned, even if this attempt fails later. A later attempt
    /// that adds the same names gets the same tasks, so derive names from the payload.
    ///
    /// ```
    /// use taskyard::{Fail, NewTask, TaskContext};
    ///
    /// async fn split(file: String, context: TaskContext) -> Result<(), Fail> {
    ///     let part = |n| (format!("part-{n}"), NewTask::new("convert", &(file.clone(), n)));
    ///     context.add_tasks((0..20).map(part)).await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn add_tasks<Name, T>(
        &self,
        tasks: impl IntoIterator<Item = (Name, T)>,
    ) -> Result<Vec<TaskId>, Error>
    where
        Name: Into<String>,
        T: IntoNode,
    {
        let drafts = Drafts::default();
        for (name, task) in tasks {
            drafts.add::<T::Output>(name.into(), task.into_task());
        }
        let drafts = std::mem::take(&mut *drafts.lock());
        self.add_drafts(drafts).await
    }

    /// Adds tasks that depend on each other, or by name on other nodes of the flow. Otherwise like
    /// [`add_tasks`](TaskContext::add_tasks); the name of `flow` is ignored.
    pub async fn add_flow(&self, flow: Flow) -> Result<Vec<TaskId>, Error> {
        self.add_drafts(flow.into_drafts()).await
    }

    async fn add_drafts(&self, drafts: Vec<Draft>) -> Result<Vec<TaskId>, Error> {
        let Some(flow) = &self.wire().flow else {
            let message = format!("task {} is no task of a flow; submit one", self.id());
            return Err(Error::Invalid(message));
        };
        let names: Vec<String> = drafts.iter().map(|draft| draft.name.clone()).collect();
        let mut ids = HashMap::new();
        let mut nodes = into_wire(parents_first(drafts))?.into_iter().peekable();
        while nodes.peek().is_some() {
            let request = v1::AddFlowTasksRequest {
                flow_id: flow.id.clone(),
                parent: flow.node.clone(),
                claim_token: self.claim_token(),
                nodes: nodes.by_ref().take(ADDED_PER_CALL_MAX).collect(),
            };
            // Names that were added before stand for the same tasks.
            let reply = self
                .client()
                .call(request, Repeat::Always, |mut wire, request| async move {
                    wire.add_flow_tasks(request).await
                })
                .await?;
            ids.extend(reply.tasks);
        }
        let id = |name: &String| ids.get(name).map(|id| TaskId::from(id.as_str()));
        Ok(names.iter().filter_map(id).collect())
    }
}

/// Sorts nodes so that each comes after its parents, and a long list can be sent in parts. Nodes in
/// a cycle come last, and the broker rejects them.
fn parents_first(drafts: Vec<Draft>) -> Vec<Draft> {
    if drafts.len() <= ADDED_PER_CALL_MAX {
        return drafts;
    }
    let own: BTreeSet<String> = drafts.iter().map(|draft| draft.name.clone()).collect();
    let mut waits_for: Vec<usize> = Vec::with_capacity(drafts.len());
    let mut dependents: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        let parents = draft.depends_on.iter().filter(|(name, _)| own.contains(name));
        waits_for.push(parents.clone().count());
        for (name, _) in parents {
            dependents.entry(name.clone()).or_default().push(index);
        }
    }
    let mut free: Vec<usize> = (0..drafts.len()).filter(|&at| waits_for[at] == 0).collect();
    let mut order = Vec::with_capacity(drafts.len());
    while let Some(index) = free.get(order.len()).copied() {
        order.push(index);
        for &dependent in dependents.get(&drafts[index].name).into_iter().flatten() {
            waits_for[dependent] -= 1;
            if waits_for[dependent] == 0 {
                free.push(dependent);
            }
        }
    }
    order.extend((0..drafts.len()).filter(|&at| waits_for[at] > 0));
    let mut drafts: Vec<Option<Draft>> = drafts.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| drafts[index].take()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewTask;

    #[test]
    fn nodes_sent_in_parts_follow_their_parents() {
        let flow = Flow::new("");
        let last = flow.add("last", NewTask::new("a", &()));
        for number in 0..ADDED_PER_CALL_MAX {
            let node = flow.add(format!("part-{number}"), NewTask::new("a", &()));
            drop(last.clone().after(&node).after("outside"));
        }
        let ordered = parents_first(flow.into_drafts());
        assert_eq!(ordered.len(), ADDED_PER_CALL_MAX + 1);
        assert_eq!(ordered.last().unwrap().name, "last");
        assert_eq!(ordered[0].name, "part-0");
    }

    #[test]
    fn nothing_is_lost_when_something_waits_for_itself() {
        let flow = Flow::new("");
        for number in 0..=ADDED_PER_CALL_MAX {
            flow.add(format!("part-{number}"), NewTask::new("a", &()));
        }
        flow.add("egg", NewTask::new("a", &())).after("hen");
        flow.add("hen", NewTask::new("a", &())).after("egg");
        assert_eq!(parents_first(flow.into_drafts()).len(), ADDED_PER_CALL_MAX + 3);
    }
}
