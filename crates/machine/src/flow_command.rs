//! Commands for flows, and the nodes in them.

use crate::{Enqueue, ShardId, TaskId};

/// What the failure of a task means to a task that depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The dependent task fails too, without having run.
    #[default]
    Fail,
    /// The dependent task runs and sees the error. The flow does not fail because of this failure
    /// if all dependents of the failed task ignore it.
    Ignore,
    /// The dependent task runs and sees the error; the flow fails in the end.
    Run,
}

impl OnFailure {
    /// Every policy.
    pub const ALL: [OnFailure; 3] = [OnFailure::Fail, OnFailure::Ignore, OnFailure::Run];

    /// The name of the policy, the same on every front.
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
    /// The node's name.
    pub name: &'a str,
    /// What a failure of the node means.
    pub on_failure: OnFailure,
}

/// One task of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowNode<'a> {
    /// The node's name in the flow.
    pub name: &'a str,
    /// The shard of its queue.
    pub home: ShardId,
    /// The task and its queue. A delay counts from the moment at which the task is released.
    pub enqueue: Enqueue<'a>,
    /// The nodes that must be done before this one runs.
    pub depends_on: Vec<Dependency<'a>>,
    /// For an added task: what its failure means to the node whose task added it.
    pub on_failure: OnFailure,
}

/// See [`crate::Command::SubmitFlow`].
#[derive(Clone, Debug, PartialEq)]
pub struct SubmitFlow<'a> {
    /// The id of the request: a repetition within 10 minutes gets the first answer.
    pub batch_id: Option<u128>,
    /// The flow's name, for people; may be empty.
    pub name: &'a str,
    /// How long the flow and its tasks are kept after its end.
    pub retention_ms: Option<u64>,
    /// The nodes of the flow.
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
    /// The number of parts that the flow must have.
    pub parts: u32,
    /// The flow's name, for people; may be empty.
    pub name: &'a str,
    /// How long the flow and its tasks are kept after its end.
    pub retention_ms: Option<u64>,
}

/// See [`crate::Command::AddFlowTasks`].
#[derive(Clone, Debug, PartialEq)]
pub struct AddFlowTasks<'a> {
    /// The flow.
    pub flow: TaskId,
    /// The node whose task adds the nodes. The node is done when it and all nodes that it added
    /// are.
    pub parent: &'a str,
    /// The nodes to add. A name that the same node added before stands for the same task.
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
