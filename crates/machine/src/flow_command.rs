//! Commands for flows, and the nodes that they name.

use crate::{Enqueue, ShardId, TaskId};

/// What the failure of a task means to one that depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The dependent task fails too, without having run.
    #[default]
    Fail,
    /// The dependent task runs and sees the error; the flow does not fail by it, if all that depends
    /// on the failed task says so.
    Ignore,
    /// The dependent task runs and sees the error; the flow fails in the end.
    Run,
}

impl OnFailure {
    /// Every policy.
    pub const ALL: [OnFailure; 3] = [OnFailure::Fail, OnFailure::Ignore, OnFailure::Run];

    /// The word on every front.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Fail => "fail",
            OnFailure::Ignore => "ignore",
            OnFailure::Run => "run",
        }
    }

    /// The reverse of [`OnFailure::as_str`].
    pub fn parse(word: &str) -> Option<OnFailure> {
        OnFailure::ALL.into_iter().find(|policy| policy.as_str() == word)
    }
}

/// Another node of the flow that a node depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency<'a> {
    /// Its name.
    pub name: &'a str,
    /// What its failure means.
    pub on_failure: OnFailure,
}

/// One task of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowNode<'a> {
    /// Its name in the flow.
    pub name: &'a str,
    /// The shard of its queue.
    pub home: ShardId,
    /// The task and its queue. A delay counts from when its parents let it go.
    pub enqueue: Enqueue<'a>,
    /// What must end before it runs.
    pub depends_on: Vec<Dependency<'a>>,
    /// For an added task: what its failure means to the node whose task added it.
    pub on_failure: OnFailure,
}

/// See [`crate::Command::SubmitFlow`].
#[derive(Clone, Debug, PartialEq)]
pub struct SubmitFlow<'a> {
    /// Identity of the request: its repetition within 10 minutes gets the first answer.
    pub batch_id: Option<u128>,
    /// For people; may be empty.
    pub name: &'a str,
    /// How long the flow and its tasks are kept after its end.
    pub retention_ms: Option<u64>,
    /// Its tasks.
    pub nodes: Vec<FlowNode<'a>>,
}

/// See [`crate::Command::StageFlow`].
#[derive(Clone, Debug, PartialEq)]
pub struct StageFlow<'a> {
    /// The flow that this is a part of.
    pub batch_id: u128,
    /// The part's number, from 0. Parts come in order; a repeated part is ignored.
    pub part: u32,
    /// The part's nodes. They may depend on nodes of any part.
    pub nodes: Vec<FlowNode<'a>>,
}

/// See [`crate::Command::CommitFlow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitFlow<'a> {
    /// The staged flow.
    pub batch_id: u128,
    /// How many parts it must have.
    pub parts: u32,
    /// For people; may be empty.
    pub name: &'a str,
    /// How long the flow and its tasks are kept after its end.
    pub retention_ms: Option<u64>,
}

/// See [`crate::Command::AddFlowTasks`].
#[derive(Clone, Debug, PartialEq)]
pub struct AddFlowTasks<'a> {
    /// The flow.
    pub flow: TaskId,
    /// The node whose task adds them. It counts as done when it and all it added are.
    pub parent: &'a str,
    /// What to add. A name that the same node added before is the same task.
    pub nodes: Vec<FlowNode<'a>>,
}

/// See [`crate::Command::CancelFlow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelFlow {
    /// The flow.
    pub flow: TaskId,
}

/// See [`crate::Command::RetryFlow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryFlow {
    /// The flow.
    pub flow: TaskId,
}
