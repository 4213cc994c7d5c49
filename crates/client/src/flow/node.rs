//! Node: one task of a flow that is being put together, and what it waits for.
//!
//! A node is a handle: it may be kept to name it as a parent, or dropped at once. What is said about it
//! goes to its flow.

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

/// What the failure of a task means to one that depends on it. A task that is dead, failed,
/// cancelled or expired has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The dependent task fails too, without having run, and so does the flow.
    #[default]
    Fail,
    /// The dependent task runs as if it did not depend on it, and the flow does not fail by it.
    Ignore,
    /// The dependent task runs and sees the error; the flow fails in the end.
    Run,
}

impl OnFailure {
    /// The word used on every front.
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

/// What can be a node: a declared task, whose output is known, or a [`NewTask`].
pub trait IntoNode {
    /// What its handler returns.
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

/// A task of a flow: say more about it, and name it as what others come after. Made by
/// [`Flow::add`](crate::Flow::add).
///
/// Everything that can be said about a task can be said here; a delay counts from the moment at
/// which the task's parents let it go.
pub struct Node<Output = Value> {
    drafts: Drafts,
    index: usize,
    name: Arc<str>,
    output: PhantomData<fn() -> Output>,
}

impl<Output> Node<Output> {
    /// Its name in the flow.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs it after these have succeeded. If one of them fails, it fails too, without having run.
    pub fn after(self, parents: impl Parents) -> Node<Output> {
        self.depends_on(parents, OnFailure::Fail)
    }

    /// Runs it after these have ended, whatever became of them; it sees the errors of those that
    /// failed. A failure among them still fails the flow.
    pub fn after_any_end(self, parents: impl Parents) -> Node<Output> {
        self.depends_on(parents, OnFailure::Run)
    }

    /// Runs it after these have ended, and takes it well if they failed: it runs without their
    /// results, and the flow can still succeed.
    pub fn after_optional(self, parents: impl Parents) -> Node<Output> {
        self.depends_on(parents, OnFailure::Ignore)
    }

    /// Runs it after these; `on_failure` says what their failure means to it.
    pub fn depends_on(self, parents: impl Parents, on_failure: OnFailure) -> Node<Output> {
        let parents = parents.names().into_iter().map(|name| (name, on_failure));
        self.edit(|draft| draft.depends_on.extend(parents));
        self
    }

    /// For a task that a running one [adds](crate::TaskContext::add_tasks): what its failure means to the
    /// one that adds it. If not said, that one fails with it.
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

/// What a node can come after: a node, several, or names of nodes.
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
