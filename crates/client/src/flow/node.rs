//! Node: one task of a flow under construction, and its parents.
//!
//! A node is a handle: keep it to name it as a parent, or drop it. All changes go to its flow.

use crate::{
    NewTask, RetryPolicy, Task, Timestamp, Unique, new_task::task_options, timestamp::millis,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use taskyard_proto::v1;

/// What the failure of a task means to a task that depends on it. A dead, failed, cancelled or
/// expired task has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The dependent task fails too, without having run, and so does the flow.
    #[default]
    Fail,
    /// The dependent task runs without this result, and the failure does not fail the flow.
    Ignore,
    /// The dependent task runs and sees the error; the flow fails in the end.
    Run,
}

impl OnFailure {
    /// The name of the policy, the same on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Fail => "fail",
            OnFailure::Ignore => "ignore",
            OnFailure::Run => "run",
        }
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One node before it is submitted.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) task: NewTask,
    pub(crate) depends_on: Vec<(String, OnFailure)>,
    pub(crate) on_failure: OnFailure,
}

/// The nodes of one flow, shared with the handles to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafts(Arc<Mutex<Vec<Draft>>>);

impl Drafts {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Draft>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add<Output>(&self, name: String, task: NewTask) -> Node<Output> {
        let (depends_on, on_failure) = (Vec::new(), OnFailure::Fail);
        let draft = Draft { name: name.clone(), task, depends_on, on_failure };
        let mut drafts = self.lock();
        drafts.push(draft);
        let index = drafts.len() - 1;
        Node { drafts: self.clone(), index, name: name.into(), output: PhantomData }
    }
}

/// Anything that can be a node: a declared task, whose output type is known, or a [`NewTask`].
pub trait IntoNode {
    /// The result type of its handler.
    type Output;

    /// The task, as it is enqueued.
    fn into_task(self) -> NewTask;
}

impl<T: Task> IntoNode for T {
    type Output = T::Output;

    fn into_task(self) -> NewTask {
        NewTask::of(&self)
    }
}

impl IntoNode for NewTask {
    type Output = Value;

    fn into_task(self) -> NewTask {
        self
    }
}

/// A task of a flow, to set its options and to name it as a parent. Made by
/// [`Flow::add`](crate::Flow::add).
///
/// A node has all options of a task; a delay counts from the moment at which the flow releases the
/// task.
pub struct Node<Output = Value> {
    drafts: Drafts,
    index: usize,
    name: Arc<str>,
    output: PhantomData<fn() -> Output>,
}

impl<Output> Node<Output> {
    /// The node's name in the flow.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs this node after these have succeeded. If one of them fails, this node fails without
    /// having run.
    pub fn after(self, parents: impl Parents) -> Node<Output> {
        self.depends_on(parents, OnFailure::Fail)
    }

    /// Runs this node after these have ended, with or without success; its task sees the errors of
    /// those that failed. A failure among them still fails the flow.
    pub fn after_any_end(self, parents: impl Parents) -> Node<Output> {
        self.depends_on(parents, OnFailure::Run)
    }

    /// Runs this node after these have ended, and ignores their failures: its task runs without the
    /// missing results, and the flow can still succeed.
    pub fn after_optional(self, parents: impl Parents) -> Node<Output> {
        self.depends_on(parents, OnFailure::Ignore)
    }

    /// Runs this node after these; `on_failure` decides what their failure means to it.
    pub fn depends_on(self, parents: impl Parents, on_failure: OnFailure) -> Node<Output> {
        let parents = parents.names().into_iter().map(|name| (name, on_failure));
        self.edit(|draft| draft.depends_on.extend(parents));
        self
    }

    /// For a task that a running one [adds](crate::TaskContext::add_tasks): what its failure means
    /// to the task that adds it. By default that task fails with it.
    pub fn when_it_fails(self, on_failure: OnFailure) -> Node<Output> {
        self.edit(|draft| draft.on_failure = on_failure);
        self
    }

    task_options!(Node<Output>, |self, change| {
        self.edit(|draft| draft.task.edit(change));
        self
    });

    fn edit(&self, change: impl FnOnce(&mut Draft)) {
        change(&mut self.drafts.lock()[self.index]);
    }
}

impl<Output> Clone for Node<Output> {
    fn clone(&self) -> Node<Output> {
        let (drafts, name) = (self.drafts.clone(), Arc::clone(&self.name));
        Node { drafts, index: self.index, name, output: PhantomData }
    }
}

impl<Output> fmt::Debug for Node<Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.name).finish()
    }
}

/// The parents of a node: a node, several nodes, or names of nodes.
pub trait Parents {
    /// The names of the nodes.
    fn names(self) -> Vec<String>;
}

impl<Output> Parents for &Node<Output> {
    fn names(self) -> Vec<String> {
        vec![self.name.to_string()]
    }
}

impl Parents for &str {
    fn names(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl<P> Parents for &[P]
where
    for<'a> &'a P: Parents,
{
    fn names(self) -> Vec<String> {
        self.iter().flat_map(Parents::names).collect()
    }
}

impl<P> Parents for &Vec<P>
where
    for<'a> &'a P: Parents,
{
    fn names(self) -> Vec<String> {
        self.as_slice().names()
    }
}

impl<P: Parents, const N: usize> Parents for [P; N] {
    fn names(self) -> Vec<String> {
        self.into_iter().flat_map(Parents::names).collect()
    }
}
